"""Normalisations over the last axis; the input is f32, weights are of any float type."""

from __future__ import annotations

from poot_graph_ir import _functional as f
from poot_graph_ir._tracer import Tracer

__all__ = ["l2_norm", "layer_norm", "rms_norm", "softmax"]


def rms_norm(x: Tracer, weight: Tracer | None, eps: float, offset: float = 0.0) -> Tracer:
    """Return x over its root mean square, times (weight + offset) (arXiv:1910.07467, eq. 4).

    Args:
        x: (..., D) f32.
        weight: (D,), or None for no scale.
        eps: Added to the mean square, > 0.
        offset: Added to the weight: 1.0 where a checkpoint stores the scale less one.
    """
    mean_square = (x * x).mean(-1, keepdims=True)  # (..., 1)
    normal = x * f.rsqrt(mean_square + eps)
    if weight is None:
        return normal
    scale = f.to_f32(weight)
    return normal * (scale + offset if offset else scale)


def layer_norm(x: Tracer, weight: Tracer | None, bias: Tracer | None, eps: float) -> Tracer:
    """Return x less its mean, over its standard deviation, scaled and shifted (arXiv:1607.06450).

    Args:
        x: (..., D) f32.
        weight: (D,), or None for no scale.
        bias: (D,), or None for no shift.
        eps: Added to the variance, > 0.
    """
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    normal = centred * f.rsqrt(variance + eps)
    if weight is not None:
        normal = normal * f.to_f32(weight)
    return normal if bias is None else normal + f.to_f32(bias)


def l2_norm(x: Tracer, eps: float) -> Tracer:
    """Return x over the root of its sum of squares plus eps, along the last axis."""
    return x * f.rsqrt((x * x).sum(-1, keepdims=True) + eps)


def softmax(x: Tracer, axis: int = -1) -> Tracer:
    """Return exp(x) scaled to sum 1 along an axis; the largest is subtracted first."""
    weights = f.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)
