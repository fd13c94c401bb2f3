"""Programs as bytes: records become arrays of JSON, named by their class; nothing is executed.

Layout: 8 bytes with the length of the JSON text, the text, then all byte strings of the records,
which the text refers to by offset and length. (JSON from the standard library: importing a codec
package costs a warm start more than it saves.)
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

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
    requests.CountRequest,
    requests.Epilogue,
    requests.FeedRequest,
    requests.GatherRequest,
    requests.KvLayout,
    requests.PackRequest,
    requests.RowInput,
    requests.RowNode,
    requests.RowOutput,
    requests.RowProgram,
    requests.SampleRequest,
    requests.WeightLayout,
)
_BY_NAME = {record.__name__: record for record in _RECORDS}
_FIELDS = {record: tuple(f.name for f in fields(record)) for record in _RECORDS}
_TAG = "!"  # no name of an operand's kind and no attribute's name starts with it
_BYTES = "!bytes"


def encode(record: Any) -> bytes:
    """Return the bytes of a record of this package or of kernelgen's requests."""
    blobs = bytearray()
    text = json.dumps(_plain(record, blobs), separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + blobs


def _plain(value: Any, blobs: bytearray) -> Any:
    if isinstance(value, _planned.Operand):
        return (_TAG, value.kind, value.value)
    if isinstance(value, bytes):
        blobs += value
        return (_BYTES, len(blobs) - len(value), len(value))
    if isinstance(value, tuple | list):
        return [_plain(item, blobs) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if is_dataclass(value):
        kind = type(value)
        return [_TAG + kind.__name__, *(_plain(getattr(value, n), blobs) for n in _FIELDS[kind])]
    return value


def decode(data: bytes) -> Any:
    """Return the record that ``encode`` was given.

    Raises:
        PootError: If the bytes are no such record; the caller plans anew.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        return _record(json.loads(data[8:end]), data[end:])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PootError(f"no program: {error}") from error


def _record(value: Any, blobs: bytes) -> Any:
    if not isinstance(value, list):
        return value
    items: list[Any] = value
    head = items[0] if items else None
    if not isinstance(head, str) or not head.startswith(_TAG):
        return tuple([_record(item, blobs) for item in items])
    if head == _TAG:
        return _planned.Operand(items[1], items[2])
    if head == _BYTES:
        _, offset, length = items
        if offset + length > len(blobs):
            raise ValueError("bytes are missing")
        return blobs[offset : offset + length]
    kind = _BY_NAME[head[1:]]
    names = _FIELDS[kind]
    given = [_record(item, blobs) for item in items[1:]]
    return kind(**dict(zip(names, given, strict=True)))
