"""safetensors files and directories: read exactly, or refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from poot_load_fakes import safetensors

from poot_core import CheckpointError, DType
from poot_load import open_checkpoint

DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "I64": np.int64,
    "I32": np.int32, "I16": np.int16, "I8": np.int8, "U64": np.uint64, "U32": np.uint32,
    "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
CONFIG = {"model_type": "llama", "hidden_size": 8}


def directory(path: Path, data: bytes, config: object = CONFIG) -> Path:
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(data)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_every_dtype_and_odd_alignment(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    arrays = {name: (rng.random((3, 5)) * 100).astype(dtype) for name, dtype in DTYPES.items()}
    arrays["scalar"] = np.array(2.5, np.float32)
    arrays["nothing"] = np.ones((0, 4), np.float32)
    codes = {**{name: name for name in DTYPES}, "scalar": "F32", "nothing": "F32"}
    content = {n: (codes[n], a.shape, a.tobytes()) for n, a in arrays.items()}
    path = directory(tmp_path / "m", safetensors({"pad": ("U8", (3,), b"abc"), **content}))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.file_format == "safetensors"
        assert checkpoint.architecture == "llama"
        assert checkpoint.config == CONFIG
        for name, expected in arrays.items():
            info = checkpoint.weights.info(name)
            assert isinstance(info.dtype, DType)
            assert info.dtype.numpy == expected.dtype
            assert not info.is_packed
            found = checkpoint.weights.array(name)
            assert found.shape == expected.shape
            assert found.tobytes() == expected.tobytes()
            assert not found.flags.writeable
        rows = checkpoint.weights.rows("F32")
        assert rows.shape == (3, 20)


def test_a_single_file_and_its_directory_agree(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", safetensors({"a": ("F32", (2,), struct.pack("<2f", 1, 2))}))
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    for one in (path, path / "model.safetensors", str(path)):
        checkpoint = open_checkpoint(one)
        assert checkpoint.weights.array("a").tolist() == [1.0, 2.0]
        assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
        assert checkpoint.tokenizer_data is None
        assert checkpoint.chat_template is None


def index(path: Path, weight_map: object) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", b"unused")
    for shard, number in (("s1", 3.0), ("s2", 4.0)):
        data = safetensors({f"t{shard}": ("F32", (1,), struct.pack("<f", number))})
        (path / f"{shard}.safetensors").write_bytes(data)
    index(path, {"ts1": "s1.safetensors", "ts2": "s2.safetensors"})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.weights.names() == ("ts1", "ts2")
        assert checkpoint.weights.array("ts2").tolist() == [4.0]
        assert checkpoint.weights.info("ts2").file.name == "s2.safetensors"
    for wrong, pattern in (
        ({"ts1": "s2.safetensors"}, "without 'ts1'"),
        ({"ts1": "gone.safetensors"}, "absent"),
        ({"ts1": "../m/s1.safetensors"}, "beside the index"),
        ({"ts1": "/etc/passwd"}, "beside the index"),
        ({"ts1": "..\\s1.safetensors"}, "beside the index"),
        ({"ts1": 3}, "beside the index"),
        ({}, "'weight_map'"),
        ([1], "'weight_map'"),
    ):
        index(path, wrong)
        with pytest.raises(CheckpointError, match=pattern):
            open_checkpoint(path)


ONE = {"a": ("F32", (2,), bytes(range(8)))}


def _entry(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "file size is 0"),
    "short": (b"\x01\x02", "header length is 8 bytes"),
    "length": (safetensors(ONE, length=2**63), "header length is 9223372036854775808"),
    "length past end": (safetensors(ONE, length=10_000), "header length is 10000"),
    "length too small": (safetensors(ONE, length=20), "header is .*; allowed: a JSON object"),
    "no object": (safetensors({}, header="[1]"), "header is a JSON list"),
    "no json": (safetensors({}, header="{"), "header is"),
    "depth": (safetensors({}, header='{"a":' + "[" * 100_000), "header is"),
    "digits": (safetensors({}, header='{"a":' + "9" * 10_000 + "}"), "header is"),
    "no text": (struct.pack("<Q", 4) + b"\xff\xfe{}", "header is"),
    "twice": (safetensors(ONE, header='{"a": 1, "a": 2}'), "two members 'a'"),
    "metadata": (safetensors(ONE, header={"__metadata__": 3}), "__metadata__"),
    "entry": (safetensors(ONE, header={"a": 3}), "tensor 'a' is 3"),
    "members": (safetensors(ONE, header={"a": {"dtype": "F32"}}), "dtype, shape and data_offsets"),
    "dtype": (safetensors(ONE, header=_entry(dtype="F4")), "dtype is 'F4'; allowed: F64"),
    "dtype kind": (safetensors(ONE, header=_entry(dtype=["F32"])), "dtype is"),
    "shape": (safetensors(ONE, header=_entry(shape=[-2])), "shape is"),
    "shape float": (safetensors(ONE, header=_entry(shape=[2.0])), "shape is"),
    "shape bool": (safetensors(ONE, header=_entry(shape=[2, True])), "shape is"),
    "shape huge": (safetensors(ONE, header=_entry(shape=[2**63])), "shape is"),
    "shape product": (safetensors(ONE, header=_entry(shape=[2**62, 2**62])), "bytes is 8"),
    "dimensions": (safetensors(ONE, header=_entry(shape=[1] * 30 + [2])), "dimensions is 31"),
    "offsets order": (safetensors(ONE, header=_entry(data_offsets=[8, 0])), "begin <= end <= 8"),
    "offsets end": (safetensors(ONE, header=_entry(data_offsets=[0, 2**62])), "truncated"),
    "offsets one": (safetensors(ONE, header=_entry(data_offsets=[0])), "data_offsets is"),
    "bytes": (safetensors(ONE, header=_entry(data_offsets=[0, 4])), "bytes is 4; allowed: 8"),
    "hole": (safetensors(ONE, header=_entry(shape=[1], data_offsets=[4, 8])), "begin of data is 4"),
    "overlap": (
        safetensors(ONE, header={"b": _entry(shape=[1], data_offsets=[4, 8])["a"]}),
        "begin of data is 4; allowed: 8",
    ),
    "tail": (safetensors(ONE, tail=b"more"), "file size is"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(tmp_path: Path, name: str) -> None:
    data, pattern = LIES[name]
    path = directory(tmp_path / "m", data)
    with pytest.raises(CheckpointError, match=pattern) as caught:
        open_checkpoint(path)
    assert "model.safetensors" in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = safetensors({"a": ("F32", (4,), bytes(16)), "b": ("U8", (3,), b"xyz")})
    for size in range(len(data)):
        path = directory(tmp_path / "m", data[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("config", "pattern"),
    [(None, "JSON NoneType"), ([], "JSON list"), ({"model_type": 3}, "'model_type' is 3")],
)
def test_bad_configs(tmp_path: Path, config: object, pattern: str) -> None:
    path = directory(tmp_path / "m", safetensors(ONE), config)
    with pytest.raises(CheckpointError, match=pattern):
        open_checkpoint(path)


def test_absent_parts(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", safetensors(ONE))
    (path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: file is absent"):
        open_checkpoint(path)
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no safetensors file"):
        open_checkpoint(path)
