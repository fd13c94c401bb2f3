"""Model families as plain tracer functions over shared components."""

from poot_models._model import KVLayer, Model, load_family
from poot_models._registry import supported_architectures

__all__ = ["KVLayer", "Model", "load_family", "supported_architectures"]
