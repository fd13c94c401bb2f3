"""Models of named dimensions with random weights, as checkpoints that hold no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poot_core import bf16
from poot_load import TensorInfo
from poot_models._registry import find_family  # noqa: PLC2701

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
    """A checkpoint of bf16 tensors; every tensor is a piece of one random block."""

    config: dict[str, Any]
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
        self._ones = (1 + rng.standard_normal(1 << 16, np.float32) * 0.1).astype(bf16.numpy)

    def names(self) -> list[str]:
        return list(self._shapes)

    def info(self, name: str) -> TensorInfo:
        shape = tuple(self._shapes[name])
        return TensorInfo(
            name=name, shape=shape, dtype=bf16, nbytes=2 * int(np.prod(shape)), file=self.path
        )

    def raw(self, name: str) -> np.ndarray:
        size = 2 * int(np.prod(self._shapes[name]))
        if len(self._shapes[name]) == 1 and "norm" in name:
            return self._ones.view(np.uint8)[:size]
        start = 2 * (hash(name) % 4096)
        return self._block[start : start + size]

    def release(self, name: str) -> None:
        del name
