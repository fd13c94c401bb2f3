"""Rotary embedding parameters: from a GGUF's keys and factor tensors to Hugging Face's record."""

from __future__ import annotations

import math
from typing import Any

from poot_load._gguf import GgufFile
from poot_load._gguf_metadata import Metadata
from poot_load._refusal import refusal

__all__ = ["ROPE_TENSORS", "rope_parameters"]

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are parameters of the rotation; they go into the configuration."""

_FREQS, _LONG, _SHORT = ROPE_TENSORS
_MAX_FACTORS = 4096


def rope_parameters(gguf: GgufFile, meta: Metadata, head_dim: int) -> dict[str, Any]:
    """Return ``rope_parameters`` as Hugging Face's configurations have them.

    Per-frequency divisors without a switch of lengths (``rope_freqs``, to which the converter folds
    the llama3 scaling) are a longrope whose long and short factors agree and whose attention factor
    is 1: the same arithmetic.

    Raises:
        CheckpointError: If the scaling is of an unknown type or its factors are missing.
    """
    out: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": meta.number("rope.freq_base", 10000.0),
    }
    rotated = meta.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        out["partial_rotary_factor"] = rotated / head_dim
    meta.expect("rope.scaling.finetuned", False, True)
    kind = meta.text("rope.scaling.type", "none")
    # Before version 3 of the converters the factor stood here.
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 1.0))
    original = meta.optional_integer("rope.scaling.original_context_length")
    attention = meta.number("rope.scaling.attn_factor", 1.0)
    context = meta.size("context_length")
    if factor < 0 or (kind == "yarn" and factor == 0):
        raise refusal(meta.path, "rope scaling factor", factor, "a positive number")
    if kind == "none" and factor not in {0.0, 1.0}:
        kind = "linear"
    if kind == "linear":
        out |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        out |= _yarn(meta, factor, original or context, attention)
    elif kind == "longrope" or _LONG in gguf.tensors:
        out |= {
            "rope_type": "longrope",
            "long_factor": _factors(gguf, _LONG, rotated),
            "short_factor": _factors(gguf, _SHORT, rotated),
            "original_max_position_embeddings": original or context,
        }
        if meta.has("rope.scaling.attn_factor"):
            out["attention_factor"] = attention
    elif kind != "none":
        allowed = "none, linear, yarn or longrope"
        raise refusal(meta.path, "rope scaling type", repr(kind), allowed)
    if _FREQS in gguf.tensors:
        if out["rope_type"] != "default":
            allowed = "no such tensor beside another scaling"
            raise refusal(meta.path, repr(_FREQS), f"beside {out['rope_type']!r}", allowed)
        factors = _factors(gguf, _FREQS, rotated)
        out |= {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "original_max_position_embeddings": context,
            "attention_factor": 1.0,
        }
    return out


def _yarn(meta: Metadata, factor: float, original: int, attention: float) -> dict[str, Any]:
    out: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    if attention != 1.0:
        # The file's factor multiplies YaRN's own; Hugging Face's replaces it.
        out["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if (value := meta.optional_number(f"rope.scaling.{key}")) is not None:
            out[name] = value
    return out


def _factors(gguf: GgufFile, name: str, rotated: int) -> list[float]:
    path = gguf.file.path
    if (tensor := gguf.tensors.get(name)) is None:
        raise refusal(path, "tensors", f"without {name!r}", "a file that has it")
    expected = (rotated // 2,)
    if tensor.dtype.name != "f32" or tensor.shape != expected or expected[0] > _MAX_FACTORS:
        found = f"{tensor.dtype.name} of shape {tensor.shape}"
        raise refusal(path, f"tensor {name!r}", found, f"f32 of shape {expected}")
    return [float(value) for value in tensor.bytes.view("<f4")]
