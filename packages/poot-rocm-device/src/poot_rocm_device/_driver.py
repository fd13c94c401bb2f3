"""HIP at the binding's edge: every call is checked, every failure is a typed error."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

from poot_core import DeviceError

__all__ = ["Driver", "DriverError", "load_binding"]

# After these the device answers nothing any more.
_LOST = frozenset({
    "hipErrorIllegalAddress", "hipErrorLaunchFailure", "hipErrorLaunchTimeOut", "hipErrorAssert",
    "hipErrorECCNotCorrectable", "hipErrorContextIsDestroyed", "hipErrorDeinitialized",
    "hipErrorUnknown", "hipErrorRuntimeOther", "hipErrorIllegalState", "hipErrorPriorLaunchFailure",
})  # fmt: skip


class DriverError(DeviceError):
    """A call of HIP failed.

    Attributes:
        call: Name of the function.
        code: Name of the result, such as ``hipErrorOutOfMemory``, or ``ABSENT``.
    """

    call: str
    code: str


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


class Driver:
    """Calls functions of HIP and raises what they answer.

    Attributes:
        binding: The module ``hip.hip``, or what stands in for it.
        lost: The code of the error that ended the device, or an empty string.
    """

    def __init__(self, binding: Any | None = None) -> None:
        self.binding: Any = load_binding() if binding is None else binding
        self.lost = ""
        self._success = self.binding.hipError_t.hipSuccess

    def call(self, name: str, *arguments: Any) -> Any:
        """Return a call's value, a tuple of them, or None.

        Raises:
            DriverError: With ``call`` and ``code``.
            DeviceError: If the device was lost before.
        """
        if self.lost:
            raise DeviceError(
                f"the device was lost ({self.lost}); open it again, in a new process if that fails"
            )
        try:
            result = getattr(self.binding, name)(*arguments)
        except RuntimeError as error:  # libamdhip64 or a function of it is absent
            raise DriverError(
                f"{name} is not available: {error}; is ROCm's HIP runtime installed?",
                call=name,
                code="ABSENT",
            ) from error
        if result[0] != self._success:
            self._fail(name, result[0])
        return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]

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
