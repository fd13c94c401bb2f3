"""A bounded reader of safetensors files and of the index that ties shards together.

The format: https://github.com/huggingface/safetensors#format. A 64-bit length, a JSON header, data
without gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from poot_core import (  # fmt: skip
    DType,
    bf16,
    boolean,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from poot_load._json import parse_object, read_object
from poot_load._mapping import Cursor, MappedFile
from poot_load._refusal import refusal
from poot_load._store import StoredTensor, TensorInfo

__all__ = ["read_directory", "read_safetensors"]

_DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        "F64": f64, "F32": f32, "F16": f16, "BF16": bf16, "F8_E4M3": f8e4m3, "F8_E5M2": f8e5m2,
        "I64": i64, "I32": i32, "I16": i16, "I8": i8,
        "U64": u64, "U32": u32, "U16": u16, "U8": u8, "BOOL": boolean,
    }
)  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # the format's own bound
_MAX_DIMS = 16
_MAX_SHARDS = 4096
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_safetensors(path: Path) -> list[StoredTensor]:
    """Map a file and return its tensors, in the order of their data.

    Raises:
        CheckpointError: If the file is malformed or truncated.
    """
    file = MappedFile(path)
    try:
        return _parse(file)
    except BaseException:
        file.close()
        raise


def read_directory(path: Path) -> list[StoredTensor]:
    """Return the tensors of a directory: those of its index, or of its only file.

    Raises:
        CheckpointError: If there is neither, or a file is malformed, or index and shards disagree.
    """
    index = read_object(path / _INDEX)
    if index is not None:
        return _read_indexed(path / _INDEX, index)
    if (path / _SINGLE).exists():
        return read_safetensors(path / _SINGLE)
    found = sorted(path.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:8]) or "no safetensors file"
        allowed = f"{_SINGLE}, {_INDEX} or one .safetensors file"
        raise refusal(path, "directory", names, allowed)
    return read_safetensors(found[0])


def _parse(file: MappedFile) -> list[StoredTensor]:
    cursor = Cursor(file)
    size = cursor.count("header length", 1, _MAX_HEADER_BYTES)
    start = cursor.need(size, "header")
    header = parse_object(file.path, "header", file.buffer[start : start + size])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise refusal(file.path, "'__metadata__'", repr(metadata), "an object")
    room = file.size - cursor.offset
    tensors = [_tensor(file, name, entry, cursor.offset, room) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.info.nbytes))
    end = cursor.offset
    for tensor in tensors:
        if tensor.offset != end:
            field = f"tensor {tensor.info.name!r}: begin of data"
            expected = f"{end - cursor.offset}, where the data before it ends"
            raise refusal(file.path, field, tensor.offset - cursor.offset, expected)
        end += tensor.info.nbytes
    if end != file.size:
        raise refusal(file.path, "file size", file.size, f"{end}, where the last tensor ends")
    return tensors


def _tensor(file: MappedFile, name: str, entry: object, start: int, room: int) -> StoredTensor:
    path, field = file.path, f"tensor {name!r}"
    if not isinstance(entry, dict):
        raise refusal(path, field, repr(entry), "an object")
    members = cast("dict[str, Any]", entry)
    if set(members) != {"dtype", "shape", "data_offsets"}:
        raise refusal(path, field, sorted(members), "dtype, shape and data_offsets")
    code = members["dtype"]
    dtype = _DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise refusal(path, f"{field}: dtype", repr(code), ", ".join(_DTYPES))
    shape = _naturals(path, f"{field}: shape", members["shape"])
    if len(shape) > _MAX_DIMS:
        raise refusal(path, f"{field}: dimensions", len(shape), f"0..{_MAX_DIMS}")
    offsets = _naturals(path, f"{field}: data_offsets", members["data_offsets"])
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        allowed = f"begin <= end <= {room}, the bytes of data; the file may be truncated"
        raise refusal(path, f"{field}: data_offsets", list(offsets), allowed)
    begin, end = offsets
    if end - begin != prod(shape) * dtype.itemsize:
        allowed = f"{prod(shape) * dtype.itemsize}, for {code} of shape {list(shape)}"
        raise refusal(path, f"{field}: bytes", end - begin, allowed)
    return StoredTensor(TensorInfo(name, shape, dtype, end - begin, path), file, start + begin)


def _naturals(path: Path, field: str, value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        items = cast("list[object]", value)
        if len(items) <= 4 * _MAX_DIMS and all(type(i) is int and 0 <= i < 1 << 63 for i in items):
            return tuple(cast("list[int]", items))
    raise refusal(path, field, repr(value), "a short list of integers 0..2^63-1")


def _read_indexed(path: Path, index: dict[str, Any]) -> list[StoredTensor]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise refusal(
            path, "'weight_map'", repr(weight_map), "an object of file names by tensor name"
        )
    placed = cast("dict[str, object]", weight_map)
    shards: dict[str, dict[str, StoredTensor]] = {}
    try:
        for name, shard in placed.items():
            _check_shard_name(path, name, shard)
            shards.setdefault(str(shard), {})
        if len(shards) > _MAX_SHARDS:
            raise refusal(path, "number of shards", len(shards), f"1..{_MAX_SHARDS}")
        for shard, tensors in shards.items():
            for tensor in read_safetensors(path.with_name(shard)):
                tensors[tensor.info.name] = tensor
        out: list[StoredTensor] = []
        for name, shard in placed.items():
            if (found := shards[str(shard)].get(name)) is None:
                raise refusal(path.with_name(str(shard)), "tensors", f"without {name!r}",
                              f"what {path.name} promises")  # fmt: skip
            out.append(found)
    except BaseException:
        for tensors in shards.values():
            for tensor in tensors.values():
                tensor.file.close()
        raise
    return out


def _check_shard_name(path: Path, name: str, shard: object) -> None:
    plain = isinstance(shard, str) and Path(shard).name == shard and "\\" not in shard
    if not plain or not str(shard).endswith(".safetensors"):
        allowed = "a .safetensors file beside the index"
        raise refusal(path, f"file of tensor {name!r}", repr(shard), allowed)
