"""``poot doctor``: which devices there are and which one ``auto`` takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from poot_core import PootError, Settings
from poot_llm.cli._print import print_json, sizes

__all__ = ["Finding", "examine", "run_doctor"]

ORDER = ("ptx", "rocm", "vulkan", "wgpu", "cpu")
"""In which order ``auto`` asks; ``oracle`` runs everything, slowly, and is never chosen by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found behind one backend.

    Attributes:
        backend: Its name.
        is_usable: Whether it opened.
        device: What the device calls itself.
        target: What kernels are compiled for.
        reason: Why it cannot be used.
        details: Measured capabilities.
    """

    backend: str
    is_usable: bool
    device: str | None = None
    target: str | None = None
    reason: str | None = None
    details: dict[str, Any] | None = None


def run_doctor(*, as_json: bool) -> None:
    """Print what was found."""
    settings = Settings.from_environment()
    findings = examine(settings)
    chosen, why = choose(findings, settings)
    if as_json:
        print_json(
            {"backends": [asdict(finding) for finding in findings], "chosen": chosen, "why": why}
        )
        return
    for finding in findings:
        mark = "+" if finding.is_usable else "-"
        text = finding.device if finding.is_usable else finding.reason
        print(f"{mark} {finding.backend:7} {text}")
        if finding.details is not None:
            details = finding.details
            print(
                f"          {finding.target}; {details['num_workers']} workers, "
                f"{8 * details['vector_bytes']}-bit vectors, {sizes(details['memory_bytes'])}"
            )
    print(f"auto takes {chosen or 'nothing'}: {why}")


def examine(settings: Settings) -> list[Finding]:
    """Return one finding a backend: those of ``auto`` in its order, then others, then the oracle."""
    installed = {entry.name: entry for entry in entry_points(group="poot.devices")}
    others = sorted(set(installed) - set(ORDER))
    findings: list[Finding] = []
    for name in (*ORDER, *others):
        entry = installed.get(name)
        if entry is None:
            reason = "not installed: no package offers this device"
            findings.append(Finding(backend=name, is_usable=False, reason=reason))
        else:
            findings.append(_probe(entry, settings))
    oracle = "NumPy, tensor by tensor: exact and slow, for checking"
    findings.append(Finding(backend="oracle", is_usable=True, device=oracle))
    return findings


def choose(findings: list[Finding], settings: Settings) -> tuple[str | None, str]:
    """Return the backend that ``auto`` takes, and why."""
    if settings.backend != "auto":
        return settings.backend, "POOT_BACKEND names it"
    passed: list[str] = []
    for finding in findings:
        if finding.backend in ORDER:
            if finding.is_usable:
                before = f"; before it {', '.join(passed)} cannot be used" if passed else ""
                return finding.backend, f"first of {', '.join(ORDER)} that opens{before}"
            passed.append(finding.backend)
    return None, f"none of {', '.join(ORDER)} opens"


def _probe(entry: EntryPoint, settings: Settings) -> Finding:
    try:
        device = entry.load()(settings)
    except (PootError, OSError, ImportError) as error:
        return Finding(backend=entry.name, is_usable=False, reason=" ".join(str(error).split()))
    try:
        caps = asdict(device.caps)
        return Finding(
            backend=entry.name,
            is_usable=True,
            device=caps.pop("name"),
            target=str(device.target),
            details=caps,
        )
    finally:
        device.close()
