"""The gate of tests that need a device: found through its entry point, hidden where a lane says so."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, NoReturn

import pytest

from poot_core import PootError, Settings
from poot_test_util._lanes import DEVICES

__all__ = ["device_parameters", "require_device", "why_absent"]


def device_parameters(*others: str) -> list[Any]:
    """Return one parameter a device, marked for its lane, for ``pytest.mark.parametrize``.

    Args:
        others: Backends that need no device (``cpu``, ``oracle``) and come first, unmarked.
    """
    marked = [pytest.param(n, id=n, marks=pytest.mark.device(n)) for n in DEVICES]
    return [*(pytest.param(n, id=n) for n in others), *marked]


def require_device(name: str, settings: Settings | None = None) -> None:
    """Skip the test unless a device opens; with POOT_REQUIRE_DEVICES=1 fail it.

    Tests marked ``device`` call this by themselves, through the plugin.

    Args:
        name: Name of the device's entry point.
        settings: What the environment asked for; read from it by default.
    """
    settings = settings or Settings.from_environment()
    if reason := why_absent(name, settings):
        _miss(settings, f"{name} is absent: {reason}")


def why_absent(name: str, settings: Settings | None = None) -> str | None:
    """Return why a device does not open, or None if it does; opens it once in a process."""
    settings = settings or Settings.from_environment()
    return "hidden by POOT_HIDE_DEVICES=1" if settings.hide_devices else _try_to_open(name)


@cache
def _try_to_open(name: str) -> str | None:
    for point in entry_points(group="poot.devices"):
        if point.name == name:
            try:
                point.load()(Settings.from_environment(), None).close()
            except (PootError, ImportError) as error:
                return str(error).splitlines()[0]
            return None
    return f"no package installs a device {name!r}"


def _miss(settings: Settings, reason: str) -> NoReturn:
    if settings.require_devices:
        pytest.fail(f"{reason}, and POOT_REQUIRE_DEVICES=1 requires it", pytrace=False)
    pytest.skip(reason)
