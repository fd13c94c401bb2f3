"""Activation functions."""

from __future__ import annotations

from math import pi, sqrt

from poot_graph_ir import _functional as f
from poot_graph_ir._tracer import Tracer

__all__ = ["gelu", "gelu_tanh", "relu", "sigmoid", "silu", "softcap", "swiglu"]


def sigmoid(x: Tracer) -> Tracer:
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (f.exp(-x) + 1.0)


def silu(x: Tracer) -> Tracer:
    """Return x * sigmoid(x), as x / (1 + exp(-x))."""
    return x / (f.exp(-x) + 1.0)


def relu(x: Tracer) -> Tracer:
    """Return the larger of x and 0."""
    return f.maximum(x, 0.0)


def gelu(x: Tracer) -> Tracer:
    """Return x times the normal distribution function, by erf (arXiv:1606.08415)."""
    return x * 0.5 * (f.erf(x * (1.0 / sqrt(2.0))) + 1.0)


def gelu_tanh(x: Tracer) -> Tracer:
    """Return the tanh approximation of gelu (arXiv:1606.08415, section 2)."""
    inner = (x + x * x * x * 0.044715) * sqrt(2.0 / pi)
    return x * 0.5 * (f.tanh(inner) + 1.0)


def swiglu(gate: Tracer, up: Tracer) -> Tracer:
    """Return silu(gate) * up (arXiv:2002.05202)."""
    return silu(gate) * up


def softcap(x: Tracer, cap: float) -> Tracer:
    """Return cap * tanh(x / cap): bounded by cap, steep 1 at zero."""
    return f.tanh(x * (1.0 / cap)) * cap
