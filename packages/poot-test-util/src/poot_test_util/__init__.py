"""Shared gates of poot's own tests; never published."""

from poot_test_util._models import MODELS, require_model

__all__ = ["MODELS", "require_model"]
