"""Finding a GPU: the runtime, the device and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poot_core import DeviceError, UnsupportedError
from poot_executor.stream_device import DriverError, StreamDriver
from poot_kernel.targets.amdgcn import wave_size

__all__ = ["MachineFacts", "open_machine"]

_REASONS = {
    "hipErrorNoDevice": "it sees no GPU (is HIP_VISIBLE_DEVICES empty, or /dev/kfd not readable?)",
    "hipErrorInsufficientDriver": "the kernel driver is too old for it",
    "hipErrorNotInitialized": "it cannot be initialised",
    "ABSENT": "libamdhip64 is not there; install ROCm's HIP runtime",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What HIP says of a GPU.

    Attributes:
        index: Its number.
        name: As HIP calls it.
        arch: Architecture for code, such as ``gfx1100``.
        subgroup_size: Lanes of a wave.
        num_processors: Compute units (on RDNA, pairs of them).
        shared_bytes: Most workgroup memory.
        memory_bytes: Memory in all.
        max_threads: Most invocations of a workgroup.
        version: Version of the runtime.
    """

    index: int
    name: str
    arch: str
    subgroup_size: int
    num_processors: int
    shared_bytes: int
    memory_bytes: int
    max_threads: int
    version: int


def open_machine(driver: StreamDriver, wanted: str | None) -> MachineFacts:
    """Return the facts of a GPU, which becomes the thread's current device.

    Args:
        driver: HIP.
        wanted: Its number or a part of its name; the first that poot has kernels for without.

    Raises:
        DeviceError: If there is no runtime, no GPU, none such, or none that poot has kernels for.
    """
    try:
        driver.call("hipInit", 0)
        count = int(driver.call("hipGetDeviceCount"))
    except DriverError as error:
        reason = _REASONS.get(error.code, error.message)
        raise DeviceError(f"HIP cannot be used: {reason} ({error.code})") from error
    found = [(i, driver.call("hipGetDeviceProperties", i)) for i in range(count)]
    index, properties = _chosen(found, wanted)
    arch = _arch(properties)
    try:
        lanes = wave_size(arch)
    except UnsupportedError as error:
        raise DeviceError(f"{_name(properties)!r} cannot be used: {error.message}") from error
    if lanes != int(properties.warpSize):
        raise DeviceError(
            f"{_name(properties)!r} runs waves of {properties.warpSize}; poot's kernels for {arch} "
            f"take {lanes}"
        )
    driver.call("hipSetDevice", index)
    return MachineFacts(
        index=index,
        name=_name(properties),
        arch=arch,
        subgroup_size=lanes,
        num_processors=int(properties.multiProcessorCount),
        shared_bytes=int(properties.sharedMemPerBlock),
        memory_bytes=int(properties.totalGlobalMem),
        max_threads=int(properties.maxThreadsPerBlock),
        version=int(driver.call("hipRuntimeGetVersion")),
    )


def _chosen(found: list[tuple[int, Any]], wanted: str | None) -> tuple[int, Any]:
    names = [f"{i}: {_name(p)} ({_arch(p)})" for i, p in found]
    if not found:
        raise DeviceError(f"HIP cannot be used: {_REASONS['hipErrorNoDevice']}")
    if wanted is None:
        usable = [one for one in found if _is_covered(_arch(one[1]))]
        return (usable or found)[0]
    if wanted.isdigit():
        matching = [one for one in found if one[0] == int(wanted)]
    else:
        text = wanted.lower()
        matching = [o for o, name in zip(found, names, strict=True) if text in name.lower()]
    if not matching:
        raise DeviceError(f"there is no AMD GPU {wanted!r}; there are {'; '.join(names)}")
    return matching[0]


def _is_covered(arch: str) -> bool:
    try:
        wave_size(arch)
    except UnsupportedError:
        return False
    return True


def _text(value: Any) -> str:
    return value.decode(errors="replace").rstrip("\0") if isinstance(value, bytes) else str(value)


def _name(properties: Any) -> str:
    return _text(properties.name)


def _arch(properties: Any) -> str:
    """Return the architecture without its settings: code with none of them runs under all."""
    return _text(properties.gcnArchName).split(":")[0]
