"""Feed-forward layers and heads at the dimensions of real models, with random weights, on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from poot_core import Settings, bf16
from poot_executor_parity import Case, Context, run_case
from poot_graph_ir import ElementType, Tracer, ops
from poot_quant import FORMATS

# One token, a few rows together, and a prefill.
STEPS = ((1,), (1, 1, 1), (40,))
# Sums of K terms in f32 differ by their order: eps sqrt(K) = 6e-8 * 90 at K of 8192, and the largest of
# some thousand results is five times that.
REORDERED = 5e-5
# Activations in blocks of 8 bits: half a step of 1/127 of a block's largest, 0.6% of a product's root
# mean square, twice in a row; the largest of thousands of results is some five times that.
ROUNDED = 0.08


def feed_forward(hidden: int, intermediate: int, dtype: ElementType) -> Callable[[Context], Tracer]:
    def build(c: Context) -> Tracer:
        normed = ops.rms_norm(c.x, None, eps=1e-5)
        gate, up = (
            ops.linear(normed, c.declare(name, (intermediate, hidden), dtype))
            for name in ("g", "u")
        )
        return c.x + ops.linear(ops.swiglu(gate, up), c.declare("d", (hidden, intermediate), dtype))

    return build


def head(hidden: int, vocabulary: int, dtype: ElementType) -> Callable[[Context], Tracer]:
    return lambda c: ops.linear(c.x, c.declare("w", (vocabulary, hidden), dtype))


def check(name: str, width: int, build: Callable[[Context], Tracer], precision: str) -> None:
    tolerance = REORDERED if precision == "f32" else ROUNDED
    case = Case(
        name=f"real/{name}", build=build, width=width, steps=STEPS, precision=precision,
        tolerance=tolerance,
    )  # fmt: skip
    outcome = run_case(case, "cpu", Settings.from_environment())
    assert outcome.is_equal, f"{outcome.error:.1e} is over {outcome.tolerance:.1e}"


@pytest.mark.parametrize("precision", ["f32", "auto"])
def test_smollm2_135m_feed_forward_real_dims(precision: str) -> None:
    check("smollm2", 576, feed_forward(576, 1536, FORMATS["Q4_1"]), precision)


def test_smollm2_135m_head_real_dims() -> None:
    check("smollm2 head", 576, head(576, 49152, FORMATS["Q8_0"]), "auto")


@pytest.mark.parametrize("precision", ["f32", "auto"])
def test_llama_3_2_1b_feed_forward_real_dims(precision: str) -> None:
    check("llama-1b", 2048, feed_forward(2048, 8192, FORMATS["Q4_K"]), precision)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [bf16, FORMATS["Q6_K"]], ids=lambda dtype: dtype.name)
def test_llama_3_1_8b_feed_forward_real_dims(dtype: ElementType) -> None:
    check(f"llama-8b {dtype.name}", 4096, feed_forward(4096, 14336, dtype), "f32")
