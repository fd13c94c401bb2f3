"""Layers and pieces that several families share."""

from __future__ import annotations

from poot_graph_ir import Tracer, ops
from poot_models.components.activations import activation
from poot_models.components.rotary import Rotation
from poot_models.components.step import Step

__all__ = ["fused_gated_mlp", "gated_mlp", "mlp", "pre_norm_layer"]


def gated_mlp(step: Step, x: Tracer, name: str) -> Tracer:
    """Return down(act(gate(x)) * up(x)), (T, hidden_size): SwiGLU or GeGLU (arXiv:2002.05202)."""
    act = activation(step.decoder.activation)
    gated = act(step.linear(x, f"{name}.gate_proj")) * step.linear(x, f"{name}.up_proj")
    return step.linear(gated, f"{name}.down_proj")


def fused_gated_mlp(step: Step, x: Tracer, name: str) -> Tracer:
    """Return the same where one projection holds the rows of gate and then of up."""
    gate, up = ops.split(
        step.linear(x, f"{name}.gate_up_proj"), (step.decoder.intermediate_size,) * 2
    )
    return step.linear(activation(step.decoder.activation)(gate) * up, f"{name}.down_proj")


def mlp(step: Step, x: Tracer, up: str, down: str) -> Tracer:
    """Return down(act(up(x))), (T, hidden_size)."""
    return step.linear(activation(step.decoder.activation)(step.linear(x, up)), down)


def pre_norm_layer(
    step: Step,
    x: Tracer,
    index: int,
    rope: Rotation | None,
    *,
    window: int | None = None,
    scale: float | None = None,
) -> Tracer:
    """Return x after one Llama layer: x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        step: The step being traced.
        x: (T, hidden_size) residual stream.
        index: Number of the layer.
        rope: Rotation of queries and keys, or None for none.
        window: Tokens that a token sees, itself included, or None for all.
        scale: Factor on the scores; by default 1 / sqrt(head_dim).
    """
    name = f"model.layers.{index}"
    h = step.rms_norm(x, f"{name}.input_layernorm")
    q, k, v = step.project(h, f"{name}.self_attn")  # (T, heads, head_dim) each
    if rope is not None:
        q, k = rope(q), rope(k)
    h = step.attend(index, q, k, v, window=window, scale=scale)
    x = x + step.linear(h, f"{name}.self_attn.o_proj")
    h = step.rms_norm(x, f"{name}.post_attention_layernorm")
    return x + gated_mlp(step, h, f"{name}.mlp")
