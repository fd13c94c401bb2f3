from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from poot_core import T, VerifyError, bf16, f32, i32
from poot_graph_ir import Builder, Graph, Storage, TensorType, ops, verify


def _graph() -> Graph:
    b = Builder("t")
    x = b.slot("x", (T, 4), f32)
    pool = b.state("pool", (8, 4), f32)
    new = ops.scatter(pool, b.slot("rows", (T,), i32), x)
    b.update_state(pool, new)
    b.output("y", ops.exp(x) * b.const("w", (4,), f32))
    return b.finish()


def _edit(graph: Graph, name: str, **changes: object) -> Graph:
    equations = tuple(replace(e, **changes) if e.op == name else e for e in graph.equations)
    return replace(graph, equations=equations)


def _wrong_type(graph: Graph) -> Graph:
    (old,) = (e for e in graph if e.op == "exp")
    return _edit(graph, "exp", outputs=(replace(old.output, type=TensorType((T, 5), f32)),))


def _wrong_dtype(graph: Graph) -> Graph:
    (old,) = (e for e in graph if e.op == "exp")
    return _edit(graph, "exp", outputs=(replace(old.output, type=TensorType((T, 4), bf16)),))


def _unordered(graph: Graph) -> Graph:
    return replace(graph, equations=graph.equations[::-1])


def _defined_twice(graph: Graph) -> Graph:
    return replace(graph, equations=(*graph.equations, graph.equations[-1]))


def _unknown(graph: Graph) -> Graph:
    return _edit(graph, "exp", op="exq")


def _attribute(graph: Graph) -> Graph:
    return _edit(graph, "scatter", attributes={"leading": "two"})


def _storage(graph: Graph) -> Graph:
    (old,) = (e for e in graph if e.op == "exp")
    return _edit(graph, "exp", outputs=(replace(old.output, storage=Storage.STATE),))


def _const_written(graph: Graph) -> Graph:
    inputs = tuple(
        replace(v, storage=Storage.CONST) if v.name == "pool" else v for v in graph.inputs
    )
    (old,) = (e for e in graph if e.op == "scatter")
    pool = next(v for v in inputs if v.name == "pool")
    graph = _edit(graph, "scatter", inputs=(pool, *old.inputs[1:]))
    return replace(graph, inputs=inputs, updates=())


def _read_after_donation(graph: Graph) -> Graph:
    return replace(graph, outputs=(("pool", graph.states["pool"]),))


def _update_of_nothing(graph: Graph) -> Graph:
    return replace(graph, updates=(("other", graph.updates[0][1]),))


def _named_twice(graph: Graph) -> Graph:
    inputs = tuple(replace(v, name="x") for v in graph.inputs)
    return replace(graph, inputs=inputs)


def test_a_traced_graph_verifies(decoder) -> None:
    verify(_graph())
    verify(decoder(3))


@pytest.mark.parametrize(
    "break_it",
    [
        _wrong_type,
        _wrong_dtype,
        _unordered,
        _defined_twice,
        _unknown,
        _attribute,
        _storage,
        _const_written,
        _read_after_donation,
        _update_of_nothing,
        _named_twice,
    ],
)
def test_each_broken_invariant_is_found(break_it: Callable[[Graph], Graph]) -> None:
    with pytest.raises(VerifyError, match="after 'broken'"):
        verify(break_it(_graph()), "broken")


def test_a_region_may_not_change_its_body_under_its_operands(decoder) -> None:
    graph = decoder(1)
    (region,) = (e for e in graph if e.op == "attend")
    assert region.body is not None
    short = replace(region.body, equations=region.body.equations[:-1])
    for changes in ({"body": short}, {"op": "add"}, {"inputs": region.inputs[:-1]}):
        with pytest.raises(VerifyError, match=r"in %\d+: f32\[T, 4, 16\] = (attend|add)\("):
            verify(_edit(graph, "attend", **changes))


def test_a_pool_may_not_be_read_after_kv_write_took_it() -> None:
    b = Builder("t")
    step = b.step_slots(1)
    pool = b.state("k", (4, 2, 1, 4), f32)
    new = ops.kv_write(pool, b.slot("v", (T, 1, 4), f32), step.slot_mapping)
    b.update_state(pool, new)
    b.output("sum", pool.sum((0, 1, 2, 3)))
    with pytest.raises(VerifyError, match="'k' is used after 'kv_write'"):
        verify(b.finish())
