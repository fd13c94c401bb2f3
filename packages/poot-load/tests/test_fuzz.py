"""Whatever the bytes: a checkpoint, or one CheckpointError, and never a large allocation."""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from poot_load_fakes import llama, safetensors

from poot_core import CheckpointError
from poot_load import open_checkpoint

_QUICK = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
_LIMIT_BYTES = 8 << 20  # the files are a few kB


def _with_tokens() -> bytes:
    file = llama(layers=1, width=8, vocab=6)
    file.metadata |= {
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "gpt-2"),
        "tokenizer.ggml.tokens": ("arr", ("str", ["a", "b", "ab", "Ġ", "<s>", "c"])),
        "tokenizer.ggml.token_type": ("arr", ("i32", [1, 1, 1, 1, 3, 1])),
        "tokenizer.ggml.merges": ("arr", ("str", ["a b"])),
        "tokenizer.ggml.bos_token_id": ("u32", 4),
        "split.count": ("u16", 1),
        "general.alignment": ("u32", 32),
        "llama.rope.scaling.type": ("str", "linear"),
        "llama.rope.scaling.factor": ("f32", 2.0),
        "nested": ("arr", ("arr", [("u8", [1]), ("str", ["x"])])),
    }
    return file.encode()


GGUF = _with_tokens()
HEADER_END = GGUF.index(b"blk.0.ffn_down.weight") + 64
SAFE = safetensors(
    {"a": ("F32", (4, 2), np.ones((4, 2), np.float32).tobytes()), "b": ("BF16", (3,), b"abcdef")}
)


def open_bytes(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        (Path(folder) / "config.json").write_text('{"model_type": "llama"}')
        refused: CheckpointError | None = None
        tracemalloc.start()
        try:
            with open_checkpoint(path) as checkpoint:
                for tensor in checkpoint.weights.names():
                    if checkpoint.weights.info(tensor).nbytes < 1 << 16:
                        checkpoint.weights.array(tensor)
                if (tokens := checkpoint.tokenizer_data) is not None:
                    tokens.token_bytes(0)
        except CheckpointError as error:
            refused = error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert refused is None or folder in str(refused)
    assert peak < _LIMIT_BYTES


numbers = st.sampled_from(
    [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
) | st.integers(0, 300)


@pytest.mark.parametrize(("name", "data", "end"), [
    ("a.gguf", GGUF, HEADER_END), ("a.safetensors", SAFE, len(SAFE)),
])  # fmt: skip
def test_mutations(name: str, data: bytes, end: int) -> None:
    @_QUICK
    @given(
        st.lists(st.tuples(st.integers(0, end - 1), st.integers(0, 255)), min_size=1, max_size=4),
        st.integers(0, 40),
    )
    @example([(4, 1)], 0)
    def mutate(changes: list[tuple[int, int]], cut: int) -> None:
        changed = bytearray(data)
        for at, byte in changes:
            changed[at] = byte
        open_bytes(name, bytes(changed[: len(changed) - cut]))

    mutate()


@pytest.mark.parametrize(("name", "data", "end"), [
    ("a.gguf", GGUF, HEADER_END), ("a.safetensors", SAFE, 24),
])  # fmt: skip
def test_lying_numbers(name: str, data: bytes, end: int) -> None:
    @_QUICK
    @given(st.integers(4, end - 8), numbers, st.sampled_from(["<Q", "<I"]))
    def lie(at: int, number: int, layout: str) -> None:
        size = struct.calcsize(layout)
        lied = struct.pack(layout, number % (1 << 8 * size))
        open_bytes(name, data[:at] + lied + data[at + size :])

    lie()


@pytest.mark.parametrize(("name", "head"), [
    ("a.gguf", b"GGUF\x03\0\0\0"), ("a.gguf", b""), ("a.safetensors", b""),
])  # fmt: skip
def test_noise(name: str, head: bytes) -> None:
    @_QUICK
    @given(st.binary(max_size=200))
    def noise(data: bytes) -> None:
        open_bytes(name, head + data)

    noise()


@_QUICK
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**64) | st.floats() | st.text(max_size=4)
    | st.sampled_from(["F32", "dtype", "shape", "data_offsets"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["a", "__metadata__", "dtype", "shape", "data_offsets"]), inner, max_size=4
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_json_header(header: object) -> None:
    import json

    open_bytes("a.safetensors", safetensors({}, header=json.dumps(header), tail=bytes(16)))
