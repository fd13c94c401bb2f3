"""GGUF files: what they say is read exactly, what they cannot say is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from poot_load_fakes import Gguf, llama

from poot_core import CheckpointError
from poot_load import open_checkpoint
from poot_load._arrays import StringArray
from poot_load._gguf import read_gguf
from poot_quant import FORMATS, random_blocks

SCALARS: list[tuple[str, Any]] = [
    ("u8", 200), ("i8", -100), ("u16", 60000), ("i16", -30000), ("u32", 4_000_000_000),
    ("i32", -2_000_000_000), ("f32", 0.15625), ("bool", True), ("str", "héllo ▁"),
    ("u64", 2**64 - 1), ("i64", -(2**63)), ("f64", 0.1),
]  # fmt: skip


@pytest.mark.parametrize("version", [2, 3])
def test_every_scalar_type(tmp_path: Path, version: int) -> None:
    file = Gguf(version=version, metadata={f"k.{kind}": (kind, v) for kind, v in SCALARS})
    gguf = read_gguf(file.write(tmp_path / "a.gguf"))
    assert gguf.version == version
    assert dict(gguf.metadata) == {f"k.{kind}": v for kind, v in SCALARS}
    assert gguf.metadata["k.bool"] is True


def test_every_array_type(tmp_path: Path) -> None:
    file = Gguf(metadata={f"k.{kind}": ("arr", (kind, [v, v])) for kind, v in SCALARS})
    metadata = read_gguf(file.write(tmp_path / "a.gguf")).metadata
    for kind, expected in SCALARS:
        assert list(metadata[f"k.{kind}"]) == [expected, expected]
    assert metadata["k.bool"].dtype == np.bool_
    assert metadata["k.u64"].dtype == np.uint64


def test_nested_and_empty_arrays(tmp_path: Path) -> None:
    inner = ("arr", ("arr", [("u8", [1, 2]), ("str", ["x", ""])]))
    file = Gguf(metadata={"n": inner, "e": ("arr", ("str", [])), "z": ("arr", ("f32", []))})
    metadata = read_gguf(file.write(tmp_path / "a.gguf")).metadata
    assert [list(part) for part in metadata["n"]] == [[1, 2], ["x", ""]]
    assert list(metadata["e"]) == []
    assert metadata["e"].to_list() == []
    assert len(metadata["z"]) == 0


@pytest.mark.parametrize("long_at", [None, 0, 3, 5000, 9999])
def test_string_arrays_are_lazy_and_exact(tmp_path: Path, long_at: int | None) -> None:
    rng = np.random.default_rng(1)
    texts = [
        "".join(chr(c) for c in rng.integers(33, 900, rng.integers(0, 9))) for _ in range(9999)
    ]
    texts.append("\0 holds a NUL")
    if long_at is not None:
        texts[long_at] = "é" * 300
    file = Gguf(metadata={"t": ("arr", ("str", texts)), "after": ("u32", 7)})
    metadata = read_gguf(file.write(tmp_path / "a.gguf")).metadata
    array = metadata["t"]
    assert isinstance(array, StringArray)
    assert metadata["after"] == 7
    assert len(array) == 10_000
    assert list(array) == texts
    assert array.to_list() == texts
    assert array[9999] == texts[9999]
    assert array[2:5] == texts[2:5]
    assert array.encoded(3) == texts[3].encode()
    assert [int(n) for n in array.lengths[:50]] == [len(t.encode()) for t in texts[:50]]


DENSE = {
    0: np.dtype(np.float32), 1: np.dtype(np.float16), 24: np.dtype(np.int8), 25: np.dtype(np.int16),
    26: np.dtype(np.int32), 27: np.dtype(np.int64), 28: np.dtype(np.float64),
    30: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize("alignment", [32, 8, 256])
def test_every_tensor_type(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(2)
    file = llama()
    file.alignment = alignment
    names = [name for name in file.tensors if name.startswith("blk.0") and "norm" not in name]
    expected = {}
    for index, (number, dtype) in enumerate(DENSE.items()):
        name = names[index % len(names)].replace("blk.0", f"blk.{index // len(names)}")
        expected[name] = (rng.standard_normal((3, 5)) * 50).astype(dtype)
        file.add(name, expected[name], number)
    gguf = read_gguf(file.write(tmp_path / "a.gguf"))
    assert gguf.alignment == alignment
    for name, array in expected.items():
        tensor = gguf.tensors[name]
        assert tensor.shape == (3, 5)
        assert tensor.offset % alignment == 0
        found = tensor.bytes.view(array.dtype).reshape(3, 5)
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("name", FORMATS)
def test_packed_tensors_stay_packed(tmp_path: Path, name: str) -> None:
    fmt = FORMATS[name]
    raw = random_blocks(fmt, (3, 512), np.random.default_rng(3))
    file = llama()
    file.add_raw("output.weight", (3, 512), fmt.ggml_type, raw.tobytes())
    with open_checkpoint(file.write(tmp_path / "a.gguf")) as checkpoint:
        info = checkpoint.weights.info("lm_head.weight")
        assert (info.dtype, info.shape, info.nbytes) == (fmt, (3, 512), raw.nbytes)
        assert info.is_packed
        np.testing.assert_array_equal(checkpoint.weights.rows("lm_head.weight"), raw)
        assert checkpoint.weights.array("lm_head.weight").dtype == np.float32


def test_split_files_are_one_checkpoint(tmp_path: Path) -> None:
    whole = llama()
    names = list(whole.tensors)
    for index in range(3):
        part = Gguf(metadata=dict(whole.metadata) if index == 0 else {})
        part.metadata |= {"split.no": ("u16", index), "split.count": ("u16", 3)}
        part.metadata["split.tensors.count"] = ("i32", len(names))
        part.tensors = {name: whole.tensors[name] for name in names[index::3]}
        part.write(tmp_path / f"m-{index + 1:05}-of-00003.gguf")
    whole.write(tmp_path / "whole.gguf")
    with open_checkpoint(tmp_path / "whole.gguf") as one:
        for entry in ("m-00001-of-00003.gguf", "m-00003-of-00003.gguf"):
            with open_checkpoint(tmp_path / entry) as split:
                assert split.config == one.config
                assert set(split.weights.names()) == set(one.weights.names())
                for name in one.weights.names():
                    np.testing.assert_array_equal(one.weights.raw(name), split.weights.raw(name))
    (tmp_path / "m-00002-of-00003.gguf").rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf: file is absent"):
        open_checkpoint(tmp_path / "m-00001-of-00003.gguf")


def test_a_directory_of_one_gguf_stands_for_it(tmp_path: Path) -> None:
    llama().write(tmp_path / "a.gguf")
    assert open_checkpoint(tmp_path).file_format == "gguf"
    llama().write(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"several models: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)


def _lies() -> dict[str, tuple[Gguf, str]]:
    huge = 2**63
    lies: dict[str, tuple[Gguf, str]] = {}

    def lie(name: str, pattern: str) -> Gguf:
        file = llama()
        lies[name] = (file, pattern)
        return file

    lie("tensor count", "tensor count is 9223372036854775808").num_tensors = huge
    lie("tensor count off by one", "tensor").num_tensors = 21
    lie("key count", "metadata count is 9223372036854775808").num_keys = huge
    lie("version", "version is 7").version = 7
    lie("version 1", "version is 1").version = 1
    lie("big endian", "big endian").version = 0x03000000
    lie("alignment", "general.alignment' is 24").metadata["general.alignment"] = ("u32", 24)
    lie("alignment zero", "alignment' is 0").metadata["general.alignment"] = ("u32", 0)
    lie("alignment text", "alignment' is 'x'").metadata["general.alignment"] = ("str", "x")
    lie("offset", "offset is 3;").offsets["blk.0.attn_q.weight"] = 3
    lie("far offset", "truncated").offsets["blk.0.attn_q.weight"] = huge
    lie("overlap", "ends").offsets["blk.0.attn_q.weight"] = 0
    file = lie("dimension", "dimension 0 is 9223372036854775808")
    file.tensors["output.weight"] = ((huge,), 0, b"")
    file = lie("product of dimensions", "truncated")
    file.tensors["output.weight"] = ((60_000, 60_000, 60_000, 60_000), 0, b"")
    file = lie("zero dimension", "dimension 1 is 0")
    file.tensors["output.weight"] = ((0, 4), 0, b"")
    file = lie("five dimensions", "dimensions is 5")
    file.tensors["output.weight"] = ((1, 1, 1, 1, 1), 0, b"1234")
    file = lie("type", "type is 4;.*12 Q4_K")
    file.tensors["output.weight"] = ((1, 1), 4, b"1234")
    file = lie("row of no whole blocks", "row length is 33; allowed: a multiple of 32")
    file.tensors["output.weight"] = ((1, 33), 2, bytes(36))
    file = lie("unknown tensor", "'blk.0.strange.weight'")
    file.add("blk.0.strange.weight", np.ones((2, 2), np.float32))
    file = lie("layer that is not there", "layers 0..1")
    file.add("blk.2.attn_q.weight", np.ones((2, 2), np.float32))
    lie("architecture", "'nothing'; allowed: one of bloom").metadata["general.architecture"] = (
        "str",
        "nothing",
    )
    del lie("no architecture", "architecture' is None").metadata["general.architecture"]
    del lie("missing key", "without 'llama.block_count'").metadata["llama.block_count"]
    lie("layers", "llama.block_count is 4").metadata["llama.block_count"] = ("u64", 4 * 10**9)
    lie("layers text", "block_count is 'x'").metadata["llama.block_count"] = ("str", "x")
    lie("heads", "head_count is 0").metadata["llama.attention.head_count"] = ("u32", 0)
    lie("unequal heads", "head_count_kv is ").metadata["llama.attention.head_count_kv"] = (
        "arr",
        ("u32", [1, 2]),
    )
    lie("epsilon", "epsilon is nan").metadata["llama.attention.layer_norm_rms_epsilon"] = (
        "f32",
        float("nan"),
    )
    lie("unknown key", "'llama.attention.novelty'").metadata["llama.attention.novelty"] = (
        "u32",
        1,
    )
    lie("experts", "expert_count is 8").metadata["llama.expert_count"] = ("u32", 8)
    lie("experts array", "expert_count").metadata["llama.expert_count"] = ("arr", ("u32", [8, 1]))
    lie("rope", "scaling type is 'spiral'").metadata["llama.rope.scaling.type"] = ("str", "spiral")
    lie("split", "'split.count' is 2").metadata["split.count"] = ("u16", 2)
    lie("bool", "is 2; allowed: 0 or 1").metadata["k"] = ("bool", 2)
    lie("bools", "is 9; allowed: 0 or 1").metadata["k"] = ("arr", ("bool", [1, 9]))
    deep: Any = ("u8", [1])
    for _ in range(6):
        deep = ("arr", [deep])
    lie("depth", "nested 5 deep").metadata["k"] = ("arr", deep)
    wide = ("arr", ("arr", [("u8", [])] * 70_000))
    lie("width", "nested arrays; allowed: at most 65536").metadata["k"] = wide
    return lies


LIES = _lies()


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(tmp_path: Path, name: str) -> None:
    file, pattern = LIES[name]
    path = file.write(tmp_path / "a.gguf")
    with pytest.raises(CheckpointError, match=pattern) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert caught.value.details["field"]
    assert caught.value.details["allowed"]


def _key(name: bytes, kind: int, rest: bytes) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    return head + struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + rest


BROKEN = {
    "empty": (b"", "file size is 0"),
    "magic": (b"GGUX" + bytes(40), "magic is b'GGUX'"),
    "short": (b"GGUF\x03", "version is 4 bytes"),
    "long key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(20), "length of metadata"),
    "key of no text": (_key(b"\xff\xfe", 4, bytes(8)), "UTF-8"),
    "value type": (_key(b"k", 13, bytes(8)), "type of 'k' is 13"),
    "element type": (_key(b"k", 9, struct.pack("<IQ", 99, 0)), "element type of 'k' is 99"),
    "string length": (_key(b"k", 8, struct.pack("<Q", 2**63)), "length of 'k' is 92233720368547"),
    "array length": (_key(b"k", 9, struct.pack("<IQ", 4, 2**61)), "length of 'k' is 23058430"),
    "strings": (_key(b"k", 9, struct.pack("<IQQ", 8, 1, 2**63)), r"length of k\[0\]"),
    "many strings": (_key(b"k", 9, struct.pack("<IQ", 8, 2**40) + bytes(64)), "length of 'k'"),
    "nested": (_key(b"k", 9, struct.pack("<IQIQ", 9, 1, 4, 2**62)), r"length of 'k\[0\]'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(tmp_path: Path, name: str) -> None:
    data, pattern = BROKEN[name]
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=pattern):
        open_checkpoint(path)


def test_duplicates_are_refused(tmp_path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 1)
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + key + key)
    with pytest.raises(CheckpointError, match="keys that differ"):
        open_checkpoint(tmp_path / "a.gguf")
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 1, 24, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + tensor + tensor
    (tmp_path / "b.gguf").write_bytes(data + bytes(96))
    with pytest.raises(CheckpointError, match="names that differ"):
        open_checkpoint(tmp_path / "b.gguf")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = llama(layers=1).encode()
    path = tmp_path / "a.gguf"
    for size in [*range(1, 200, 7), *range(200, len(data), 997), len(data) - 33]:
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("nowhere.gguf", "absent"), ("nowhere", "absent"), ("nowhere.safetensors", "absent")],
)
def test_absent_files(tmp_path: Path, name: str, pattern: str) -> None:
    with pytest.raises(CheckpointError, match=pattern):
        open_checkpoint(tmp_path / name)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"\*\.gguf"):
        open_checkpoint(tmp_path / "model.bin")
