"""Physical devices: what each is and can do, and which one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poot_core import DeviceError
from poot_vulkan_device._api import Api
from poot_vulkan_device._instance import Instance

__all__ = ["Adapter", "MemoryKind", "choose_adapter", "list_adapters"]

_KINDS = ("other", "integrated", "discrete", "virtual", "software")
_NEEDED: dict[str, tuple[str, ...]] = {
    "VkPhysicalDeviceFeatures": ("shaderInt64", "shaderInt16"),
    "VkPhysicalDeviceVulkan11Features": ("storageBuffer16BitAccess",),
    "VkPhysicalDeviceVulkan12Features": (
        "bufferDeviceAddress", "shaderInt8", "storageBuffer8BitAccess", "vulkanMemoryModel",
        "vulkanMemoryModelDeviceScope", "hostQueryReset",
    ),
    "VkPhysicalDeviceVulkan13Features": ("subgroupSizeControl", "computeFullSubgroups"),
}  # fmt: skip
_USEFUL: dict[str, tuple[str, ...]] = {
    "VkPhysicalDeviceVulkan13Features": ("shaderIntegerDotProduct",)
}
_SHUFFLES = 0x11  # basic and shuffle
_SUBGROUP = 32


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """One memory type.

    Attributes:
        index: Its number.
        heap: Number of its heap.
        heap_bytes: Size of the heap.
        flags: VkMemoryPropertyFlags.
    """

    index: int
    heap: int
    heap_bytes: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One physical device.

    Attributes:
        number: In the loader's order.
        handle: Of Vulkan.
        name: What the driver calls it.
        driver: Name and version of the driver.
        uuid: What other drivers call the device too.
        kind: ``discrete``, ``integrated``, ``virtual``, ``software`` or ``other``.
        lacks: Why poot cannot use it: names of features and limits; empty if it can.
        features: Names for ``Target.features``.
        queue_family: The one that computes.
        subgroup_size: Lanes that pipelines ask for.
        shared_bytes: Workgroup memory.
        max_workgroup: Invocations of a workgroup.
        max_grid: Workgroups of each axis.
        push_bytes: Push constants.
        timestamp_ns: Nanoseconds of a tick; 0 without timestamps.
        memory: Its memory types.
        has_budget: Whether the driver tells how much memory is free.
    """

    number: int
    handle: Any
    name: str
    driver: str
    uuid: bytes
    kind: str
    lacks: tuple[str, ...]
    features: frozenset[str]
    queue_family: int
    subgroup_size: int
    shared_bytes: int
    max_workgroup: int
    max_grid: tuple[int, int, int]
    push_bytes: int
    timestamp_ns: float
    memory: tuple[MemoryKind, ...]
    has_budget: bool

    def __str__(self) -> str:
        return f"{self.number}: {self.name} ({self.kind})"


def list_adapters(api: Api, instance: Instance) -> list[Adapter]:
    """Return all physical devices."""
    count = api.out("uint32_t")
    list_them = api.lib.vkEnumeratePhysicalDevices
    api.check(list_them(instance.handle, count, api.ffi.NULL), "listing devices")
    found = api.ffi.new("VkPhysicalDevice[]", max(1, count[0]))
    api.check(list_them(instance.handle, count, found), "listing devices")
    return [_describe(api, number, found[number]) for number in range(count[0])]


def choose_adapter(adapters: Sequence[Adapter], wanted: str | None) -> Adapter:
    """Return the device that is meant: by number or part of its name, else the best.

    Discrete devices come before integrated, virtual and software ones.

    Raises:
        DeviceError: If there is none, none fits, or the one that is meant lacks something.
    """
    if not adapters:
        raise DeviceError("Vulkan lists no device; is a graphics driver installed?")
    if wanted is None:
        order = ("discrete", "integrated", "virtual", "other", "software")
        usable = [a for a in adapters if not a.lacks]
        if usable:
            return min(usable, key=lambda a: (order.index(a.kind), a.number))
        told = "; ".join(f"{a} lacks {', '.join(a.lacks)}" for a in adapters)
        raise DeviceError(f"no Vulkan device can run poot's kernels: {told}")
    matches = [a for a in adapters if wanted == str(a.number)]
    matches = matches or [a for a in adapters if wanted.lower() in a.name.lower()]
    if not matches:
        raise DeviceError(f"no Vulkan device {wanted!r}; there are {', '.join(map(str, adapters))}")
    if matches[0].lacks:
        raise DeviceError(f"Vulkan device {matches[0]} lacks {', '.join(matches[0].lacks)}")
    return matches[0]


def enable_features(api: Api) -> Any:
    """Return empty feature structures in a chain, the first one on top."""
    thirteen = api.struct("VkPhysicalDeviceVulkan13Features")
    twelve = api.struct("VkPhysicalDeviceVulkan12Features", pNext=thirteen)
    eleven = api.struct("VkPhysicalDeviceVulkan11Features", pNext=twelve)
    top = api.struct("VkPhysicalDeviceFeatures2", pNext=eleven)
    return top, {
        "VkPhysicalDeviceFeatures": top.features,
        "VkPhysicalDeviceVulkan11Features": eleven,
        "VkPhysicalDeviceVulkan12Features": twelve,
        "VkPhysicalDeviceVulkan13Features": thirteen,
    }


