"""Binding, states, donation, the cache of decoded weights, folding and inlining."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poot_core import T, VerifyError, bf16, f32, i32
from poot_eval import OracleProgram, evaluate, evaluate_equation
from poot_graph_ir import (
    Builder,
    Graph,
    TensorType,
    eliminate_common_subexpressions,
    fold_constants,
    inline_regions,
    ops,
    parse,
    print_graph,
    verify,
)

RNG = np.random.default_rng(17)
WEIGHTS = {
    "a": RNG.standard_normal((8, 8)).astype(np.float32).astype(bf16.numpy),
    "b": RNG.standard_normal((8, 8)).astype(np.float32).astype(bf16.numpy),
}
X = RNG.standard_normal((3, 8)).astype(np.float32)
STATE = RNG.standard_normal((4, 8)).astype(np.float32)


def _graph() -> Graph:
    b = Builder("t")
    x = b.slot("x", (T, 8), f32)
    h = ops.linear(x, b.const("a", (8, 8), bf16))
    h = ops.linear(ops.silu(h), b.const("b", (8, 8), bf16))
    pool = b.state("pool", (4, 8), f32)
    new = ops.scatter(pool, b.slot("rows", (T,), i32), h)
    b.update_state(pool, new)
    b.output("y", h + new.sum(0))
    return b.finish()


INPUTS = {"x": X, "rows": np.array([2, 0, -1], np.int32)}


def _expected() -> tuple[np.ndarray, np.ndarray]:
    a, b = (WEIGHTS[n].astype(np.float64) for n in "ab")
    h = X @ a.T
    h = h / (1 + np.exp(-h)) @ b.T
    pool = STATE.astype(np.float64)
    pool[2], pool[0] = h[0], h[1]
    return h + pool.sum(0), pool


def test_evaluate_changes_nothing_that_it_is_given() -> None:
    state = STATE.copy()
    result = evaluate(_graph(), INPUTS, WEIGHTS.__getitem__, {"pool": state}, check=True)
    y, pool = _expected()
    np.testing.assert_allclose(result.outputs["y"], y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.states["pool"], pool, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(state, STATE)


@pytest.mark.parametrize("cap", [0, 300, 1 << 20, None])
def test_a_program_gives_the_same_under_any_cap_and_overwrites_its_own_state(
    cap: int | None,
) -> None:
    calls: list[str] = []

    def weights(name: str) -> np.ndarray:
        calls.append(name)
        return WEIGHTS[name]

    cap_argument = {} if cap is None else {"cache_bytes": cap}
    program = OracleProgram(_graph(), weights, **cap_argument)
    program.states["pool"][:] = STATE
    pool = program.states["pool"]
    results = [program.step(INPUTS)["y"] for _ in range(3)]
    assert program.states["pool"] is pool
    np.testing.assert_allclose(results[0], _expected()[0], rtol=1e-4, atol=1e-4)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    # 256 bytes each as f32: none fits, one fits but the other pushes it out, both fit, as by default.
    assert len(calls) == {0: 6, 300: 6, 1 << 20: 2, None: 2}[cap]
    program.reset()
    assert not program.states["pool"].any()


def test_a_state_read_after_its_write_is_not_overwritten() -> None:
    b = Builder("t")
    pool = b.state("pool", (4, 8), f32)
    view = pool.reshape(32)
    new = ops.scatter(pool, b.slot("rows", (T,), i32), b.slot("x", (T, 8), f32))
    b.update_state(pool, new)
    b.output("old", view * 1.0)
    program = OracleProgram(b.finish(), lambda name: X)
    program.states["pool"][:] = STATE
    np.testing.assert_array_equal(program.step(INPUTS)["old"], STATE.reshape(32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:, :7]}, r"'x' is declared as f32\[T, 8\]"),
        ({"x": X.astype(np.float64)}, "got float64"),
        ({"x": X[:2]}, "with T=2"),
        ({"rows": None}, "'rows' of i32.* is missing"),
        ({"z": X}, "has no slot 'z'"),
    ],
)
def test_wrong_inputs_are_named(change, message) -> None:
    inputs = {k: v for k, v in {**INPUTS, **change}.items() if v is not None}
    with pytest.raises((ValueError, TypeError), match=message):
        evaluate(_graph(), inputs, WEIGHTS.__getitem__, {"pool": STATE})


def test_wrong_weights_are_named() -> None:
    for bad in (WEIGHTS["a"][:7], WEIGHTS["a"].astype(np.float32)):
        with pytest.raises(ValueError, match=r"weight 'a' is declared as bf16\[8, 8\], 128 bytes"):
            evaluate(_graph(), INPUTS, lambda name, bad=bad: bad, {"pool": STATE})


def test_weights_may_come_as_their_bytes() -> None:
    def raw(name: str) -> np.ndarray:
        return WEIGHTS[name].reshape(-1).view(np.uint8)

    a, b = (evaluate(_graph(), INPUTS, w, {"pool": STATE}) for w in (raw, WEIGHTS.__getitem__))
    np.testing.assert_array_equal(a.outputs["y"], b.outputs["y"])


def test_check_finds_an_equation_whose_type_is_wrong() -> None:
    graph = _graph()
    equations = tuple(
        replace(e, outputs=(replace(e.output, type=TensorType((T, 9), f32)),))
        if e.op == "div"
        else e
        for e in graph
    )
    with pytest.raises(VerifyError, match=r"'div' at .*its type says f32\[T, 9\]"):
        evaluate(
            replace(graph, equations=equations),
            INPUTS,
            WEIGHTS.__getitem__,
            {"pool": STATE},
            check=True,
        )


def test_outputs_that_are_inputs_or_weights() -> None:
    b = Builder("t")
    x = b.slot("x", (T,), f32)
    w = b.const("w", (2,), f32)
    for name, value in (("x", x), ("w", w), ("twice", w * 2.0)):
        b.output(name, value)
    got = evaluate(b.finish(), {"x": X[0]}, lambda name: np.array([1, 2], np.float32)).outputs
    assert (got["x"].tolist(), got["w"].tolist(), got["twice"].tolist()) == (
        X[0].tolist(), [1.0, 2.0], [2.0, 4.0],
    )  # fmt: skip


def test_passes_keep_the_bits() -> None:
    b = Builder("t")
    x, rows = b.slot("x", (T, 8), f32), b.slot("rows", (T,), i32)
    pool = b.state("pool", (1, 4, 8), f32)
    new = ops.kv_write(pool, x * b.literal(np.arange(8, dtype=np.float32)) * 2.0, rows)
    b.update_state(pool, new)
    scale = b.literal(np.linspace(0, 1, 8).astype(np.float32)) * 3.0 + 1.0
    b.output("y", ops.exp(x * scale) + ops.exp(x * scale) + new.sum((0, 1)))
    graph = b.finish()

    def run(graph: Graph) -> list[bytes]:
        verify(graph)
        result = evaluate(graph, INPUTS, lambda name: X, {"pool": STATE[None]}, check=True)
        return [result.outputs["y"].tobytes(), result.states["pool"].tobytes()]

    expected = run(graph)
    folded = fold_constants(graph, evaluate_equation)
    assert len(folded.equations) < len(graph.equations)
    assert run(folded) == expected
    assert run(eliminate_common_subexpressions(graph)) == expected
    assert run(inline_regions(graph, lambda e: True)) == expected
    assert run(parse(print_graph(graph))) == expected
