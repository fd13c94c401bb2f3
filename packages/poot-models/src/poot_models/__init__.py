"""Model families as plain tracer functions over shared components."""

from poot_models._model import CheckpointLike, KVLayer, Model, load_family
from poot_models._registry import supported_architectures

__all__ = ["CheckpointLike", "KVLayer", "Model", "load_family", "supported_architectures"]
