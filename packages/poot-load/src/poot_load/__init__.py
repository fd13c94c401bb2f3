"""Bounded readers for GGUF and safetensors checkpoints, their configuration and tokenizer data."""

from poot_load._checkpoint import Checkpoint, FileFormat, open_checkpoint
from poot_load._hub import resolve_model
from poot_load._store import TensorInfo, WeightStore
from poot_load._tokenizer import TokenizerData, load_tokenizer

__all__ = [
    "Checkpoint",
    "FileFormat",
    "TensorInfo",
    "TokenizerData",
    "WeightStore",
    "load_tokenizer",
    "open_checkpoint",
    "resolve_model",
]
