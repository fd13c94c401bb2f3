"""The CUDA driver at the binding's edge: every call is checked, every failure is a typed error."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

from poot_core import DeviceError

__all__ = ["Driver", "DriverError", "load_driver"]

# After these the context answers nothing any more.
_LOST = frozenset({
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_EXTERNAL_DEVICE", "CUDA_ERROR_UNKNOWN",
    "CUDA_ERROR_CONTAINED", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_TENSOR_MEMORY_LEAK",
})  # fmt: skip


class DriverError(DeviceError):
    """A call of the driver failed.

    Attributes:
        call: Name of the function.
        code: Name of the result, such as ``CUDA_ERROR_OUT_OF_MEMORY``.
    """

    call: str
    code: str


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


class Driver:
    """Calls functions of the driver and raises what they answer.

    Attributes:
        binding: The module ``cuda.bindings.driver``, or what stands in for it.
        lost: The code of the error that ended the context, or an empty string.
    """

    def __init__(self, binding: Any | None = None) -> None:
        self.binding: Any = load_driver() if binding is None else binding
        self.lost = ""
        self._success = self.binding.CUresult.CUDA_SUCCESS

    def call(self, name: str, *arguments: Any) -> Any:
        """Return a call's value, a tuple of them, or None.

        Raises:
            DriverError: With ``call`` and ``code``.
            DeviceError: If the device was lost before.
        """
        if self.lost:
            raise self._gone()
        try:
            result = getattr(self.binding, name)(*arguments)
        except RuntimeError as error:  # the library or a function of it is absent
            raise DriverError(
                f"{name} is not available: {error}; is an NVIDIA driver installed?",
                call=name,
                code="ABSENT",
            ) from error
        if result[0] != self._success:
            self._fail(name, result[0])
        return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]

    def _gone(self) -> DeviceError:
        return DeviceError(
            f"the device was lost ({self.lost}); open it again, in a new process if that fails"
        )

    def _fail(self, name: str, code: Any) -> NoReturn:
        label = str(getattr(code, "name", code))
        if label in _LOST:
            self.lost = label
            raise DriverError(
                f"the device was lost: {name} answered {label}; nothing it held can be read any "
                "more, open it again",
                call=name,
                code=label,
            )
        raise DriverError(f"{name} answered {label}", call=name, code=label)
