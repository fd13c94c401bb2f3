"""``poot show``: what a checkpoint is, without opening a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from poot_core import Settings
from poot_llm._open import OpenOptions, bytes_per_token, end_token_ids, engine_options, read_model
from poot_llm._open_text import read_tokenizer
from poot_llm.cli._print import print_json, print_pairs, sizes

__all__ = ["run_show"]


def run_show(model: str, *, context: int | None, as_json: bool) -> None:
    """Print the facts of a checkpoint."""
    facts = describe(model, context)
    if as_json:
        print_json(facts)
        return
    types = ", ".join(f"{count} {name}" for name, count in facts["tensor_types"].items())
    tokenizer = facts["tokenizer"]
    memory = facts["memory"]
    print_pairs(
        str(facts["name"]),
        [
            ("family", f"{facts['family']} ({facts['format']})"),
            ("parameters", f"{facts['parameters'] / 1e6:.1f} million"),
            ("layers", str(facts["layers"])),
            ("vocabulary", str(facts["vocab_size"])),
            ("context", f"{facts['context']} of {facts['max_context']} tokens"),
            ("tensors", types),
            ("tokenizer", "none: ids alone" if tokenizer is None else f"{tokenizer} tokens"),
            ("end tokens", ", ".join(map(str, facts["eos_token_ids"])) or "none"),
            ("chat template", "yes" if facts["chat_template"] else "none: a base model"),
            ("weights", sizes(memory["weight_bytes"])),
            ("keys and values", f"{sizes(memory['kv_bytes_per_token'])} a token, "
             f"{sizes(memory['kv_bytes'])} for one full context"),
            ("memory needed", f"about {sizes(memory['weight_bytes'] + memory['kv_bytes'])} and "
             "the process itself"),
        ],
    )  # fmt: skip


def describe(path: str, context: int | None) -> dict[str, Any]:
    """Return the facts of a checkpoint, JSON-ready."""
    checkpoint, model = read_model(path)
    with checkpoint:
        infos = [checkpoint.weights.info(name) for name in checkpoint.weights.names()]
        options = engine_options(model, OpenOptions(context=context), Settings.from_environment())
        tokenizer = read_tokenizer(checkpoint)
        per_token = bytes_per_token(model.kv_layers)
        return {
            "name": checkpoint.name,
            "format": checkpoint.file_format,
            "family": model.family,
            "parameters": sum(_elements(info.shape) for info in infos),
            "layers": model.num_layers,
            "vocab_size": model.vocab_size,
            "max_context": model.max_context,
            "context": options.context_tokens,
            "tensor_types": dict(Counter(info.dtype.name for info in infos).most_common()),
            "tokenizer": None if tokenizer is None else tokenizer.vocab_size,
            "eos_token_ids": sorted(end_token_ids(checkpoint, model, tokenizer)),
            "chat_template": checkpoint.chat_template,
            "memory": {
                "weight_bytes": sum(info.nbytes for info in infos),
                "kv_bytes_per_token": per_token,
                "kv_bytes": per_token * options.context_tokens,
            },
        }


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
