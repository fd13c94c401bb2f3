"""How a byte-level BPE vocabulary cuts text before merging, by the name that a GGUF gives.

The patterns are facts of the models' published tokenizers. To add one, add a row to SCHEMES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["SCHEMES", "Scheme"]


@dataclass(frozen=True, slots=True)
class Scheme:
    r"""Cutting rules.

    Attributes:
        patterns: Regular expressions; each isolates its matches in the pieces that are left.
        ignore_merges: Whether a whole word that is in the vocabulary is taken without merging.
        add_bos: Whether BOS goes in front when the file does not say.
        nfc: Whether text is brought to Unicode normal form C first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_OTHER}|{_SPACES}"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_OTHER}|{_SPACES}"
_QWEN35 = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_OTHER_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*|\p{{N}}|{_OTHER_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_CASED}{_UPPER}*{_LOWER}+{_ENGLISH}?|{_CASED}{_UPPER}+{_LOWER}*{_ENGLISH}?"
    rf"|\p{{N}}{{1,3}}|{_OTHER_SLASH}|{_SPACES}"
)
# Escapes stand for marks that look like ASCII ones.
_PUNCTUATED = r" ?[^(\s|[.,!?…。\x{FF0C}、।\x{06D4}،])]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)

_gpt2 = Scheme((_GPT2,))
_digits = Scheme((r"\p{N}", _GPT2))
_llama3 = Scheme((_LLAMA3,), ignore_merges=True, add_bos=True)
_cl100k = Scheme((_LLAMA3,))
_qwen2 = Scheme((_QWEN2,), nfc=True)
_deepseek3 = Scheme((r"\p{N}{1,3}", r"[一-龥぀-ゟ\x{30A0}-ヿ]+", _DEEPSEEK3))

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        # Files from before the key existed, and what their reader did with them.
        "default": Scheme((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4"), _gpt2),
        **dict.fromkeys(("trillion", "granite-docling", "roberta-bpe", "mellum"), _gpt2),
        **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell"), _digits),
        **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), _digits),
        **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), _llama3),
        **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _llama3),
        **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _cl100k),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _qwen2),
        **dict.fromkeys(("stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"),
                        Scheme((_QWEN2,))),
        "qwen35": Scheme((_QWEN35,), nfc=True),
        "tekken": Scheme((_TEKKEN,), ignore_merges=True, add_bos=True),
        **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), Scheme((_GPT4O,))),
        **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _deepseek3),
        "falcon": Scheme((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
        **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), Scheme((_PUNCTUATED,))),
        "viking": Scheme((_PUNCTUATED, r"\p{N}")),
    }
)  # fmt: skip
"""Every cutting rule that poot knows."""
