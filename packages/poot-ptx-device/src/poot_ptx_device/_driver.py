"""The CUDA driver at the binding's edge: how it spells what stream devices share."""

from __future__ import annotations

import importlib
from typing import Any

from poot_core import DeviceError
from poot_executor.stream_device import Dialect, StreamDriver

__all__ = ["Driver", "load_driver"]

_CUDA = Dialect(
    vendor="the driver",
    install="is an NVIDIA driver installed?",
    # After these the context answers nothing any more.
    lost=frozenset({
        "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_EXTERNAL_DEVICE", "CUDA_ERROR_UNKNOWN",
        "CUDA_ERROR_CONTAINED", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    }),
    no_memory="CUDA_ERROR_OUT_OF_MEMORY",
    allocate="cuMemAlloc",
    free="cuMemFree",
    memory_info="cuMemGetInfo",
    fill="cuMemsetD8Async",
    copy_in="cuMemcpyHtoDAsync",
    copy_out="cuMemcpyDtoHAsync",
    pin="cuMemHostAlloc",
    unpin="cuMemFreeHost",
    create_stream="cuStreamCreate",
    destroy_stream="cuStreamDestroy",
    synchronize="cuStreamSynchronize",
    create_event="cuEventCreate",
    destroy_event="cuEventDestroy",
    record="cuEventRecord",
    await_event="cuEventSynchronize",
    elapsed_ms="cuEventElapsedTime",
    begin_capture="cuStreamBeginCapture",
    end_capture="cuStreamEndCapture",
    instantiate="cuGraphInstantiate",
    destroy_graph="cuGraphDestroy",
    upload_graph="cuGraphUpload",
    launch_graph="cuGraphLaunch",
    destroy_executable="cuGraphExecDestroy",
)  # fmt: skip


def load_driver() -> Any:
    """Return the binding's driver module.

    Raises:
        DeviceError: If the binding is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(
            f"the CUDA binding cannot be imported ({error}); install cuda-bindings"
        ) from error


class Driver(StreamDriver):
    """Calls functions of the CUDA driver and raises what they answer.

    Args:
        binding: What stands in for the module ``cuda.bindings.driver``.
    """

    def __init__(self, binding: Any | None = None) -> None:
        found: Any = load_driver() if binding is None else binding
        mode = found.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        super().__init__(found, _CUDA, success=found.CUresult.CUDA_SUCCESS, capture_mode=mode)
