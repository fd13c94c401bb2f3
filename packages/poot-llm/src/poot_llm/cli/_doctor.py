"""``poot doctor``: which devices there are and which one ``auto`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from poot_core import Settings
from poot_executor import Backend, list_backends
from poot_llm.cli._print import print_json

__all__ = ["choose", "run_doctor"]

FOR_CHECKING = frozenset({"oracle", "reference"})
"""Backends that run everything, slowly, and that nobody gets without asking."""


def run_doctor(*, as_json: bool) -> None:
    """Print every installed backend, what it found, and which one is taken and why."""
    settings = Settings.from_environment()
    backends = list_backends(settings)
    chosen, why = choose(backends, settings)
    if as_json:
        print_json(
            {"backends": [asdict(backend) for backend in backends], "chosen": chosen, "why": why}
        )
        return
    for backend in backends:
        print(f"{'+' if backend.is_usable else '-'} {backend.name:9} {backend.detail}")
    print(f"auto takes {chosen or 'nothing'}: {why}")


def choose(backends: Sequence[Backend], settings: Settings) -> tuple[str | None, str]:
    """Return the backend that ``auto`` takes, and why; ``backends`` are in its order."""
    if settings.backend != "auto":
        return settings.backend, "POOT_BACKEND names it"
    passed: list[str] = []
    for backend in backends:
        if backend.name in FOR_CHECKING:
            continue
        if settings.hide_devices and backend.name != "cpu":
            passed.append(f"{backend.name} is hidden by POOT_HIDE_DEVICES")
        elif not backend.is_usable:
            passed.append(f"{backend.name} does not open")
        elif backend.is_software:
            passed.append(f"{backend.name} is a software adapter")
        else:
            return backend.name, "; ".join([*passed, "first in the order that opens"])
    return None, "; ".join(passed) or "no device package is installed"
