"""How a directory of sentence-transformers turns the states of a text's tokens into one vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from poot_core import UnsupportedError
from poot_load._json import read_list, read_object
from poot_load._refusal import refusal

__all__ = ["PoolingKind", "SentenceModules", "sentence_modules"]

PoolingKind = Literal["mean", "cls", "last"]

_MODES: dict[str, PoolingKind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_NAMES: dict[str, PoolingKind] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceModules:
    """What follows the transformer, and what its input is limited to.

    Attributes:
        pooling: Mean over the tokens, state of the first token, or of the last.
        normalize: Whether vectors are scaled to unit length.
        width: Elements of a token's state, as the pooling was made for, or None.
        max_tokens: Longest text, or None for what the model allows.
        prompts: Texts to put before inputs, by name.
        default_prompt: Name of the one that goes before every input, or None.
    """

    pooling: PoolingKind
    normalize: bool
    width: int | None = None
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    default_prompt: str | None = None


def sentence_modules(directory: Path) -> SentenceModules | None:
    """Return what ``modules.json`` and its neighbours say, or None if there is none.

    Raises:
        CheckpointError: If a file is malformed.
        UnsupportedError: If a module or a pooling is one that poot has not; names it.
    """
    path = directory / "modules.json"
    listed = read_list(path)
    if listed is None:
        return None
    kinds = [_kind(path, entry) for entry in listed]
    names = [name for name, _ in kinds]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedError(
            f"{path}: the modules are {', '.join(names) or 'none'}; poot has Transformer, Pooling "
            "and, after them, Normalize"
        )
    pooling, width = _pooling(directory / kinds[1][1] / "config.json")
    limits = read_object(directory / kinds[0][1] / "sentence_bert_config.json") or {}
    max_tokens = limits.get("max_seq_length")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        where = directory / "sentence_bert_config.json"
        raise refusal(where, "'max_seq_length'", max_tokens, "a positive integer")
    if limits.get("do_lower_case"):
        raise UnsupportedError(
            f"{directory / 'sentence_bert_config.json'}: do_lower_case is true, and poot lowers "
            "nothing besides what tokenizer.json does"
        )
    prompts, default = _prompts(directory / "config_sentence_transformers.json")
    return SentenceModules(
        pooling=pooling,
        normalize=names[-1] == "Normalize",
        width=width,
        max_tokens=max_tokens,
        prompts=prompts,
        default_prompt=default,
    )


def _kind(path: Path, entry: object) -> tuple[str, str]:
    """Return the class name and the folder of one module."""
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    kind, folder = fields.get("type"), fields.get("path", "")
    if not isinstance(kind, str) or not isinstance(folder, str):
        raise refusal(path, "a module", repr(entry), "an object with 'type' and 'path'")
    if folder.startswith("/") or ".." in Path(folder).parts:
        raise refusal(path, "'path'", repr(folder), "a folder within the checkpoint")
    return kind.rpartition(".")[2], folder


def _pooling(path: Path) -> tuple[PoolingKind, int | None]:
    settings = read_object(path)
    if settings is None:
        raise refusal(path, "file", "absent", "the pooling that modules.json names")
    width = settings.get("word_embedding_dimension", settings.get("embedding_dimension"))
    if width is not None and type(width) is not int:
        raise refusal(path, "'word_embedding_dimension'", width, "an integer")
    if "pooling_mode" in settings:
        found: list[Any] = [settings["pooling_mode"]]
        kind = _NAMES.get(str(found[0]))
    else:
        found = [n for n, on in settings.items() if n.startswith("pooling_mode_") and on]
        kind = _MODES.get(str(found[0])) if len(found) == 1 else None
    if kind is None:
        shown = " and ".join(map(str, found)) or "nothing"
        raise UnsupportedError(
            f"{path}: pooling is {shown}; poot has one of mean, cls and lasttoken"
        )
    if settings.get("include_prompt") is False:
        raise UnsupportedError(f"{path}: include_prompt is false; poot pools all tokens of a text")
    return kind, width


def _prompts(path: Path) -> tuple[dict[str, str], str | None]:
    settings = read_object(path) or {}
    given, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(given, dict) or not all(
        isinstance(text, str) for text in cast("dict[str, object]", given).values()
    ):
        raise refusal(path, "'prompts'", repr(cast("object", given)), "texts by name")
    prompts = cast("dict[str, str]", given)
    if default is not None and default not in prompts:
        raise refusal(path, "'default_prompt_name'", repr(default), "the name of a prompt")
    return prompts, default
