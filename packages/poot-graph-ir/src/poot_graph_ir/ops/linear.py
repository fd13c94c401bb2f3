"""Products with weights, embedding rows, and heads."""

from __future__ import annotations

from poot_core import ShapeError
from poot_graph_ir import _functional as f
from poot_graph_ir._location import model_location
from poot_graph_ir._tracer import Tracer

__all__ = ["embedding", "linear", "merge_heads", "split_heads"]


def linear(x: Tracer, weight: Tracer, bias: Tracer | None = None) -> Tracer:
    """Return x times the transposed weight, plus bias, in f32.

    Args:
        x: (..., K) f32.
        weight: (N, K), dense or packed, as stored.
        bias: (N,), or None.

    Returns:
        (..., N) f32.
    """
    if weight.rank != 2 or x.shape[-1:] != weight.shape[1:]:
        raise ShapeError(
            f"'linear' takes x of shape (..., K) and a weight (N, K), got {x.type} and "
            f"{weight.value.name or 'a weight'} {weight.type}, at {model_location()}",
            location=model_location(),
        )
    y = f.dot_general(x, f.to_f32(weight), contract=(-1, -1))
    return y if bias is None else y + f.to_f32(bias)


def embedding(table: Tracer, ids: Tracer) -> Tracer:
    """Return the rows of a table, dense or packed, at ids: rows are read first, then decoded.

    Args:
        table: (V, D).
        ids: (T,) i32; one out of range reads the nearest row.

    Returns:
        (T, D) f32.
    """
    return f.to_f32(f.gather(table, ids))


def split_heads(x: Tracer, num_heads: int) -> Tracer:
    """Return (..., H * D) as (..., H, D)."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def merge_heads(x: Tracer) -> Tracer:
    """Return (..., H, D) as (..., H * D)."""
    return x.reshape(*x.shape[:-2], -1)
