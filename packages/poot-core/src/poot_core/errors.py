"""The error tree: everything poot raises on purpose derives from PootError and the nearest builtin.

A message says what failed, what was got and expected, where, and what to do. Errors pickle, because
they cross the engine process boundary.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CheckpointError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "KernelSyntaxError",
    "OutOfMemoryError",
    "PootError",
    "RequestError",
    "SettingsError",
    "ShapeError",
    "TraceError",
    "UnsupportedError",
    "VerifyError",
]


class PootError(Exception):
    """Root of every error that poot raises on purpose.

    Keyword details given to a subclass are kept as attributes and survive pickling.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(kind: type[PootError], message: str, details: dict[str, Any]) -> PootError:
    return kind(message, **details)


class ShapeError(PootError, ValueError):
    """Shapes do not fit together; names the equation and the model line."""


class DTypeError(PootError, TypeError):
    """Dtypes do not fit together; names the equation and the model line."""


class TraceError(PootError, TypeError):
    """A traced value was used where a concrete one is needed."""


class KernelSyntaxError(PootError, SyntaxError):
    """A kernel uses Python that the importer refuses; carries path, line, column, excerpt."""

    def __str__(self) -> str:
        return self.message


class UnsupportedError(PootError, NotImplementedError):
    """Nobody has built this yet: names the operation, the target and what is supported."""


class CheckpointError(PootError, ValueError):
    """A checkpoint is malformed, truncated or unknown; names file, field, found and allowed."""


class DeviceError(PootError, RuntimeError):
    """A device is absent, was lost or refused an operation."""


class OutOfMemoryError(PootError, MemoryError):
    """A device allocation failed; carries bytes asked and bytes free."""


class CompileError(PootError, RuntimeError):
    """A code generator or toolchain failed; carries the target and the kept source's path."""


class VerifyError(PootError, AssertionError):
    """An internal invariant does not hold; always poot's fault. Names the pass and the equation."""


class RequestError(PootError, ValueError):
    """A client's request is refused.

    Attributes:
        status: HTTP status.
        field: What the client should change, or None.
        code: A word that programs can test, such as ``context_length_exceeded``, or None.
    """

    status: int
    field: str | None
    code: str | None = None

    def __init__(self, message: str, *, status: int = 400, field: str | None = None) -> None:
        super().__init__(message, status=status, field=field)


class SettingsError(PootError, ValueError):
    """A POOT_ environment variable holds a value that poot does not understand."""
