"""Cases of contractions and embedding reads: every stored type, epilogue and regime of rows."""

from __future__ import annotations

from collections.abc import Callable

from poot_core import bf16, f16, f32
from poot_executor_parity._case import Case, Context
from poot_graph_ir import ElementType, Tracer, ops
from poot_quant import FORMATS

__all__ = ["PRODUCT_CASES"]

_REGIMES = ((1,), (2, 1), (8,), (9,), (40, 1), (65,), (200,))
# Blocks of 32 in 8 bits: half a step of 1/127 of the largest, 0.6% of a product's root mean square
# for random rows; the largest of thousands of results is some five times that.
_ROUNDED = 0.05
_BF16 = 0.02


def _product(dtype: ElementType, n: int = 48) -> Callable[[Context], Tracer]:
    def build(c: Context) -> Tracer:
        return ops.linear(c.x, c.declare("w", (n, c.x.shape[-1]), dtype))  # pyright: ignore[reportArgumentType]

    return build


def _biased(c: Context) -> Tracer:
    return ops.linear(c.x, c.declare("w", (48, 64), f32), c.declare("b", (48,), bf16))


def _residual(c: Context) -> Tracer:
    return c.x + ops.linear(ops.silu(c.x), c.declare("w", (64, 64), f32)) * 0.5


def _gated(c: Context) -> Tracer:
    gate, up = (ops.linear(c.x, c.declare(name, (96, 64), f32)) for name in ("g", "u"))
    return ops.swiglu(gate, up)


def _gated_gelu_biased(c: Context) -> Tracer:
    gate, up = (
        ops.linear(c.x, c.declare(name, (96, 64), f32), c.declare(f"{name}b", (96,), f32))
        for name in ("g", "u")
    )
    return ops.gelu_tanh(gate) * up


def _gelu(c: Context) -> Tracer:
    return ops.gelu(_biased(c))


def _capped(c: Context) -> Tracer:
    return ops.softcap(ops.linear(c.x, c.declare("w", (100, 64), f32)), 3.0)


def _transposed(c: Context) -> Tracer:
    w = c.declare("w", (64, 48), f16)
    return ops.dot_general(c.x, ops.to_f32(w), contract=(-1, 0))


def _stacked(c: Context) -> Tracer:
    parts = [ops.linear(c.x, c.declare(name, (32, 64), f32)) for name in ("q", "k", "v")]
    return ops.concatenate([parts[2], parts[0] * parts[1]])


def _looked_up(dtype: ElementType) -> Callable[[Context], Tracer]:
    def build(c: Context) -> Tracer:
        table = c.declare("t", (70, 256), dtype)
        return ops.embedding(table, c.slots.token_ids) * 3.0 + 1.0

    return build


PRODUCT_CASES: tuple[Case, ...] = (
    *(
        Case(name=f"product/{dtype.name}", build=_product(dtype), width=256, steps=_REGIMES)
        for dtype in (f32, f16, bf16, *FORMATS.values())
    ),
    *(
        Case(
            name=f"product auto/{fmt.name}",
            build=_product(fmt),
            width=256,
            steps=_REGIMES,
            precision="auto",
            tolerance=_ROUNDED,
        )
        for fmt in FORMATS.values()
    ),
    Case(
        name="product auto/bf16",
        build=_product(bf16),
        width=256,
        steps=_REGIMES,
        precision="auto",
        tolerance=_BF16,
    ),
    Case(name="product/odd N", build=_product(f32, 77), steps=_REGIMES),
    Case(name="product/odd K", build=_product(f32), width=75, steps=_REGIMES),
    Case(name="product/wide", build=_product(bf16, 1000), width=576, steps=_REGIMES),
    Case(name="epilogue/bias", build=_biased, steps=_REGIMES),
    Case(name="epilogue/residual", build=_residual, steps=_REGIMES),
    Case(name="epilogue/gated", build=_gated, steps=_REGIMES),
    Case(name="epilogue/gated gelu biased", build=_gated_gelu_biased, steps=_REGIMES),
    Case(name="epilogue/gelu", build=_gelu, steps=_REGIMES),
    Case(name="epilogue/capped", build=_capped, steps=_REGIMES),
    Case(name="product/transposed", build=_transposed, steps=_REGIMES),
    Case(name="product/stacked", build=_stacked, steps=_REGIMES),
    *(
        Case(name=f"embedding/{dtype.name}", build=_looked_up(dtype))
        for dtype in (f32, f16, bf16, *FORMATS.values())
    ),
)
