"""Bounded readers for GGUF and safetensors checkpoints, their configuration and tokenizer data."""

from poot_load._checkpoint import Checkpoint, FileFormat, open_checkpoint
from poot_load._hub import (
    CachedModel,
    DownloadProgress,
    list_cached,
    remove_cached,
    resolve_model,
)
from poot_load._sentence import PoolingKind, SentenceModules
from poot_load._store import TensorInfo, WeightStore
from poot_load._tokenizer import TokenizerData, load_tokenizer

__all__ = [
    "CachedModel",
    "Checkpoint",
    "DownloadProgress",
    "FileFormat",
    "PoolingKind",
    "SentenceModules",
    "TensorInfo",
    "TokenizerData",
    "WeightStore",
    "list_cached",
    "load_tokenizer",
    "open_checkpoint",
    "remove_cached",
    "resolve_model",
]
