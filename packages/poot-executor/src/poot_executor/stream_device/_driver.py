"""A driver at its binding's edge: every call is checked, every failure is a typed error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from poot_core import DeviceError

__all__ = ["Dialect", "DriverError", "StreamDriver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one vendor spells what all such drivers have: names of functions of equal arguments.

    Attributes:
        vendor: What the driver is called in messages.
        install: What is asked of the user where the driver is absent; a question.
        lost: Codes after which the device answers nothing any more.
        no_memory: The code of an allocation that does not fit.
        allocate: Of (bytes), returns an address.
        free: Of (address).
        memory_info: Returns bytes free and in all.
        fill: Of (address, byte, count, stream).
        copy_in: Of (address, host address, bytes, stream).
        copy_out: Of (host address, address, bytes, stream).
        pin: Of (bytes, flags), returns the address of host memory that the device reads.
        unpin: Of (host address).
        create_stream: Of (flags), returns a stream.
        destroy_stream: Of (stream).
        synchronize: Of (stream).
        create_event: Of (flags), returns an event.
        destroy_event: Of (event).
        record: Of (event, stream).
        await_event: Of (event).
        elapsed_ms: Of two events, returns milliseconds.
        begin_capture: Of (stream, mode).
        end_capture: Of (stream), returns a graph.
        instantiate: Of (graph, flags), returns an executable graph.
        destroy_graph: Of (graph).
        upload_graph: Of (executable graph, stream).
        launch_graph: Of (executable graph, stream).
        destroy_executable: Of (executable graph).
    """

    vendor: str
    install: str
    lost: frozenset[str]
    no_memory: str
    allocate: str
    free: str
    memory_info: str
    fill: str
    copy_in: str
    copy_out: str
    pin: str
    unpin: str
    create_stream: str
    destroy_stream: str
    synchronize: str
    create_event: str
    destroy_event: str
    record: str
    await_event: str
    elapsed_ms: str
    begin_capture: str
    end_capture: str
    instantiate: str
    destroy_graph: str
    upload_graph: str
    launch_graph: str
    destroy_executable: str


class DriverError(DeviceError):
    """A call of the driver failed.

    Attributes:
        call: Name of the function.
        code: Name of the result, such as ``CUDA_ERROR_OUT_OF_MEMORY``, or ``ABSENT``.
    """

    call: str
    code: str


class StreamDriver:
    """Calls functions of the driver and raises what they answer.

    Args:
        binding: The binding's module, or what stands in for it.
        dialect: How it is spelled.
        success: What a call answers first when it succeeded.
        capture_mode: How streams are captured: by the calls of one thread.

    Attributes:
        binding: As given.
        dialect: As given.
        capture_mode: As given.
        lost: The code of the error that ended the device, or an empty string.
    """

    def __init__(self, binding: Any, dialect: Dialect, *, success: Any, capture_mode: Any) -> None:
        self.binding = binding
        self.dialect = dialect
        self.capture_mode = capture_mode
        self.lost = ""
        self._success = success

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
        except RuntimeError as error:  # the library or a function of it is absent
            raise DriverError(
                f"{name} is not available: {error}; {self.dialect.install}",
                call=name,
                code="ABSENT",
            ) from error
        if result[0] != self._success:
            self._fail(name, result[0])
        return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]

    def _fail(self, name: str, code: Any) -> NoReturn:
        label = str(getattr(code, "name", code))
        if label in self.dialect.lost:
            self.lost = label
            raise DriverError(
                f"the device was lost: {name} answered {label}; nothing it held can be read any "
                "more, open it again",
                call=name,
                code=label,
            )
        raise DriverError(f"{name} answered {label}", call=name, code=label)
