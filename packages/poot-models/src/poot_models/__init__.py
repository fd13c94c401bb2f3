"""Model families as plain tracer functions over shared components."""

from poot_models._encoder import EncoderModel, Pooling, load_encoder
from poot_models._encoder_registry import is_encoder
from poot_models._model import KVLayer, Model, load_family
from poot_models._registry import supported_architectures

__all__ = [
    "EncoderModel",
    "KVLayer",
    "Model",
    "Pooling",
    "is_encoder",
    "load_encoder",
    "load_family",
    "supported_architectures",
]
