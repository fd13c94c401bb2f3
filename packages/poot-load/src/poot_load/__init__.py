"""Bounded readers for GGUF and safetensors checkpoints, their configuration and tokenizer data."""

from poot_load._checkpoint import Checkpoint, FileFormat, open_checkpoint
from poot_load._store import TensorInfo, WeightStore

__all__ = [
    "Checkpoint",
    "FileFormat",
    "TensorInfo",
    "WeightStore",
    "open_checkpoint",
]
