"""An opened adapter: raw calls that make, fill, bind and run things, with typed errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError
from poot_wgpu_device._adapter import AdapterFacts
from poot_wgpu_device._native import ErrorSlots, Flags, Native, load_native

__all__ = ["Gpu", "GpuError", "Range"]

Bytes = NDArray[np.uint8]
Range = tuple[Any, int, int]
"""A buffer's handle, and the first byte and the number of bytes that are bound."""

_POLLS = 1000
_LOST = "Parent device is lost"  # what every call reports afterwards


class GpuError(Exception):
    """What the library reported of a call.

    Attributes:
        is_memory: Whether memory ran out.
    """

    def __init__(self, message: str, *, is_memory: bool = False) -> None:
        super().__init__(message)
        self.is_memory = is_memory


class Gpu:
    """A device of wgpu-native and its queue.

    Args:
        adapter: Where to open it; all of its limits are asked for.

    Attributes:
        native: The library.
        device: Raw handle.
        queue: Raw handle.
        errors: What callbacks reported.
        has_subgroups: Whether shaders may exchange among lanes.
        has_timestamps: Whether passes can be timed.

    Raises:
        DeviceError: If the adapter gives no device.
    """

    def __init__(self, adapter: AdapterFacts) -> None:
        self.native: Native = load_native()
        self.adapter = adapter
        self.errors = ErrorSlots()
        lib = self.native.lib
        wanted = (int(lib.WGPUNativeFeature_Subgroup), int(lib.WGPUFeatureName_TimestampQuery))
        self.has_subgroups, self.has_timestamps = (f in adapter.features for f in wanted)
        self._callbacks = _Callbacks(self.native, self.errors)
        self.device = self._request([f for f in wanted if f in adapter.features])
        self.queue = lib.wgpuDeviceGetQueue(self.device)
        self._listed = self.native.ffi.new("WGPUCommandBuffer[1]")
        self.is_open = True

    def _request(self, features: Sequence[int]) -> Any:
        ffi, lib = self.native.ffi, self.native.lib
        listed = ffi.new("WGPUFeatureName[]", list(features))
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(features), listed
        descriptor.requiredLimits = self.adapter.limits
        lost = descriptor.deviceLostCallbackInfo
        lost.mode, lost.callback = lib.WGPUCallbackMode_AllowSpontaneous, self._callbacks.lost
        descriptor.uncapturedErrorCallbackInfo.callback = self._callbacks.error
        found: list[Any] = []

        @ffi.callback("void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
        def done(status: int, device: Any, message: Any, _a: Any, _b: Any) -> None:
            found.append(device if status == 1 else self.native.text(message))

        info = ffi.new("WGPURequestDeviceCallbackInfo *")
        info.mode, info.callback = lib.WGPUCallbackMode_AllowSpontaneous, done
        lib.wgpuAdapterRequestDevice(self.adapter.handle, descriptor, info[0])
        if not found or isinstance(found[0], str):
            raise DeviceError(f"{self.adapter} gives no device: {found[0] if found else 'silent'}")
        return found[0]

    def check(self) -> None:
        """Raise what the last calls of this thread met.

        Raises:
            DeviceError: If the device was lost.
            GpuError: If a call was refused.
        """
        error = self.errors.take()
        if error is not None and _LOST in error[1]:
            self.errors.lost = error[1]
        if self.errors.lost is not None:
            why = " ".join(self.errors.lost.split())
            raise DeviceError(f"{self.adapter} was lost: {why}; open it again")
        if error is not None:
            kind, message = error
            is_memory = kind == self.native.lib.WGPUErrorType_OutOfMemory
            raise GpuError(message, is_memory=is_memory or "not enough memory" in message.lower())

    # ---- objects

    def buffer(self, nbytes: int, usage: int, label: str) -> Any:
        """Return a new zeroed buffer."""
        ffi, lib = self.native.ffi, self.native.lib
        descriptor = ffi.new("WGPUBufferDescriptor *")
        descriptor.label, _memory = self.native.view(label)
        descriptor.usage, descriptor.size = usage, nbytes
        found = lib.wgpuDeviceCreateBuffer(self.device, descriptor)
        self.check()
        return found

    def shader(self, code: str, label: str, *, is_checked: bool) -> Any:
        """Return a shader module; unless checked, its accesses and loops are trusted."""
        ffi, lib = self.native.ffi, self.native.lib
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        source.code, _code = self.native.view(code)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label, _label = self.native.view(label)
        if is_checked:
            found = lib.wgpuDeviceCreateShaderModule(self.device, descriptor)
        else:
            found = lib.wgpuDeviceCreateShaderModuleTrusted(self.device, descriptor, 0)
        self.check()
        return found

    def group_layout(self, storage: Sequence[bool]) -> Any:
        """Return the layout of a bind group: arguments, then arrays that are written or not."""
        ffi, lib = self.native.ffi, self.native.lib
        entries = ffi.new("WGPUBindGroupLayoutEntry[]", 1 + len(storage))
        for number, entry in enumerate(entries):
            entry.binding, entry.visibility = number, Flags.COMPUTE_STAGE
            kind = lib.WGPUBufferBindingType_Uniform
            if number:
                kind = lib.WGPUBufferBindingType_ReadOnlyStorage
                if storage[number - 1]:
                    kind = lib.WGPUBufferBindingType_Storage
            entry.buffer.type = kind
        descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
        descriptor.entryCount, descriptor.entries = len(entries), entries
        found = lib.wgpuDeviceCreateBindGroupLayout(self.device, descriptor)
        self.check()
        return found

    def pipeline_layout(self, group_layout: Any) -> Any:
        """Return the layout of pipelines with one bind group."""
        ffi, lib = self.native.ffi, self.native.lib
        layouts = ffi.new("WGPUBindGroupLayout[]", [group_layout])
        descriptor = ffi.new("WGPUPipelineLayoutDescriptor *")
        descriptor.bindGroupLayoutCount, descriptor.bindGroupLayouts = 1, layouts
        found = lib.wgpuDeviceCreatePipelineLayout(self.device, descriptor)
        self.check()
        return found

    def pipeline(self, module: Any, layout: Any, label: str) -> Any:
        """Return the pipeline of a shader's entry ``main``."""
        ffi, lib = self.native.ffi, self.native.lib
        descriptor = ffi.new("WGPUComputePipelineDescriptor *")
        descriptor.label, _label = self.native.view(label)
        descriptor.layout = layout
        descriptor.compute.module = module
        descriptor.compute.entryPoint, _name = self.native.view("main")
        found = lib.wgpuDeviceCreateComputePipeline(self.device, descriptor)
        self.check()
        return found

    def group(self, layout: Any, ranges: Sequence[Range]) -> Any:
        """Return a bind group of buffer ranges."""
        ffi, lib = self.native.ffi, self.native.lib
        entries = ffi.new("WGPUBindGroupEntry[]", len(ranges))
        for number, (buffer, offset, size) in enumerate(ranges):
            entry = entries[number]
            entry.binding, entry.buffer, entry.offset, entry.size = number, buffer, offset, size
        descriptor = ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout = layout
        descriptor.entryCount, descriptor.entries = len(ranges), entries
        found = lib.wgpuDeviceCreateBindGroup(self.device, descriptor)
        self.check()
        return found

    # ---- the queue

    def write(self, buffer: Any, offset: int, data: Bytes) -> None:
        """Queue a write of whole words; the data may be changed on return."""
        pointer = self.native.ffi.from_buffer(data)
        self.native.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, pointer, data.nbytes)
        self.check()

    def flush(self) -> None:
        """Queue what was written so far and wait for it."""
        self.check()
        self.native.lib.wgpuQueueSubmit(self.queue, 0, self.native.ffi.NULL)
        self.wait()

    def submit(self, encoder: Any) -> int:
        """Finish an encoder and queue it; returns its number, which ``wgpuDevicePoll`` takes.

        NOTE: an error must be found before queueing: there wgpu-native ends the process instead of
        reporting one.
        """
        lib = self.native.lib
        commands = lib.wgpuCommandEncoderFinish(encoder, self.native.ffi.NULL)
        lib.wgpuCommandEncoderRelease(encoder)
        try:
            self.check()
            self._listed[0] = commands
            number = int(lib.wgpuQueueSubmitForIndex(self.queue, 1, self._listed))
        finally:
            lib.wgpuCommandBufferRelease(commands)
        self.check()
        return number

    def encoder(self) -> Any:
        """Return a new command encoder."""
        return self.native.lib.wgpuDeviceCreateCommandEncoder(self.device, self.native.ffi.NULL)

    def wait(self) -> None:
        """Wait for all that was queued."""
        self.check()
        self.native.lib.wgpuDevicePoll(self.device, True, self.native.ffi.NULL)
        self.check()

    def read(self, staging: Any, nbytes: int) -> Bytes:
        """Return the first bytes of a mappable buffer, once all that was queued is done."""
        ffi, lib = self.native.ffi, self.native.lib
        self._callbacks.mapped = None
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode, info.callback = lib.WGPUCallbackMode_AllowProcessEvents, self._callbacks.map
        lib.wgpuBufferMapAsync(staging, Flags.MAP_MODE_READ, 0, nbytes, info[0])
        self.check()
        for _ in range(_POLLS):
            lib.wgpuDevicePoll(self.device, True, ffi.NULL)
            self.check()
            if self._callbacks.mapped is not None:
                break
        if self._callbacks.mapped != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(f"{self.adapter} does not give a result back")
        memory = lib.wgpuBufferGetConstMappedRange(staging, 0, nbytes)
        found = np.frombuffer(ffi.buffer(memory, nbytes), np.uint8).copy()
        lib.wgpuBufferUnmap(staging)
        return found

    def close(self) -> None:
        """Give the device back; closing twice is allowed."""
        if self.is_open:
            self.is_open = False
            self.native.lib.wgpuQueueRelease(self.queue)
            self.native.lib.wgpuDeviceDestroy(self.device)
            self.native.lib.wgpuDeviceRelease(self.device)


class _Callbacks:
    """Functions that the library calls; they must live as long as the device."""

    def __init__(self, native: Native, errors: ErrorSlots) -> None:
        ffi = native.ffi
        self.mapped: int | None = None

        @ffi.callback(
            "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)"
        )
        def lost(_device: Any, _reason: int, message: Any, _a: Any, _b: Any) -> None:
            errors.lost = native.text(message) or "the driver gives no reason"

        @ffi.callback("void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)")
        def error(_device: Any, kind: int, message: Any, _a: Any, _b: Any) -> None:
            errors.add(int(kind), native.text(message))

        @ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")
        def mapped(status: int, _message: Any, _a: Any, _b: Any) -> None:
            self.mapped = int(status)

        self.lost, self.error, self.map = lost, error, mapped
