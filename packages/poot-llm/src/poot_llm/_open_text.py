"""The text side of a checkpoint alone: what a server needs while another process owns the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poot_core import CheckpointError
from poot_llm._tokenizer import Tokenizer

if TYPE_CHECKING:
    from poot_load import Checkpoint, DownloadProgress, TokenizerData

__all__ = ["TextSide", "open_text", "read_tokenizer", "sampling_defaults"]

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


def open_text(name: str | Path, progress: DownloadProgress | None = None) -> TextSide:
    """Read a checkpoint's tokenizer and sampling defaults, no weight and no engine.

    Args:
        name: A file, a directory or a hub id.
        progress: Told how a download goes; None leaves the hub's own bars on stderr.

    Raises:
        CheckpointError: If the checkpoint is malformed.
    """
    from poot_load import open_checkpoint, resolve_model

    with open_checkpoint(resolve_model(name, progress)) as checkpoint:
        return TextSide(
            tokenizer=read_tokenizer(checkpoint),
            sampling_defaults=sampling_defaults(checkpoint.generation_config),
        )


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what generation_config.json recommends, as fields of ``SamplingParams``."""
    if generation_config.get("do_sample") is False:
        return {"temperature": 0.0}
    found = {name: generation_config.get(name) for name in _DEFAULTS}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, or None where it has none."""
    from poot_load import load_tokenizer

    data = load_tokenizer(checkpoint)
    if data is None:
        return None
    return Tokenizer(
        data,
        special_tokens=special_tokens(checkpoint, data),
        chat_template=checkpoint.chat_template,
        # A GGUF spells its tokens itself; a tokenizer.json may have any decoder.
        is_spelled=checkpoint.file_format == "gguf",
    )


def special_tokens(checkpoint: Checkpoint, data: TokenizerData) -> dict[str, str]:
    """Return the texts of special tokens under the names that chat templates use.

    Raises:
        CheckpointError: If the id of the begin or the end of a text is none of the vocabulary's.
    """
    texts: dict[str, str] = {}
    # tokenizer_config.json goes before ids: a template is written against it.
    settings: dict[str, Any] = getattr(checkpoint.tokenizer_source, "settings", {})
    for kind in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(kind)
        text = value.get("content") if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(text, str):
            texts[kind] = text
    ids = {"bos": data.bos_id, "eos": next(iter(data.eos_ids), None), "pad": data.pad_id}
    for kind, token_id in ids.items():
        if token_id is None or f"{kind}_token" in texts:
            continue
        try:
            texts[f"{kind}_token"] = data.token_text(token_id)
        except IndexError:
            if kind == "pad":  # some configurations say -1 for none
                continue
            raise CheckpointError(
                f"{checkpoint.name}: the configuration says {kind}_token_id {token_id}, which is no "
                f"token of its tokenizer ({data.vocab_size} ids); configuration and tokenizer are "
                "not of one model",
                field=f"{kind}_token_id",
                found=str(token_id),
                allowed="an id of the tokenizer's vocabulary",
            ) from None
    return texts
