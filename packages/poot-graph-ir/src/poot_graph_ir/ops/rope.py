"""Rotary position embeddings (arXiv:2104.09864), rotate-half and interleaved."""

from __future__ import annotations

from typing import Any

import numpy as np

from poot_core import ShapeError, f32
from poot_graph_ir import _functional as f
from poot_graph_ir._location import model_location
from poot_graph_ir._tracer import Tracer

__all__ = ["apply_rope", "rope_tables"]


def rope_tables(
    positions: Tracer, inverse_frequencies: np.ndarray[Any, Any], attention_factor: float = 1.0
) -> tuple[Tracer, Tracer]:
    """Return cosines and sines of each position's angles; make them once, outside of the layers.

    Args:
        positions: (T,) i32.
        inverse_frequencies: (rotary_dim / 2,) radians per position, after any scaling.
        attention_factor: Factor on both tables (YaRN and longrope).

    Returns:
        Two (T, rotary_dim / 2) f32 tensors.
    """
    frequencies = positions.trace.literal(np.asarray(inverse_frequencies, np.float32))
    angles = positions.astype(f32)[:, None] * frequencies[None, :]
    cosines, sines = f.cos(angles), f.sin(angles)
    if attention_factor != 1.0:
        cosines, sines = cosines * attention_factor, sines * attention_factor
    return cosines, sines


def apply_rope(x: Tracer, tables: tuple[Tracer, Tracer], *, interleaved: bool = False) -> Tracer:
    """Return x with its leading ``rotary_dim`` elements turned by the position's angles.

    Args:
        x: (T, H, D) f32; elements beyond the tables' rotary_dim pass through.
        tables: Cosines and sines of ``rope_tables``.
        interleaved: Whether the pairs are (0, 1), (2, 3), ...; otherwise element i pairs with
            i + rotary_dim / 2.
    """
    cosines, sines = (table[:, None, :] for table in tables)  # (T, 1, rotary_dim / 2)
    half, width = cosines.shape[-1], x.shape[-1]
    if not isinstance(half, int) or not isinstance(width, int) or 2 * half > width:
        raise ShapeError(
            f"'apply_rope' turns {half} pairs of {x.type}, at {model_location()}",
            location=model_location(),
        )
    rotary = x[..., : 2 * half]
    if interleaved:
        pairs = rotary.reshape(*x.shape[:-1], half, 2)
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = rotary[..., :half], rotary[..., half:]
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    if interleaved:
        stacked = f.concatenate([part[..., None] for part in turned])  # (T, H, half, 2)
        result = [stacked.reshape(*x.shape[:-1], 2 * half)]
    else:
        result = list(turned)
    if 2 * half < width:
        result.append(x[..., 2 * half :])
    return f.concatenate(result)
