"""Finding devices: installed ones by entry point, the order of ``auto``, and why not the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poot_core import DeviceError, PootError, Settings, SettingsError
from poot_executor._device import Device
from poot_executor._gpu_files import is_gpu_visible

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["BUILT_IN", "Backend", "OpenedDevice", "list_backends", "open_backend"]

GROUP = "poot.devices"
AUTO_ORDER = ("ptx", "rocm", "vulkan", "wgpu", "cpu")
BUILT_IN = ("oracle", "reference")
"""Backends without a device: the NumPy oracle, and planned programs run by the NumPy meaning of
their kernels."""

_Open = Callable[[Settings, int | None], Device]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What ``poot doctor`` shows of a backend.

    Attributes:
        name: As ``EngineOptions.backend`` takes it.
        is_usable: Whether it opens here.
        detail: What the device calls itself, or why it cannot be used.
        is_software: Whether the device is a program on the host, which ``auto`` never takes.
    """

    name: str
    is_usable: bool
    detail: str
    is_software: bool = False


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """A device and how it came to be chosen.

    Attributes:
        name: Name of the backend.
        device: The device; whoever asked closes it.
        reason: One line.
    """

    name: str
    device: Device
    reason: str


def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # tens of milliseconds, only where it is needed

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise DeviceError(
                f"two packages install a device {point.name!r}: {other.value} and {point.value}; "
                "uninstall one"
            )
        found[point.name] = point
    return found


def open_backend(name: str, settings: Settings, threads: int | None = None) -> OpenedDevice:
    """Open a device by name, or the first of ``auto``'s order that opens.

    Args:
        name: Name of an installed device, or ``auto``.
        settings: What the environment asked for.
        threads: Team size of a host device, or None.

    Raises:
        SettingsError: If no such backend is installed; says which are.
        DeviceError: If the device is absent; says why.
    """
    installed = _installed()
    if name != "auto":
        if name not in installed:
            known = ", ".join(sorted([*installed, *BUILT_IN]))
            raise SettingsError(f"no backend {name!r} is installed; there are auto, {known}")
        return OpenedDevice(name, _open(installed[name], settings, threads), "asked for")
    refusals: list[str] = []
    for candidate in AUTO_ORDER:
        if candidate not in installed:
            continue
        if settings.hide_devices and candidate != "cpu":
            refusals.append(f"{candidate}: hidden")
            continue
        if candidate != "cpu" and not is_gpu_visible():
            refusals.append(f"{candidate}: no GPU among the device files")
            continue
        try:
            device = _open(installed[candidate], settings, threads)
        except PootError as error:
            refusals.append(f"{candidate}: {error.message.splitlines()[0]}")
            continue
        if device.caps.is_software:
            name = device.caps.name
            device.close()
            refusals.append(
                f"{candidate}: {name} is a software adapter; name the backend to use it"
            )
            continue
        reason = "first of auto's order" if not refusals else "; ".join(refusals)
        return OpenedDevice(candidate, device, reason)
    told = "; ".join(refusals) or "none is installed"
    raise DeviceError(f"no device opens ({told}); install poot-cpu-device or name a backend")


def _open(point: EntryPoint, settings: Settings, threads: int | None) -> Device:
    _refuse_hidden(point.name, settings)
    try:
        opener: Any = point.load()
    except ImportError as error:
        raise DeviceError(f"backend {point.name!r} cannot be imported: {error}") from error
    function: _Open = opener
    return function(settings, threads)


def _refuse_hidden(name: str, settings: Settings) -> None:
    if settings.hide_devices and name != "cpu":
        raise DeviceError(
            f"backend {name!r} is hidden by POOT_HIDE_DEVICES=1; unset it to open one"
        )


def list_backends(settings: Settings) -> tuple[Backend, ...]:
    """Return every backend, opened once to see whether it can be used, in the order of ``auto``."""
    installed = _installed()
    names = [n for n in AUTO_ORDER if n in installed]
    names += sorted(set(installed) - set(names))
    found: list[Backend] = []
    for name in names:
        try:
            device = _open(installed[name], settings, None)
        except PootError as error:
            found.append(Backend(name=name, is_usable=False, detail=error.message))
            continue
        detail, is_software = f"{device.caps.name}, {device.target}", device.caps.is_software
        device.close()
        found.append(Backend(name=name, is_usable=True, detail=detail, is_software=is_software))
    found.append(Backend(name="oracle", is_usable=True, detail="NumPy, equation by equation"))
    found.append(
        Backend(name="reference", is_usable=True, detail="NumPy, planned kernel by planned kernel")
    )
    return tuple(found)
