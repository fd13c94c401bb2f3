from __future__ import annotations

from collections import Counter

import numpy as np

from poot_core import T, f32
from poot_graph_ir import (
    Builder,
    Equation,
    Literal,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    fold_constants,
    graph_hash,
    inline_regions,
    live_ranges,
    ops,
    split_layers,
    uses,
    verify,
)


def test_dead_code_goes_with_its_weights_and_slots_stay() -> None:
    b = Builder("t")
    x = b.slot("x", (T, 4), f32)
    b.slot("unused", (T,), f32)
    ops.linear(x, b.const("dead", (2, 4), f32))
    b.output("y", ops.linear(x, b.const("live", (2, 4), f32)))
    graph = eliminate_dead_code(b.finish())
    verify(graph)
    assert [e.op for e in graph] == ["dot_general"]
    assert [v.name for v in graph.inputs] == ["x", "unused", "live"]


def test_common_subexpressions_merge_within_a_layer_only() -> None:
    b = Builder("t")
    x = b.slot("x", (T, 4), f32)
    total = ops.exp(x) + ops.exp(x)
    for i in range(2):
        with b.layer(i):
            total = total + ops.exp(x) * ops.exp(x)
    b.output("y", total + ops.cos(x) * 1.0 + ops.cos(x) * -1.0)
    graph = eliminate_common_subexpressions(b.finish())
    verify(graph)
    counts = Counter(e.op for e in graph)
    assert (counts["exp"], counts["cos"], counts["mul"]) == (3, 1, 4)


def test_writes_to_a_state_are_never_merged(decoder) -> None:
    graph = eliminate_common_subexpressions(decoder(1))
    verify(graph)
    assert sum(e.op == "kv_write" for e in graph) == 2


def test_constants_fold_into_literals_and_uniform_ones_into_full() -> None:
    functions = {"mul": np.multiply, "add": np.add, "sub": np.subtract}

    def evaluate(equation: Equation, operands):
        if equation.op == "literal":
            return (equation.attributes["value"].array,)
        if equation.op == "full":
            return (
                np.full(equation.attributes["shape"], equation.attributes["value"], np.float32),
            )
        if equation.op == "broadcast_in_dim":
            return (np.broadcast_to(operands[0], equation.attributes["shape"]),)
        return (functions[equation.op](*operands),)

    b = Builder("t")
    x = b.slot("x", (T, 3), f32)
    numbers = b.literal(np.array([1.0, 2.0, 4.0], np.float32))
    b.output("y", x * (numbers * 2.0 + 1.0) + (numbers - numbers))
    graph = fold_constants(b.finish(), evaluate)
    verify(graph)
    assert [e.op for e in graph] == [
        "literal", "broadcast_in_dim", "mul", "full", "broadcast_in_dim", "add",
    ]  # fmt: skip
    literal = graph.equations[0].attributes["value"]
    assert isinstance(literal, Literal)
    assert literal.array.tolist() == [3.0, 5.0, 9.0]
    assert graph.equations[3].attributes["value"] == 0.0


def test_inlined_regions_leave_primitives_alone(decoder) -> None:
    graph = decoder(2)
    flat = inline_regions(graph, lambda e: True)
    verify(flat)
    assert not any(e.is_region for e in flat)
    attend = next(e for e in graph if e.op == "attend")
    write = next(e for e in graph if e.op == "kv_write")
    grown = 2 * (len(attend.body.equations) - 1) + 4 * (len(write.body.equations) - 1)
    assert len(flat.equations) == len(graph.equations) + grown
    some = inline_regions(graph, lambda e: e.op == "kv_write")
    verify(some)
    assert {e.op for e in some if e.is_region} == {"attend"}


def test_equal_layers_hash_alike_and_match_by_position(decoder) -> None:
    layers = split_layers(decoder(4))
    assert sorted(layers) == [0, 1, 2, 3]
    assert len({layer.hash for layer in layers.values()}) == 1
    one, two = layers[1], layers[2]
    assert [v.type for v in one.inputs] == [v.type for v in two.inputs]
    renamed = [v.name.replace(".1.", ".2.") for v in one.inputs]
    assert renamed == [v.name for v in two.inputs]
    assert one.outputs[-1].id in {v.id for v in two.inputs}
    windowed = split_layers(decoder(4, window=3))
    assert windowed[0].hash != windowed[1].hash == windowed[3].hash


def test_layers_differ_by_constant_and_by_which_state_they_update() -> None:
    def layer_hash(factor: float, swap: bool) -> str:
        b = Builder("t")
        x = b.slot("x", (T, 4), f32)
        a, c = b.state("a", (4,), f32), b.state("c", (4,), f32)
        with b.layer(0):
            new_a, new_c = a * factor + x.sum(0), c + x.sum(0)
        b.update_state(c if swap else a, new_a)
        b.update_state(a if swap else c, new_c)
        return split_layers(b.finish())[0].hash

    assert len({layer_hash(f, s) for f in (1.0, 2.0) for s in (False, True)}) == 4


def test_uses_and_live_ranges(decoder) -> None:
    graph = decoder(2)
    found = uses(graph.equations)
    ranges = live_ranges(graph)
    for identity, places in found.items():
        for place in places:
            assert graph.equations[place.equation].inputs[place.operand].id == identity
        assert ranges[identity][1] >= places[-1].equation
    for _, value in (*graph.outputs, *graph.updates):
        assert ranges[value.id][1] == len(graph.equations)


def test_passes_are_stable_under_repetition(decoder) -> None:
    graph = decoder(2)
    once = eliminate_dead_code(eliminate_common_subexpressions(graph))
    twice = eliminate_dead_code(eliminate_common_subexpressions(once))
    assert graph_hash(once) == graph_hash(twice)
