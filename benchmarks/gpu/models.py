"""Models of named dimensions with random weights, as checkpoints that hold no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poot_core import bf16
from poot_load import TensorInfo
from poot_models._registry import find_family  # noqa: PLC2701
from poot_quant import format_by_name, random_blocks

__all__ = ["CONFIGS", "RandomCheckpoint"]

_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rope_theta": 500000.0, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "1b": {**_LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
           "tie_word_embeddings": True},
    "8b": {**_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "tie_word_embeddings": False},
    "qwen0.5b": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu",
                 "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                 "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
                 "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 32768,
                 "tie_word_embeddings": True, "torch_dtype": "bfloat16"},
    "tiny": {**_LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
             "tie_word_embeddings": True},
}  # fmt: skip


@dataclass
class RandomCheckpoint:
    """A checkpoint of bf16 tensors, or of matrices in a packed format; tensors are random pieces.

    Attributes:
        config: The model's configuration.
        packed: Name of the matrices' format, or None for bf16.
    """

    config: dict[str, Any]
    packed: str | None = None
    path: Path = Path("random")

    def __post_init__(self) -> None:
        self.architecture = self.config["architectures"][0]
        self.weights = self
        family = find_family(self.config["model_type"])
        self._shapes = dict(family.weights(family.read_config(self.config)))
        largest = max(int(np.prod(shape)) for shape in self._shapes.values())
        rng = np.random.default_rng(17)
        # Normal numbers of the size that a trained matrix has; the block repeats.
        piece = rng.standard_normal(1 << 22, np.float32) * 0.02
        block = np.tile(piece.astype(bf16.numpy), -(-largest // len(piece)) + 1)
        self._block = block.view(np.uint8)
        self._format = None if self.packed is None else format_by_name(self.packed)
        if self._format is not None:
            blocks = random_blocks(self._format, (1 << 22,), rng).reshape(-1)
            self._block = np.tile(blocks, -(-largest // (1 << 22)) + 1)
        self._ones = (1 + rng.standard_normal(1 << 16, np.float32) * 0.1).astype(bf16.numpy)

    def names(self) -> list[str]:
        return list(self._shapes)

    def info(self, name: str) -> TensorInfo:
        shape = tuple(self._shapes[name])
        dtype = self._format if self._format is not None and len(shape) == 2 else bf16
        return TensorInfo(
            name=name, shape=shape, dtype=dtype, nbytes=self._bytes(shape), file=self.path
        )

    def _bytes(self, shape: tuple[int, ...]) -> int:
        elements = int(np.prod(shape))
        if self._format is None or len(shape) != 2:
            return 2 * elements
        return elements // self._format.block_elements * self._format.block_bytes

    def raw(self, name: str) -> np.ndarray:
        shape = tuple(self._shapes[name])
        size = self._bytes(shape)
        if len(shape) == 1:
            return self._ones.view(np.uint8)[:size]
        unit = 2 if self._format is None else self._format.block_bytes
        start = unit * (sum(name.encode()) % 4096)
        return self._block[start : start + size]

    def release(self, name: str) -> None:
        del name
