from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

from poot_core import (
    DTypeError,
    PootError,
    ShapeError,
    T,
    TraceError,
    bf16,
    boolean,
    f16,
    f32,
    i32,
)
from poot_graph_ir import Builder, Storage, Trace, Tracer, ops
from poot_quant import format_by_name


def _line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_shape_error_names_equation_operands_scope_and_model_line() -> None:
    b = Builder("model")
    x = b.slot("x", (T, 8), f32)
    w = b.const("blk.0.w", (4, 8), bf16)
    wide = ops.to_f32(w)
    with b.layer(3), b.scope("mlp"), pytest.raises(ShapeError) as caught:
        ops.dot_general(x, wide, contract=(1, 0))
    line = _line() - 1
    text = str(caught.value)
    assert "dot_general(%0 x: f32[T, 8], %2: f32[4, 8])" in text
    assert f"test_builder.py:{line}" in text
    assert "layer.3/mlp" in text
    assert "8 is not 4" in text


def test_dtype_error_names_the_model_line_and_is_a_type_error() -> None:
    b = Builder("model")
    x, y = b.slot("x", (T,), f32), b.slot("y", (T,), f16)
    line = _line() + 2
    with pytest.raises(TypeError, match=r"equal dtypes, got f32\[T\] and f16\[T\]") as caught:
        x + y
    assert f"test_builder.py:{line}" in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), DTypeError)


@pytest.mark.parametrize(
    "use", [bool, int, float, len, iter, list, np.asarray, lambda x: [1, 2][x], lambda x: x and 1]
)
def test_reading_a_traced_tensor_raises_trace_error_with_the_line(use) -> None:
    x = Builder("model").slot("x", (T,), i32)
    with pytest.raises(TraceError, match=r"test_builder.py:\d+"):
        use(x)


def test_scalars_take_the_dtype_of_the_tensor_and_nothing_else_promotes() -> None:
    b = Builder("model")
    x, n, p = (b.slot(name, (T,), d) for name, d in (("x", f16), ("n", i32), ("p", boolean)))
    assert (x * 2).dtype is f16
    assert (1.5 - x).dtype is f16
    assert (n + 1).dtype is i32
    assert (n < 3).dtype is boolean
    assert (~p & True).dtype is boolean
    for bad in (lambda: n * 1.5, lambda: n + True, lambda: x + n, lambda: p + 1, lambda: n / 2):
        with pytest.raises(DTypeError):
            bad()


def test_equal_scalars_are_recorded_once_and_zero_keeps_its_sign() -> None:
    b = Builder("model")
    x = b.slot("x", (T,), f32)
    b.output("y", x * 2.0 + 2.0 + 0.0 - (-0.0))
    fulls = [e.attributes["value"] for e in b.finish() if e.op == "full"]
    assert [str(value) for value in fulls] == ["2.0", "0.0", "-0.0"]


def test_broadcasting_follows_numpy_and_symbolic_extents_match_themselves_only() -> None:
    b = Builder("model")
    x, w = b.slot("x", (T, 8), f32), b.const("w", (8,), f32)
    column = b.slot("column", (T, 1), f32)
    assert (x * w).shape == (x * column).shape == (T, 8)
    assert (w[None, :] * column).shape == (T, 8)
    with pytest.raises(ShapeError, match="do not broadcast"):
        x * b.slot("y", (8, 8), f32)


def test_indexing_refuses_what_it_cannot_express() -> None:
    x = Builder("model").slot("x", (T, 8), f32)
    assert x[:, 2:5].shape == (T, 3)
    assert x[..., -1].shape == (T,)
    assert x[:, None, ::3].shape == (T, 1, 3)
    for bad in (
        lambda: x[0],
        lambda: x[1:],
        lambda: x[:, 8],
        lambda: x[:, ::-1],
        lambda: x[0, 0, 0],
    ):
        with pytest.raises(ShapeError):
            bad()


def test_traces_do_not_mix() -> None:
    x, y = (Builder(name).slot("x", (T,), f32) for name in ("a", "b"))
    with pytest.raises(TraceError, match="two traces"):
        x + y


