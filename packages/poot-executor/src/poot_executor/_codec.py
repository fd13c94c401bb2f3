"""Programs as bytes: records become arrays of msgpack, named by their class; nothing is executed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from poot_core import PootError
from poot_executor import _kernel_table, _planned, _program, _weights
from poot_kernelgen import requests

__all__ = ["decode", "encode"]

_RECORDS: tuple[Any, ...] = (
    _kernel_table.KernelRecord,
    _kernel_table.KernelTable,
    _planned.Temp,
    _program.AttentionClass,
    _program.Program,
    _program.ProgramLaunch,
    _program.State,
    _weights.Constant,
    _weights.Matrix,
    _weights.MatrixPart,
    _weights.Vector,
    requests.ArgmaxRequest,
    requests.AttendRequest,
    requests.ContractionRequest,
    requests.Epilogue,
    requests.GatherRequest,
    requests.KvLayout,
    requests.KvWriteRequest,
    requests.PackRequest,
    requests.RowInput,
    requests.RowNode,
    requests.RowOutput,
    requests.RowProgram,
    requests.WeightLayout,
)
_BY_NAME = {record.__name__: record for record in _RECORDS}
_FIELDS = {record: tuple(f.name for f in fields(record)) for record in _RECORDS}
_TAG = "!"  # no name of an operand's kind and no attribute's name starts with it


def encode(record: Any) -> bytes:
    """Return the bytes of a record of this package or of kernelgen's requests."""
    return msgspec.msgpack.encode(_plain(record))


def _plain(value: Any) -> Any:
    if isinstance(value, _planned.Operand):
        return (_TAG, value.kind, value.value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if is_dataclass(value):
        kind = type(value)
        return [_TAG + kind.__name__, *(_plain(getattr(value, n)) for n in _FIELDS[kind])]
    return value


def decode(data: bytes) -> Any:
    """Return the record that ``encode`` was given.

    Raises:
        PootError: If the bytes are no such record; the caller plans anew.
    """
    try:
        return _record(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError) as error:
        raise PootError(f"no program: {error}") from error


def _record(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    items: list[Any] = value
    head = items[0] if items else None
    if isinstance(head, str) and head.startswith(_TAG):
        if head == _TAG:
            return _planned.Operand(items[1], items[2])
        kind = _BY_NAME[head[1:]]
        names = _FIELDS[kind]
        given = dict(zip(names, map(_record, items[1:]), strict=True))
        return kind(**given)
    return tuple(map(_record, items))
