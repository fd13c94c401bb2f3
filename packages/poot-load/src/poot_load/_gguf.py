"""A bounded reader of GGUF headers (versions 2 and 3): metadata, tensor table, data bounds.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count, length, type and
offset is checked against the bytes that remain before anything of that size is made.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DType, UnsupportedError, bf16, f16, f32, f64, i8, i16, i32, i64
from poot_load._arrays import scan_strings
from poot_load._mapping import Cursor, MappedFile
from poot_load._refusal import refusal
from poot_quant import FORMATS, QuantFormat, format_by_ggml_type

__all__ = ["DENSE_TYPES", "GgufFile", "GgufTensor", "read_gguf"]

DENSE_TYPES: Mapping[int, DType] = MappingProxyType(
    {0: f32, 1: f16, 24: i8, 25: i16, 26: i32, 27: i64, 28: f64, 30: bf16}
)
"""ggml's numbers of the types that are not packed."""

_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_KEY_BYTES = 65535  # the specification's bound
_MAX_NAME_BYTES = 1024  # ggml stops at 64; some converters write longer ones
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 20
_MAX_NESTING = 4
_MAX_NESTED = 1 << 16  # arrays in arrays become Python objects, so they are few
_LITTLE_VERSIONS = (2, 3)
_BIG_VERSIONS = {int.from_bytes(v.to_bytes(4, "big"), "little") for v in (1, 2, 3)}

_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type -> struct code and NumPy dtype.
_SCALARS = {
    0: ("<B", "<u1"), 1: ("<b", "<i1"), 2: ("<H", "<u2"), 3: ("<h", "<i2"), 4: ("<I", "<u4"),
    5: ("<i", "<i4"), 6: ("<f", "<f4"), 7: ("<B", "<u1"), 10: ("<Q", "<u8"), 11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}  # fmt: skip
_VALUE_TYPES = "value types 0..12"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table.

    Attributes:
        name: Name as stored.
        shape: Row-major, outermost first (the file has it innermost first).
        dtype: Element type or packed format.
        offset: First byte in the file.
        num_bytes: Length.
        file: The file that holds it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType | QuantFormat
    offset: int
    num_bytes: int
    file: MappedFile

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The stored bytes: a view of the map."""
        return self.file.bytes[self.offset : self.offset + self.num_bytes]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header; ``file`` holds the map that arrays and tensors lie in.

    Attributes:
        file: The mapped file.
        version: 2 or 3.
        metadata: Values by key: int, float, bool, str; arrays as NumPy views of the map, as lazily
            decoded sequences of strings, or as lists of arrays.
        tensors: The tensor table, in file order.
        alignment: Of tensor data, in bytes.
    """

    file: MappedFile
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    alignment: int


def read_gguf(path: Path) -> GgufFile:
    """Map a file and parse its header.

    Raises:
        CheckpointError: If the file is no GGUF, is truncated, or says anything that cannot be.
    """
    file = MappedFile(path)
    try:
        return _Parser(file).parse()
    except BaseException:
        file.close()
        raise


