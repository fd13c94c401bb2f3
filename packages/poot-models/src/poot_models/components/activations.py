"""Activations by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable

from poot_graph_ir import Tracer, ops

__all__ = ["activation"]

_FUNCTIONS: dict[str, Callable[[Tracer], Tracer]] = {
    "silu": ops.silu,
    "swish": ops.silu,
    "gelu": ops.gelu,
    "gelu_fast": ops.gelu_tanh,  # the same polynomial, factored otherwise
    "gelu_new": ops.gelu_tanh,
    "gelu_pytorch_tanh": ops.gelu_tanh,
}


def activation(name: str) -> Callable[[Tracer], Tracer]:
    """Return the function of a name in ``ACTIVATIONS``."""
    return _FUNCTIONS[name]
