"""Printing and parsing are inverse; hashes see meaning and nothing else."""

from __future__ import annotations

import contextlib
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_core import T, f32, i32
from poot_graph_ir import (
    Builder,
    Graph,
    GraphSyntaxError,
    Trace,
    Tracer,
    graph_hash,
    ops,
    parse,
    print_graph,
    verify,
)


def test_parse_inverts_print_on_a_decoder(decoder) -> None:
    graph = decoder(2, window=5)
    again = parse(print_graph(graph))
    assert again == graph
    assert print_graph(again) == print_graph(graph)
    assert [e.location for e in again] == [e.location for e in graph]
    verify(again, "parse")


_ATTRIBUTES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from([f32, i32, T]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


def _with_region(attributes: dict[str, object], name: str, array: np.ndarray) -> Graph:
    def body(trace: Trace, x: Tracer) -> Tracer:
        return x + x

    b = Builder(name)
    x = b.slot(f"{name} x", (T, 3), f32)
    with b.scope(name):
        (y,) = b.region("twice", (x,), attributes, body)
    b.output(f"{name} y", y)
    b.output("literal", b.literal(array))
    return b.finish()


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), _ATTRIBUTES, max_size=4),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.lists(st.floats(width=32), max_size=4),
    st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_]),
)
def test_parse_inverts_print_for_any_names_attributes_and_literals(
    attributes, name, numbers, dtype
) -> None:
    with np.errstate(all="ignore"):
        array = np.nan_to_num(np.array(numbers, np.float32), posinf=1.0, neginf=-1.0)
        graph = _with_region(attributes, name, np.clip(array, -1e9, 1e9).astype(dtype))
    again = parse(print_graph(graph))
    assert again == graph
    assert graph_hash(again) == graph_hash(graph)


def test_infinite_scalars_survive() -> None:
    b = Builder("t")
    b.output("y", ops.maximum(b.slot("x", (T,), f32), -math.inf) + math.inf)
    graph = b.finish()
    assert parse(print_graph(graph)) == graph


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("equations {", "equation {", "'equations' at line"),
        ("add(%", "add(%9", "a value that is defined above"),
        ("f32[T, 4]", "f33[T, 4]", "a dtype or a packed format"),
        ("outputs {", 'outputs { "a', "a token"),
        ("slot", "intermediate", "a const, slot or state"),
        ("AACAPw", "AACAPg", "a literal with the digest"),
        ("AACAPw", "AAC", "a literal of f32"),
        ("value = #", "value = #0", "a token|a literal"),
    ],
)
def test_malformed_text_is_one_error_that_names_the_line(old, new, message) -> None:
    b = Builder("t")
    x = b.slot("x", (T, 4), f32)
    b.output("y", x + b.literal(np.ones(4, np.float32))[None])
    text = print_graph(b.finish())
    assert old in text
    with pytest.raises(GraphSyntaxError, match=message) as caught:
        parse(text.replace(old, new))
    assert "line" in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cut_or_mangled_text_never_raises_anything_else(data) -> None:
    text = print_graph(_with_region({"a": (1, 2.5)}, "n", np.arange(3)))
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    noise = data.draw(st.text(st.sampled_from('%#@"{}()[]=:,a0 \n'), max_size=4))
    with contextlib.suppress(GraphSyntaxError):
        parse(text[:start] + noise + text[stop:])


def test_hash_ignores_lines_scopes_and_ids_and_sees_all_else(decoder) -> None:
    base = graph_hash(decoder(2))
    assert graph_hash(decoder(2, name="other")) == base
    assert graph_hash(decoder(1)) != base
    assert graph_hash(decoder(2, window=4)) != base

    def tiny(constant: float, weight: str, scope: str, spare: bool) -> str:
        b = Builder("t")
        x = b.slot("x", (T, 4), f32)
        if spare:
            b.slot("unused", (T,), f32)
        with b.scope(scope):
            y = x * constant + b.const(weight, (4,), f32)
        b.output("y", y)
        return graph_hash(b.finish())

    assert tiny(1.0, "w", "a", False) == tiny(1.0, "w", "b", False)
    variants = {
        tiny(c, w, "a", s) for c in (1.0, 2.0, -1.0) for w in ("w", "v") for s in (False, True)
    }
    assert len(variants) == 12