def test_region_bodies_are_closed_and_shared_between_equal_regions() -> None:
    b = Builder("model")
    x, y = b.slot("x", (T,), f32), b.slot("y", (T,), f32)

    def double(trace: Trace, a: Tracer) -> Tracer:
        return a + a

    def leaky(trace: Trace, a: Tracer) -> Tracer:
        return a + y

    results = [b.region("double", (v,), {"factor": 2}, double)[0] for v in (x, y)]
    b.output("z", results[0] * results[1])
    with pytest.raises(TraceError, match="outside of this region"):
        b.region("leaky", (x,), {}, leaky)
    first, second = (e for e in b.finish() if e.is_region)
    assert first.body is second.body is not None
    assert [e.op for e in first.body.equations] == ["add"]
    assert first.body.inputs[0].storage is Storage.ARGUMENT


def test_declarations_are_checked() -> None:
    b = Builder("model")
    w = b.const("w", (4, 64), format_by_name("Q8_0"))
    assert b.const("w", (4, 64), format_by_name("Q8_0")) is w
    with pytest.raises(TraceError, match=r"declared as const Q8_0\[4, 64\]"):
        b.const("w", (4, 64), f32)
    with pytest.raises(ShapeError, match="whole number of blocks of 32"):
        b.const("v", (4, 63), format_by_name("Q8_0"))
    with pytest.raises(DTypeError, match="packed"):
        w * 2.0
    state = b.state("s", (4,), f32)
    for new in (w, b.slot("x", (T,), f32)):
        with pytest.raises(TraceError, match="cannot update"):
            b.update_state(state, new)
    b.update_state(state, state * 2.0)
    with pytest.raises(TraceError, match="cannot update"):
        b.update_state(state, state)
    b.output("y", state)
    with pytest.raises(TraceError, match="twice"):
        b.output("y", state)
    b.finish()
    with pytest.raises(TraceError, match="finished"):
        b.finish()


def test_attend_refuses_heads_that_do_not_fit() -> None:
    b = Builder("model")
    step = b.step_slots(2)
    pool = b.state("k", (4, 8, 2, 16), f16)
    for shape in ((T, 3, 16), (T, 4, 8), (T, 64)):
        q = b.slot(f"q{len(shape)}{shape[-1]}", shape, f32)
        with pytest.raises(ShapeError, match="'attend' takes q"):
            ops.attend(q, pool, pool, step.positions, step.rows, step.block_tables, scale=1.0)
    q = b.slot("q", (T, 4, 16), f32)
    with pytest.raises(ShapeError, match="sequence_lengths"):
        ops.attend(
            q, pool, pool, step.positions, step.rows, step.block_tables, scale=1.0, causal=False
        )


def test_linear_names_the_weight() -> None:
    b = Builder("model")
    with pytest.raises(ShapeError, match=r"'blk.0.w'|blk\.0\.w f32\[4, 9\]"):
        ops.linear(b.slot("x", (T, 8), f32), b.const("blk.0.w", (4, 9), f32))


def test_step_slots_and_kv_states_have_the_documented_types(decoder) -> None:
    graph = decoder(2)
    assert {name: str(v.type) for name, v in graph.slots.items()} == {
        "token_ids": "i32[T]",
        "positions": "i32[T]",
        "rows": "i32[T]",
        "sequence_lengths": "i32[R]",
        "block_tables": "i32[R, 3]",
        "slot_mapping": "i32[T]",
        "logit_positions": "i32[L]",
    }
    assert {name: str(v.type) for name, v in graph.states.items()} == {
        f"kv.{i}.{part}": "f16[6, 8, 2, 16]" for i in range(2) for part in ("key", "value")
    }
    assert {name for name, _ in graph.updates} == set(graph.states)


def test_every_error_is_a_poot_error() -> None:
    b = Builder("model")
    x = b.slot("x", (T, 8), f32)
    attempts = (
        lambda: x.reshape(3, -1),
        lambda: x.reshape(8),
        lambda: x.reshape("a"),
        lambda: x.transpose(0, 0),
        lambda: x.sum(2),
        lambda: x.mean(0),
        lambda: ops.split(x, (3, 4)),
        lambda: ops.concatenate([x, x], axis=0),
        lambda: ops.top_k(x, 9),
        lambda: ops.gather(x, x),
        lambda: ops.dequantize(x),
        lambda: ops.add(1.0, 2.0),
        lambda: b.literal(np.array(["a"])),
        lambda: b.iota((T,), 1),
    )
    for attempt in attempts:
        with pytest.raises(PootError, match=r"test_builder\.py:\d+"):
            attempt()
