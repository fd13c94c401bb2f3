"""Finding a GPU: the driver, the device, its context and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poot_core import DeviceError
from poot_executor.stream_device import DriverError, StreamDriver

__all__ = ["MachineFacts", "open_machine"]

_OLDEST = (7, 5)
_MULTIPLIES = (8, 0)
_ASYNCHRONOUS = (9, 0)  # wgmma
_OVERLAPS = (9, 0)
_REASONS = {
    "CUDA_ERROR_NO_DEVICE": "the driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "kernel module and driver library are of two versions",
    "CUDA_ERROR_INSUFFICIENT_DRIVER": "the driver is too old for the binding",
    "CUDA_ERROR_STUB_LIBRARY": "libcuda is the toolkit's stub, not a driver",
    "ABSENT": "libcuda is not there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What the driver says of a GPU.

    Attributes:
        name: As the driver calls it.
        arch: Architecture for code: ``sm_90a`` for Hopper, plain elsewhere.
        features: ``mma-k16`` where matrix instructions add groups of 16 k alike at every tile shape,
            ``mma-async`` where they also run beside other instructions of their subgroups.
        context: Its primary context, current in the thread that opened it.
        driver_version: CUDA version of the driver, such as 13000.
        num_multiprocessors: Multiprocessors.
        shared_bytes: Most shared memory of a workgroup.
        memory_bytes: Memory in all.
        max_threads: Most invocations of a workgroup.
        can_overlap: Whether a kernel may start before the last one ends.
    """

    name: str
    arch: str
    features: frozenset[str]
    context: Any
    driver_version: int
    num_multiprocessors: int
    shared_bytes: int
    memory_bytes: int
    max_threads: int
    can_overlap: bool


def open_machine(driver: StreamDriver, wanted: str | None) -> MachineFacts:
    """Return a GPU's facts; its context becomes current.

    Args:
        driver: The driver.
        wanted: Number of the GPU or a part of its name; the first without.

    Raises:
        DeviceError: If there is no driver, no such GPU, or one older than sm_75.
    """
    try:
        driver.call("cuInit", 0)
        count = int(driver.call("cuDeviceGetCount"))
    except DriverError as error:
        reason = _REASONS.get(error.code, error.message)
        raise DeviceError(f"no NVIDIA driver can be used: {reason} ({error.code})") from error
    names = [_name(driver, number) for number in range(count)]
    index = _index(wanted, names)
    device, name = driver.call("cuDeviceGet", index), names[index]

    def attribute(label: str) -> int:
        found = getattr(driver.binding.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{label}")
        return int(driver.call("cuDeviceGetAttribute", found, device))

    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    if capability < _OLDEST:
        raise DeviceError(
            f"{name!r} is sm_{capability[0]}{capability[1]}; poot's kernels need sm_75 at least"
        )
    context = driver.call("cuDevicePrimaryCtxRetain", device)
    driver.call("cuCtxSetCurrent", context)
    suffix = "a" if capability == _ASYNCHRONOUS else ""
    return MachineFacts(
        name=name,
        arch=f"sm_{capability[0]}{capability[1]}{suffix}",
        features=_features(capability),
        context=context,
        driver_version=int(driver.call("cuDriverGetVersion")),
        num_multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        memory_bytes=int(driver.call("cuDeviceTotalMem", device)),
        max_threads=attribute("MAX_THREADS_PER_BLOCK"),
        can_overlap=capability >= _OVERLAPS,
    )


def _features(capability: tuple[int, int]) -> frozenset[str]:
    found = {"mma-k16"} if capability >= _MULTIPLIES else set[str]()
    return frozenset(found | {"mma-async"} if capability == _ASYNCHRONOUS else found)


def _name(driver: StreamDriver, number: int) -> str:
    device = driver.call("cuDeviceGet", number)
    name = driver.call("cuDeviceGetName", 256, device)
    return name.split(b"\0")[0].decode(errors="replace")


def _index(wanted: str | None, names: list[str]) -> int:
    if wanted is None:
        return 0
    shown = ", ".join(f"{i} {name!r}" for i, name in enumerate(names)) or "none"
    if wanted.lstrip("-").isdecimal():
        if 0 <= int(wanted) < len(names):
            return int(wanted)
        raise DeviceError(f"there is no GPU {wanted}; the driver shows {shown}")
    for number, name in enumerate(names):
        if wanted.lower() in name.lower():
            return number
    raise DeviceError(f"no GPU is called {wanted!r}; the driver shows {shown}")
