"""The least of the CUDA driver that the proof needs: load a binary, launch, time by events."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver as cu

__all__ = ["Cuda", "TensorMap"]


def check(result):
    """Return a call's values or raise its error."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


class TensorMap:
    """A two-axis bf16 array as TMA takes it, 128-byte swizzle, in 64-byte-aligned memory."""

    def __init__(self, address: int, shape: tuple[int, int], box: tuple[int, int]) -> None:
        self.memory = ctypes.create_string_buffer(192)
        self.address = -(-ctypes.addressof(self.memory) // 64) * 64
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        sizes, strides = (wide * 2)(shape[1], shape[0]), (wide * 1)(shape[1] * 2)
        boxes, ones = (narrow * 2)(box[1], box[0]), (narrow * 2)(1, 1)
        bfloat16, swizzle_128, promote_256 = 9, 3, 3
        found = encode(
            ctypes.c_void_p(self.address), bfloat16, 2, ctypes.c_void_p(address), sizes, strides,
            boxes, ones, 0, swizzle_128, promote_256, 0,
        )  # fmt: skip
        if found:
            raise RuntimeError(f"cuTensorMapEncodeTiled: {found}")


class Cuda:
    """One GPU, in the primary context that torch uses too."""

    def __init__(self) -> None:
        check(cu.cuInit(0))
        device = check(cu.cuDeviceGet(0))
        context = check(cu.cuDevicePrimaryCtxRetain(device))
        check(cu.cuCtxSetCurrent(context))
        count = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self.num_multiprocessors = check(cu.cuDeviceGetAttribute(count, device))
        self.stream = check(cu.cuStreamCreate(1))
        self.modules = []

    def load(self, cubin: bytes, name: str, shared_bytes: int):
        """Return a kernel of a binary."""
        module = check(cu.cuModuleLoadData(cubin))
        self.modules.append(module)
        function = check(cu.cuModuleGetFunction(module, name.encode()))
        limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(function, limit, shared_bytes))
        return function

    def launch(self, function, grid, threads: int, shared_bytes: int, arguments) -> None:
        """Launch with arguments that are ctypes values or tensor maps."""
        places = [a.address if isinstance(a, TensorMap) else ctypes.addressof(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(places))(*places)
        check(
            cu.cuLaunchKernel(
                function, *grid, threads, 1, 1, shared_bytes, self.stream,
                ctypes.addressof(pointers), 0,
            )
        )  # fmt: skip

    def synchronise(self) -> None:
        """Wait for the stream."""
        check(cu.cuStreamSynchronize(self.stream))

    def seconds(self, launches, repeats: int = 15, warm: int = 3) -> float:
        """Return the median seconds of one pass over ``launches`` as a graph."""
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cu.cuStreamBeginCapture(self.stream, mode))
        for launch in launches:
            launch()
        graph = check(cu.cuGraphInstantiate(check(cu.cuStreamEndCapture(self.stream)), 0))
        begin, end = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
        times = []
        for number in range(warm + repeats):
            check(cu.cuEventRecord(begin, self.stream))
            check(cu.cuGraphLaunch(graph, self.stream))
            check(cu.cuEventRecord(end, self.stream))
            check(cu.cuEventSynchronize(end))
            if number >= warm:
                times.append(check(cu.cuEventElapsedTime(begin, end)))
        return sorted(times)[repeats // 2] / 1e3