def needed_features(adapter: Adapter) -> dict[str, tuple[str, ...]]:
    """Return the features to enable, by structure."""
    found = dict(_NEEDED)
    if "dot8" in adapter.features:
        for name, fields in _USEFUL.items():
            found[name] = (*found.get(name, ()), *fields)
    return found


def _describe(api: Api, number: int, handle: Any) -> Adapter:
    lib = api.lib
    controls = api.struct("VkPhysicalDeviceVulkan13Properties")
    floats = api.struct("VkPhysicalDeviceVulkan12Properties", pNext=controls)
    groups = api.struct("VkPhysicalDeviceVulkan11Properties", pNext=floats)
    properties = api.struct("VkPhysicalDeviceProperties2", pNext=groups)
    lib.vkGetPhysicalDeviceProperties2(handle, properties)
    plain, limits = properties.properties, properties.properties.limits
    version = int(plain.apiVersion)
    lacks: list[str] = []
    features: set[str] = set()
    if version < 1 << 22 | 3 << 12:
        lacks.append(f"Vulkan 1.3 (it has {version >> 22}.{version >> 12 & 0x3FF})")
    else:
        top, by_name = enable_features(api)
        lib.vkGetPhysicalDeviceFeatures2(handle, top)
        for name, fields in _NEEDED.items():
            lacks += [f for f in fields if not getattr(by_name[name], f)]
        if by_name["VkPhysicalDeviceVulkan13Features"].shaderIntegerDotProduct:
            features.add("dot8")
        if int(groups.subgroupSupportedOperations) & _SHUFFLES != _SHUFFLES:
            lacks.append("subgroup shuffles")
    if floats.shaderSignedZeroInfNanPreserveFloat32:
        features.add("floats")
    if limits.maxPushConstantsSize >= 256:
        features.add("push256")
    family = _queue_family(api, handle)
    if family is None:
        lacks.append("a queue that computes")
    smallest, largest = int(controls.minSubgroupSize), int(controls.maxSubgroupSize)
    subgroup_size = min(max(_SUBGROUP, smallest), largest)
    return Adapter(
        number=number,
        handle=handle,
        name=api.string(plain.deviceName),
        driver=f"{api.string(floats.driverName)} {api.string(floats.driverInfo)}",
        uuid=bytes(groups.deviceUUID),
        kind=_KINDS[min(int(plain.deviceType), 4)],
        lacks=tuple(lacks),
        features=frozenset(features),
        queue_family=family or 0,
        subgroup_size=subgroup_size,
        shared_bytes=int(limits.maxComputeSharedMemorySize),
        max_workgroup=min(
            int(limits.maxComputeWorkGroupInvocations),
            int(limits.maxComputeWorkGroupSize[0]),
            # Pipelines ask for their subgroup size, which bounds them too.
            subgroup_size * int(controls.maxComputeWorkgroupSubgroups),
        ),
        max_grid=(
            int(limits.maxComputeWorkGroupCount[0]),
            int(limits.maxComputeWorkGroupCount[1]),
            int(limits.maxComputeWorkGroupCount[2]),
        ),
        push_bytes=int(limits.maxPushConstantsSize),
        timestamp_ns=float(limits.timestampPeriod) if limits.timestampComputeAndGraphics else 0.0,
        memory=_memory_kinds(api, handle),
        has_budget="VK_EXT_memory_budget" in _extensions(api, handle),
    )


def _queue_family(api: Api, handle: Any) -> int | None:
    count = api.out("uint32_t")
    api.lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, api.ffi.NULL)
    found = api.ffi.new("VkQueueFamilyProperties[]", max(1, count[0]))
    api.lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, found)
    return next((i for i in range(count[0]) if int(found[i].queueFlags) & 2), None)


def _memory_kinds(api: Api, handle: Any) -> tuple[MemoryKind, ...]:
    found = api.out("VkPhysicalDeviceMemoryProperties")
    api.lib.vkGetPhysicalDeviceMemoryProperties(handle, found)
    return tuple(
        MemoryKind(
            number,
            int(found.memoryTypes[number].heapIndex),
            int(found.memoryHeaps[found.memoryTypes[number].heapIndex].size),
            int(found.memoryTypes[number].propertyFlags),
        )
        for number in range(int(found.memoryTypeCount))
    )


def _extensions(api: Api, handle: Any) -> set[str]:
    list_them, null = api.lib.vkEnumerateDeviceExtensionProperties, api.ffi.NULL
    count = api.out("uint32_t")
    api.check(list_them(handle, null, count, null), "listing extensions")
    found = api.ffi.new("VkExtensionProperties[]", max(1, count[0]))
    api.check(list_them(handle, null, count, found), "listing extensions")
    return {api.string(found[i].extensionName) for i in range(count[0])}
