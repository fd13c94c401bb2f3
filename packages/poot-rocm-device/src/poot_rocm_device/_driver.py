"""HIP at the binding's edge: how it spells what stream devices share."""

from __future__ import annotations

import importlib
from typing import Any

from poot_core import DeviceError
from poot_executor.stream_device import Dialect, StreamDriver

__all__ = ["Driver", "load_binding"]

_HIP = Dialect(
    vendor="HIP",
    install="is ROCm's HIP runtime installed?",
    # After these the device answers nothing any more.
    lost=frozenset({
        "hipErrorIllegalAddress", "hipErrorLaunchFailure", "hipErrorLaunchTimeOut", "hipErrorAssert",
        "hipErrorECCNotCorrectable", "hipErrorContextIsDestroyed", "hipErrorDeinitialized",
        "hipErrorUnknown", "hipErrorRuntimeOther", "hipErrorIllegalState", "hipErrorPriorLaunchFailure",
    }),
    no_memory="hipErrorOutOfMemory",
    allocate="hipMalloc",
    free="hipFree",
    memory_info="hipMemGetInfo",
    fill="hipMemsetAsync",
    copy_in="hipMemcpyHtoDAsync",
    copy_out="hipMemcpyDtoHAsync",
    pin="hipHostMalloc",
    unpin="hipHostFree",
    create_stream="hipStreamCreateWithFlags",
    destroy_stream="hipStreamDestroy",
    synchronize="hipStreamSynchronize",
    create_event="hipEventCreateWithFlags",
    destroy_event="hipEventDestroy",
    record="hipEventRecord",
    await_event="hipEventSynchronize",
    elapsed_ms="hipEventElapsedTime",
    begin_capture="hipStreamBeginCapture",
    end_capture="hipStreamEndCapture",
    instantiate="hipGraphInstantiateWithFlags",
    destroy_graph="hipGraphDestroy",
    upload_graph="hipGraphUpload",
    launch_graph="hipGraphLaunch",
    destroy_executable="hipGraphExecDestroy",
)  # fmt: skip


def load_binding() -> Any:
    """Return the binding's module of the HIP runtime.

    Raises:
        DeviceError: If the binding is not installed.
    """
    try:
        return importlib.import_module("hip").hip
    except (ImportError, AttributeError) as error:
        raise DeviceError(
            f"the HIP binding cannot be imported ({error}); install hip-python, which has wheels "
            "for Linux on x86-64"
        ) from error


class Driver(StreamDriver):
    """Calls functions of HIP and raises what they answer.

    Args:
        binding: What stands in for the module ``hip.hip``.
    """

    def __init__(self, binding: Any | None = None) -> None:
        found: Any = load_binding() if binding is None else binding
        mode = found.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        super().__init__(found, _HIP, success=found.hipError_t.hipSuccess, capture_mode=mode)
