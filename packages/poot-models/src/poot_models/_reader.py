"""Reading a checkpoint's configuration so that no key is overlooked.

Each family takes the keys it understands; ``finish`` refuses the first one that nobody took, since
a key that is ignored may be one that changes what the model computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from poot_core import CheckpointError

__all__ = ["REQUIRED", "ConfigReader"]

REQUIRED: Final = object()
"""Default of a key that must be there."""

MAX_SIZE: Final = 2**31 - 1
"""Largest size or count that a configuration may hold: shapes and ids are 32-bit."""

# Keys that say nothing about the arithmetic of inference: provenance, training, other heads and
# the generation defaults that older transformers wrote into every config.json.
# fmt: off
HARMLESS: Final = frozenset({
    "_name_or_path", "_attn_implementation", "architectures", "auto_map", "dtype", "torch_dtype",
    "transformers_version", "model_type", "initializer_range", "use_cache", "pad_token_id",
    "unk_token_id", "sep_token_id", "decoder_start_token_id", "pretraining_tp",
    "attention_dropout", "hidden_dropout", "residual_dropout", "embedding_dropout", "resid_pdrop",
    "embd_pdrop", "attn_pdrop", "emb_pdrop", "classifier_dropout", "dropout",
    "gradient_checkpointing", "output_attentions", "output_hidden_states", "return_dict",
    "chunk_size_feed_forward", "id2label", "label2id", "problem_type", "tokenizer_class",
    "task_specific_params", "torchscript", "use_bfloat16", "prefix", "finetuning_task",
    "num_labels", "pruned_heads", "cross_attention_hidden_size", "top_k", "top_p", "temperature",
    "do_sample", "num_beams", "num_beam_groups", "max_length", "min_length", "length_penalty",
    "repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "early_stopping", "diversity_penalty", "typical_p", "bad_words_ids", "num_return_sequences",
    "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "tf_legacy_loss", "training_args", "cache_implementation",
    "rope_interleaved", "norm_offset_folded", "_attn_implementation_autoset",
    "transformers.js_config", "is_llama_config", "unsloth_fixed", "unsloth_version",
    "tokenizer_name", "attention_probs_dropout_prob", "hidden_dropout_prob",
})
# fmt: on


class ConfigReader:
    """A configuration (Hugging Face key names) that remembers which keys were taken.

    Args:
        raw: The configuration.
        family: Name of the family that reads it, for messages.
        section: Name of the nested dictionary that ``raw`` is, or empty for the outermost.
    """

    def __init__(self, raw: Mapping[str, Any], *, family: str, section: str = "") -> None:
        self._raw = raw
        self._family = family
        self._section = section
        self._taken: set[str] = set()

    @property
    def family(self) -> str:
        """Name of the family that reads this configuration."""
        return self._family

    def __contains__(self, name: str) -> bool:
        return self._raw.get(name) is not None

    def names(self, name: str) -> bool:
        """Return whether the configuration has the key at all, be it null."""
        return name in self._raw

    def error(self, name: str, found: object, expected: str) -> CheckpointError:
        """Return the error that says what key ``name`` holds and what it may hold."""
        path = f"{self._section}.{name}" if self._section else name
        return CheckpointError(
            f"config key {path!r} of a {self._family} model is {found!r}, expected {expected}",
            field=path,
        )

    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """Return the value of a key, or the default where it is absent or null.

        Raises:
            CheckpointError: If the key is required and absent.
        """
        self._taken.add(name)
        value = self._raw.get(name)
        if value is not None:
            return value
        if default is REQUIRED:
            raise self.error(name, None, "a value")
        return default

    def integer(self, name: str, default: Any = REQUIRED, *, minimum: int = 1) -> int:
        """Return an integer of at least ``minimum``."""
        value = self.take(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not minimum <= value <= MAX_SIZE
        ):
            raise self.error(name, value, f"an integer from {minimum} to {MAX_SIZE}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return a positive integer, or None where the key is absent or null."""
        return self.integer(name) if name in self else self._absent(name)

    def number(self, name: str, default: Any = REQUIRED, *, positive: bool = True) -> float:
        """Return a finite number, by default a positive one."""
        value = self.take(name, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or (positive and value <= 0):
            raise self.error(name, value, "a positive number" if positive else "a finite number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a positive number, or None where the key is absent or null."""
        return self.number(name) if name in self else self._absent(name)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """Return a boolean."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def choice(self, name: str, allowed: Iterable[str], default: Any = REQUIRED) -> str:
        """Return one of the allowed words."""
        value = self.take(name, default)
        words = sorted(allowed)
        if value not in words:
            raise self.error(name, value, "one of " + ", ".join(words))
        return cast("str", value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Return a list of ``length`` positive numbers."""
        return tuple(self._list(name, length, _is_positive, "positive numbers"))

    def words(self, name: str, length: int, allowed: Iterable[str]) -> tuple[str, ...]:
        """Return a list of ``length`` words, each an allowed one."""
        words = frozenset(allowed)

        def is_word(value: object) -> bool:
            return value in words

        return tuple(self._list(name, length, is_word, "words of " + ", ".join(sorted(words))))

    def flags(self, name: str, length: int) -> tuple[bool, ...]:
        """Return a list of ``length`` booleans; 0 and 1 count as such."""
        return tuple(bool(v) for v in self._list(name, length, _is_flag, "zeros and ones"))

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return the ids of a key that holds one id, a list of them or nothing."""
        value = self.take(name, ())
        ids = cast("list[Any]", [value] if isinstance(value, int) else list(value))
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in ids):
            raise self.error(name, value, "a token id or a list of them")
        return tuple(v for v in ids if v >= 0)

    def section(self, name: str, default: Any = REQUIRED) -> ConfigReader:
        """Return a reader of a nested dictionary."""
        value = self.take(name, default)
        if not isinstance(value, Mapping):
            raise self.error(name, value, "a dictionary")
        path = f"{self._section}.{name}" if self._section else name
        return ConfigReader(cast("Mapping[str, Any]", value), family=self._family, section=path)

    def fixed(self, name: str, *allowed: object) -> None:
        """Take a key that may be absent, null or one of the values that poot implements."""
        value = self.take(name, None)
        if value is not None and value not in allowed:
            raise self.error(name, value, "one of " + ", ".join(repr(a) for a in allowed))

    def ignore(self, *names: str) -> None:
        """Take keys that this family knows to have no effect."""
        self._taken.update(names)

    def _fix_common(self) -> None:
        # An encoder, or a decoder that reads one, is another model.
        for name in ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"):
            self.fixed(name, False)
        self.fixed("is_decoder", False, True)

    def finish(self) -> None:
        """Refuse a key that nobody took.

        Raises:
            CheckpointError: Naming the key, if there is one.
        """
        self._fix_common()
        for name, value in self._raw.items():
            if name in self._taken or value is None or (not self._section and name in HARMLESS):
                continue
            raise self.error(
                name,
                value,
                "no such key: it may change what the model computes, so poot refuses it",
            )

    def _absent(self, name: str) -> None:
        self._taken.add(name)

    def _list(
        self, name: str, length: int, is_good: Callable[[object], bool], expected: str
    ) -> list[Any]:
        value = self.take(name)
        if (
            not isinstance(value, list | tuple)
            or len(cast("list[Any]", value)) != length
            or not all(is_good(item) for item in cast("list[Any]", value))
        ):
            raise self.error(name, value, f"a list of {length} {expected}")
        return list(cast("list[Any]", value))


def _is_positive(value: object) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(cast("float", value)) and cast("float", value) > 0


def _is_flag(value: object) -> bool:
    return value in (0, 1)
