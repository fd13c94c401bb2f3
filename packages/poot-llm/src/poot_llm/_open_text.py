"""The text side of a checkpoint alone: what a server needs while another process owns the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poot_llm._open import read_tokenizer
from poot_llm._tokenizer import Tokenizer

__all__ = ["TextSide", "open_text"]

# Fields of generation_config.json that are sampling defaults, by the name of the parameter.
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """Tokenizer and sampling defaults of a checkpoint.

    Attributes:
        tokenizer: The tokenizer, or None where the checkpoint has none.
        sampling_defaults: Parameters that generation_config.json sets, by name.
    """

    tokenizer: Tokenizer | None
    sampling_defaults: dict[str, Any] = field(default_factory=dict[str, Any])


def open_text(name: str | Path) -> TextSide:
    """Read a checkpoint's tokenizer and sampling defaults, no weight and no engine.

    Args:
        name: A file, a directory or a hub id.

    Raises:
        CheckpointError: If the checkpoint is malformed.
    """
    from poot_load import open_checkpoint, resolve_model

    with open_checkpoint(resolve_model(name)) as checkpoint:
        found = checkpoint.generation_config
        defaults = {key: found[key] for key in _DEFAULTS if found.get(key) is not None}
        if found.get("do_sample") is False:
            defaults = {"temperature": 0.0}
        return TextSide(tokenizer=read_tokenizer(checkpoint), sampling_defaults=defaults)
