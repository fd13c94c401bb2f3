"""Writers of small checkpoint files, straight from the format documents.

They write what they are told, so that tests can make files that lie.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"),
    "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<B"), "str": (8, ""), "arr": (9, ""),
    "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d"),
}  # fmt: skip


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind: str, content: Any) -> bytes:
    """Return a value without its type; an array's content is (element kind, list)."""
    if kind == "str":
        return string(content)
    if kind == "arr":
        inner, items = content
        head = struct.pack("<IQ", KINDS[inner][0], len(items))
        return head + b"".join(value(inner, item) for item in items)
    return struct.pack(KINDS[kind][1], content)


@dataclass
class Gguf:
    """A GGUF to be; every number may be overridden with a lie."""

    metadata: dict[str, tuple[str, Any]] = field(default_factory=dict)
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = field(default_factory=dict)
    version: int = 3
    alignment: int = 32
    num_tensors: int | None = None
    num_keys: int | None = None
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, array: np.ndarray, ggml_type: int = 0) -> None:
        """Add a dense tensor, or packed rows (shape then in elements, given by ``add_raw``)."""
        self.tensors[name] = (array.shape, ggml_type, array.tobytes())

    def add_raw(self, name: str, shape: tuple[int, ...], ggml_type: int, data: bytes) -> None:
        self.tensors[name] = (shape, ggml_type, data)

    def encode(self) -> bytes:
        metadata = dict(self.metadata)
        if self.alignment != 32:
            metadata.setdefault("general.alignment", ("u32", self.alignment))
        count = len(self.tensors) if self.num_tensors is None else self.num_tensors
        keys = len(metadata) if self.num_keys is None else self.num_keys
        out = b"GGUF" + struct.pack("<IQQ", self.version, count, keys)
        for key, (kind, content) in metadata.items():
            out += string(key) + struct.pack("<I", KINDS[kind][0]) + value(kind, content)
        data = b""
        for name, (shape, ggml_type, content) in self.tensors.items():
            out += string(name) + struct.pack("<I", len(shape))
            out += b"".join(struct.pack("<Q", size) for size in reversed(shape))
            out += struct.pack("<IQ", ggml_type, self.offsets.get(name, len(data)))
            data += content + bytes(-len(content) % self.alignment)
        return out + bytes(-len(out) % self.alignment) + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.encode())
        return path


def llama(layers: int = 2, width: int = 32, vocab: int = 40, seed: int = 0) -> Gguf:
    """Return a complete little llama without a tokenizer."""
    rng = np.random.default_rng(seed)
    out = Gguf()
    out.metadata = {
        "general.architecture": ("str", "llama"),
        "llama.block_count": ("u32", layers),
        "llama.context_length": ("u32", 128),
        "llama.embedding_length": ("u32", width),
        "llama.feed_forward_length": ("u32", 2 * width),
        "llama.attention.head_count": ("u32", 4),
        "llama.attention.head_count_kv": ("u32", 2),
        "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
    }

    def tensor(name: str, *shape: int) -> None:
        out.add(name + ".weight", rng.standard_normal(shape, dtype=np.float32))

    tensor("token_embd", vocab, width)
    tensor("output_norm", width)
    for layer in range(layers):
        block = f"blk.{layer}."
        tensor(block + "attn_norm", width)
        tensor(block + "ffn_norm", width)
        tensor(block + "attn_q", width, width)
        tensor(block + "attn_k", width // 2, width)
        tensor(block + "attn_v", width // 2, width)
        tensor(block + "attn_output", width, width)
        tensor(block + "ffn_gate", 2 * width, width)
        tensor(block + "ffn_up", 2 * width, width)
        tensor(block + "ffn_down", width, 2 * width)
    return out


def safetensors(
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
    *,
    header: dict[str, Any] | str | None = None,
    length: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """Return a safetensors file; ``header`` and ``length`` may lie."""
    entries: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    if header is None:
        text = json.dumps(entries)
    else:
        text = header if isinstance(header, str) else json.dumps({**entries, **header})
    encoded = text.encode()
    size = len(encoded) if length is None else length
    return struct.pack("<Q", size) + encoded + data + tail
