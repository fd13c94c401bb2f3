"""Tiny tokenizers of both kinds, built here."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

TEXT = (
    "The capital of France is Paris. Grüße aus Köln! 你好,世界。 naïve café — 🦊 and 👩‍👩‍👧‍👦 …\n"
    "def f(x):\n    return x ** 2  # ok\n"
)


def byte_level(*, vocab_limit: int = 400) -> tokenizers.Tokenizer:
    """Byte-level BPE with every byte, a few merges and ChatML tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    from tokenizers.trainers import BpeTrainer

    trainer = BpeTrainer(
        vocab_size=vocab_limit, initial_alphabet=alphabet, show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def sentencepiece(*, strips: bool = True) -> tokenizers.Tokenizer:
    """Byte-fallback BPE over pieces with U+2581, as Llama and Gemma have it, with a BOS rule."""
    pieces = ["<unk>", "<s>", "</s>"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [
        "▁",
        "t",
        "h",
        "e",
        "a",
        "P",
        "r",
        "i",
        "s",
        "n",
        "▁t",
        "▁th",
        "▁the",
        "is",
        "▁P",
        "é",
    ]
    vocab = {piece: place for place, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("i", "s"), ("▁", "P")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in pieces[:3]])
    from tokenizers import normalizers

    steps = [normalizers.Prepend("▁")] if strips else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends = [decoders.Strip(" ", 1, 0)] if strips else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer
