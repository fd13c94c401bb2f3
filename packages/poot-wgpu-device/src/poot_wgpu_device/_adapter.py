"""Adapters: which there are, which one is taken, and why not the others."""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from poot_core import DeviceError
from poot_wgpu_device._native import Flags, Native, load_native

__all__ = ["AdapterFacts", "choose_adapter", "list_adapters"]

_KINDS = {1: "discrete GPU", 2: "integrated GPU", 3: "software", 4: "unknown"}
_BACKENDS = {2: "WebGPU", 3: "D3D11", 4: "D3D12", 5: "Metal", 6: "Vulkan", 7: "OpenGL",
             8: "OpenGL ES"}  # fmt: skip
_ONE_SIZE = {0x10DE: "NVIDIA", 0x106B: "Apple", 0x13B5: "Arm"}
_NO_DEVICE_SELECT = "NODEVICE_SELECT"
_ORDER = ("discrete GPU", "integrated GPU", "unknown", "software")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """One adapter.

    Attributes:
        name: What its driver calls it.
        driver: Driver and version as far as it tells.
        kind: ``discrete GPU``, ``integrated GPU``, ``software`` or ``unknown``.
        backend: The system's own interface underneath.
        vendor: PCI number of its maker.
        subgroup_sizes: Least and most lanes of a subgroup; zeros where the library does not tell.
        features: Numbers of its features, as the library has them.
        handle: The library's object.
        limits: Its limits, the library's record.
    """

    name: str
    driver: str
    kind: str
    backend: str
    vendor: int
    subgroup_sizes: tuple[int, int]
    features: frozenset[int] = field(repr=False)
    handle: Any = field(repr=False)
    limits: Any = field(repr=False)

    @property
    def has_one_subgroup_size(self) -> bool:
        """Whether every shader gets subgroups of one size: AMD, Intel and Qualcomm choose for each.

        wgpu-native 29 leaves the sizes at zero, so makers whose GPUs have one are listed.
        """
        least, most = self.subgroup_sizes
        return 0 < least == most or self.is_software or self.vendor in _ONE_SIZE

    @property
    def is_software(self) -> bool:
        """Whether the host CPU computes."""
        return self.kind == "software"

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.backend})"


@contextmanager
def _without_mesa_device_select() -> Generator[None]:
    """Keep Mesa's implicit layer out of the instance that is made inside.

    It asks the display server which GPU to list first, and complains on stderr where there is none;
    adapters are ordered here by what they are.
    """
    before = os.environ.get(_NO_DEVICE_SELECT)
    os.environ[_NO_DEVICE_SELECT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_DEVICE_SELECT]
        else:
            os.environ[_NO_DEVICE_SELECT] = before


@functools.cache
def _instance() -> Any:
    """Return the one instance of this process; OpenGL is left out, it has no subgroups."""
    native = load_native()
    ffi, lib = native.ffi, native.lib
    extras = ffi.new("WGPUInstanceExtras *")
    extras.chain.sType = lib.WGPUSType_InstanceExtras
    extras.backends = Flags.PRIMARY_BACKENDS
    descriptor = ffi.new("WGPUInstanceDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", extras)
    with _without_mesa_device_select():
        found = lib.wgpuCreateInstance(descriptor)
    if found == ffi.NULL:
        raise DeviceError("wgpu-native gives no instance on this system")
    return found


def list_adapters() -> tuple[AdapterFacts, ...]:
    """Return all adapters: discrete ones first, software last.

    Raises:
        DeviceError: If wgpu-native cannot be loaded.
    """
    native = load_native()
    ffi, lib, instance = native.ffi, native.lib, _instance()
    count = lib.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, ffi.NULL)
    if not count:
        return ()
    handles = ffi.new("WGPUAdapter[]", count)
    count = lib.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, handles)
    found = [_facts(native, handles[i]) for i in range(count)]
    return tuple(sorted(found, key=lambda facts: _ORDER.index(facts.kind)))


def _facts(native: Native, handle: Any) -> AdapterFacts:
    ffi, lib = native.ffi, native.lib
    info = ffi.new("WGPUAdapterInfo *")
    lib.wgpuAdapterGetInfo(handle, info)
    features = ffi.new("WGPUSupportedFeatures *")
    lib.wgpuAdapterGetFeatures(handle, features)
    limits = ffi.new("WGPULimits *")
    lib.wgpuAdapterGetLimits(handle, limits)
    found = AdapterFacts(
        name=native.text(info.device) or "unnamed adapter",
        driver=native.text(info.description),
        kind=_KINDS.get(int(info.adapterType), "unknown"),
        backend=_BACKENDS.get(int(info.backendType), "unknown"),
        vendor=int(info.vendorID),
        subgroup_sizes=(int(info.subgroupMinSize), int(info.subgroupMaxSize)),
        features=frozenset(int(features.features[i]) for i in range(features.featureCount)),
        handle=handle,
        limits=limits,
    )
    lib.wgpuSupportedFeaturesFreeMembers(features[0])
    lib.wgpuAdapterInfoFreeMembers(info[0])
    return found


def choose_adapter(adapters: Sequence[AdapterFacts], wanted: str | None) -> AdapterFacts:
    """Return the adapter that was asked for, or the first.

    Args:
        adapters: All there are.
        wanted: Its number, a part of its name, or None.

    Raises:
        DeviceError: If there is none, or no such one; names those that there are.
    """
    if not adapters:
        raise DeviceError(
            "no WebGPU adapter: wgpu-native finds no driver for Vulkan, Metal or Direct3D 12; "
            "install the GPU's driver (for a software adapter on Linux: mesa-vulkan-drivers and "
            "libvulkan1)"
        )
    if wanted is None:
        return adapters[0]
    if wanted.isdecimal():
        found = adapters[int(wanted) :][:1]
    else:
        found = [each for each in adapters if wanted.lower() in each.name.lower()][:1]
    if not found:
        listed = ", ".join(f"{number}: {adapter}" for number, adapter in enumerate(adapters))
        raise DeviceError(f"no WebGPU adapter {wanted!r}; there are {listed}")
    return found[0]