class _Parser:
    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._path = file.path
        self._cursor = Cursor(file)
        self._nested = 0

    def parse(self) -> GgufFile:
        cursor = self._cursor
        magic = self._file.buffer[cursor.need(4, "magic") : 4]
        if magic != b"GGUF":
            raise refusal(self._path, "magic", magic, "b'GGUF'")
        version = cursor.u32("version")
        if version in _BIG_VERSIONS:
            raise refusal(self._path, "byte order", "big endian", "little endian; convert the file")
        if version not in _LITTLE_VERSIONS:
            raise refusal(self._path, "version", version, "2 or 3; convert the file again")
        # A tensor takes a name's length, a number of dimensions, a type and an offset, at least.
        num_tensors = cursor.count("tensor count", 24, _MAX_TENSORS)
        num_keys = cursor.count("metadata count", 13, _MAX_KEYS)
        metadata = self._metadata(num_keys)
        alignment = self._alignment(metadata)
        rows = [self._tensor_row(index) for index in range(num_tensors)]
        tensors = self._place(rows, alignment)
        return GgufFile(self._file, version, metadata, tensors, alignment)

    def _metadata(self, count: int) -> Mapping[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(count):
            key = self._cursor.text(f"metadata key {index}", _MAX_KEY_BYTES)
            if key in metadata:
                raise refusal(self._path, f"metadata key {index}", repr(key), "keys that differ")
            kind = self._cursor.u32(f"type of {key!r}")
            metadata[key] = self._value(key, kind)
        return MappingProxyType(metadata)

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._cursor.text(repr(key))
        if kind == _ARRAY:
            return self._array(key, 1)
        if (codes := _SCALARS.get(kind)) is None:
            raise refusal(self._path, f"type of {key!r}", kind, _VALUE_TYPES)
        layout = struct.Struct(codes[0])
        (value,) = layout.unpack_from(self._file.buffer, self._cursor.need(layout.size, repr(key)))
        if kind != _BOOL:
            return value
        if value > 1:
            raise refusal(self._path, repr(key), value, "0 or 1, as it is a bool")
        return bool(value)

    def _array(self, key: str, depth: int) -> Sequence[Any] | np.ndarray[Any, Any]:
        kind = self._cursor.u32(f"element type of {key!r}")
        field = f"length of {key!r}"
        if kind == _STRING:
            count = self._cursor.count(field, 8)
            return scan_strings(self._file, self._cursor, key, count)
        if kind == _ARRAY:
            return self._arrays(key, depth, self._cursor.count(field, 12))
        if (codes := _SCALARS.get(kind)) is None:
            raise refusal(self._path, f"element type of {key!r}", kind, _VALUE_TYPES)
        dtype = np.dtype(codes[1])
        count = self._cursor.count(field, dtype.itemsize)
        start = self._cursor.need(count * dtype.itemsize, repr(key))
        values = self._file.bytes[start : start + count * dtype.itemsize].view(dtype)
        if kind != _BOOL:
            return values
        if count and int(values.max()) > 1:
            raise refusal(self._path, repr(key), int(values.max()), "0 or 1, as they are bools")
        return values.view(np.bool_)

    def _arrays(self, key: str, depth: int, count: int) -> list[Any]:
        if depth >= _MAX_NESTING:
            allowed = f"at most {_MAX_NESTING} deep"
            raise refusal(self._path, repr(key), f"arrays nested {depth + 1} deep", allowed)
        self._nested += count
        if self._nested > _MAX_NESTED:
            allowed = f"at most {_MAX_NESTED} in a file"
            raise refusal(self._path, repr(key), f"{self._nested} nested arrays", allowed)
        return [self._array(f"{key}[{index}]", depth + 1) for index in range(count)]

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        valid = type(alignment) is int and 0 < alignment <= _MAX_ALIGNMENT
        if not valid or alignment & (alignment - 1):
            allowed = f"a power of two up to {_MAX_ALIGNMENT}"
            raise refusal(self._path, "'general.alignment'", repr(alignment), allowed)
        return alignment

    def _tensor_row(self, index: int) -> GgufTensor:
        """Read one row; the offset is still relative to the data section."""
        cursor = self._cursor
        name = cursor.text(f"name of tensor {index}", _MAX_NAME_BYTES)
        field = f"tensor {name!r}"
        num_dims = cursor.u32(f"{field}: dimensions")
        if num_dims > _MAX_DIMS:
            raise refusal(self._path, f"{field}: dimensions", num_dims, f"0..{_MAX_DIMS}")
        dims = [cursor.u64(f"{field}: dimension {axis}") for axis in range(num_dims)]
        for axis, size in enumerate(dims):
            # Even one bit an element could not fit more than this.
            if not 0 < size <= 8 * self._file.size:
                allowed = f"1..{8 * self._file.size}"
                raise refusal(self._path, f"{field}: dimension {axis}", size, allowed)
        dtype = self._type(field, cursor.u32(f"{field}: type"))
        offset = cursor.u64(f"{field}: offset")
        size = self._size(field, dims, dtype)
        return GgufTensor(name, tuple(reversed(dims)), dtype, offset, size, self._file)

    def _type(self, field: str, number: int) -> DType | QuantFormat:
        if (dense := DENSE_TYPES.get(number)) is not None:
            return dense
        try:
            return format_by_ggml_type(number)
        except UnsupportedError:
            known = {kind: dtype.name for kind, dtype in DENSE_TYPES.items()}
            known |= {fmt.ggml_type: fmt.name for fmt in FORMATS.values()}
            allowed = "a ggml type that poot reads: " + ", ".join(
                f"{kind} {name}" for kind, name in sorted(known.items())
            )
            raise refusal(self._path, f"{field}: type", number, allowed) from None

    def _size(self, field: str, dims: list[int], dtype: DType | QuantFormat) -> int:
        if isinstance(dtype, DType):
            return prod(dims) * dtype.itemsize
        row = dims[0] if dims else 1
        if row % dtype.block_elements:
            allowed = f"a multiple of {dtype.block_elements}, the block of {dtype.name}"
            raise refusal(self._path, f"{field}: row length", row, allowed)
        return dtype.num_bytes(row) * prod(dims[1:])

    def _place(self, rows: list[GgufTensor], alignment: int) -> Mapping[str, GgufTensor]:
        """Check offsets, bounds and overlaps, and return the rows with offsets in the file."""
        start = -(-self._cursor.offset // alignment) * alignment
        room = max(0, self._file.size - start)
        tensors: dict[str, GgufTensor] = {}
        for row in rows:
            field = f"tensor {row.name!r}"
            if row.name in tensors:
                raise refusal(self._path, "tensor name", repr(row.name), "names that differ")
            if row.offset % alignment:
                allowed = f"a multiple of the alignment {alignment}"
                raise refusal(self._path, f"{field}: offset", row.offset, allowed)
            if row.offset + row.num_bytes > room:
                found = f"{row.offset}..{row.offset + row.num_bytes}"
                allowed = f"within the {room} bytes of tensor data; the file may be truncated"
                raise refusal(self._path, f"{field}: bytes", found, allowed)
            tensors[row.name] = replace(row, offset=start + row.offset)
        self._refuse_overlap(tensors)
        return MappingProxyType(tensors)

    def _refuse_overlap(self, tensors: Mapping[str, GgufTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda row: row.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.num_bytes > after.offset:
                end = before.offset + before.num_bytes
                allowed = f"at or after {end}, where {before.name!r} ends"
                field = f"tensor {after.name!r}: offset in file"
                raise refusal(self._path, field, after.offset, allowed)
