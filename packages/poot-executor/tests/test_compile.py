"""What plans look like: fused launches, repeated layers, refusals, bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_decoder import OPTIONS, make

from poot_core import L, PootError, T, Target, UnsupportedError, VerifyError, f32, i32
from poot_executor import trace_options
from poot_executor._codec import decode, encode
from poot_executor._compile import PlanOptions, compile_graph, pipeline
from poot_executor._verify import verify_planned
from poot_executor._weights import Matrix
from poot_executor.passes import choose_activation
from poot_graph_ir import Builder, ops
from poot_kernelgen import AttendRequest, ContractionRequest, GatherRequest, RowProgram

TARGET = Target.parse("cpu:x86-64:avx2")


def planned(precision="f32", repeat_layers=True, target=TARGET, **choices):
    graph = make(**choices).trace(trace_options(OPTIONS))
    options = PlanOptions(
        precision=precision, max_tokens=64, max_logits=64, context_tokens=64,
        repeat_layers=repeat_layers, check=True,
    )  # fmt: skip
    return compile_graph(graph, target, options)


def kinds(program):
    return [
        (type(program.requests[launch.variants[0]]), launch.role) for launch in program.launches
    ]


def test_a_layer_is_few_launches():
    program = planned("auto", formats=("Q8_0",), layers=1)
    assert kinds(program) == [
        (RowProgram, "main"),  # cosines and sines, once a step
        (GatherRequest, "main"),
        (RowProgram, "main"),  # norm, 8 bits
        (ContractionRequest, "main"),  # q, k, v
        (RowProgram, "main"),  # rotation, key and value stores
        (AttendRequest, "main"),
        (AttendRequest, "merge"),
        (RowProgram, "main"),  # 8 bits
        (ContractionRequest, "main"),  # output projection, residual
        (RowProgram, "main"),  # norm, 8 bits
        (ContractionRequest, "main"),  # gate and up
        (RowProgram, "main"),  # 8 bits
        (ContractionRequest, "main"),  # down, residual
        (RowProgram, "main"),  # wanted rows, norm, 8 bits
        (ContractionRequest, "main"),  # head
    ]
    matrices = [[part.name for part in matrix.parts] for matrix in program.matrices]
    assert matrices == [
        ["embed"],
        ["0.q.weight", "0.k.weight", "0.v.weight"],
        ["0.o.weight"],
        ["0.gate.weight", "0.up.weight"],
        ["0.down.weight"],
    ]  # the head is the embedding's copy


def test_attention_stores_what_its_only_reader_rounds_to():
    target = Target("ptx", "sm_90a", frozenset({"mma-k16"}))
    program = planned("auto", formats=("bf16",), layers=1, target=target)
    attention = [r for r in program.requests if isinstance(r, AttendRequest)]
    assert {request.result_dtype for request in attention} == {"bf16"}
    others = planned("auto", formats=("Q8_0",), layers=1, target=target).requests
    assert {r.result_dtype for r in others if isinstance(r, AttendRequest)} == {"f32"}
    assert kinds(program).count((RowProgram, "main")) == 5  # none rounds what attention gave


def test_stored_halves_that_meet_become_a_gated_pair():
    program = planned(mlp="fused", fused_qkv=True, layers=1)
    (gated,) = [matrix for matrix in program.matrices if matrix.gated]
    assert [(p.name, p.first_row, p.num_rows) for p in gated.parts] == [
        ("0.gate_up.weight", 0, 96),
        ("0.gate_up.weight", 96, 96),
    ]


def test_products_of_other_formats_stay_apart():
    program = planned("auto", formats=("Q4_1", "Q8_0"), layers=1)
    names = [[part.name for part in matrix.parts] for matrix in program.matrices]
    assert ["0.q.weight", "0.k.weight"] in names
    assert ["0.v.weight"] in names


def canonical(program):
    """Launches with intermediates numbered by first use."""
    numbers = {}
    rows = []
    for launch in program.launches:
        operands = [
            (o.kind, numbers.setdefault(o.value, len(numbers)))
            if o.kind == "temp"
            else (o.kind, str(program.matrices[o.value]))
            if o.kind == "matrix"
            else (o.kind, program.vectors[o.value])
            if o.kind == "vector"
            else tuple(o)
            for o in launch.operands
        ]
        requests = [program.requests[v] for v in launch.variants]
        rows.append((launch.label, launch.role, launch.symbol, requests, operands))
    return rows


@pytest.mark.parametrize("layers", [4, 5, 6, 9, 12])
@pytest.mark.parametrize(
    "choices",
    [{}, {"post_norms": True}, {"window": 7}, {"parallel": True}, {"formats": ("Q4_1", "Q8_0")}],
    ids=str,
)
def test_repeated_layers_are_planned_as_if_one_by_one(layers, choices):
    once = planned(layers=layers, **choices)
    each = planned(layers=layers, repeat_layers=False, **choices)
    assert canonical(once) == canonical(each)
    assert {s.name for s in once.states} == {s.name for s in each.states}


def test_memory_does_not_grow_with_layers():
    assert planned(layers=12).arena_bytes == planned(layers=5).arena_bytes


@pytest.mark.parametrize("choices", [{}, {"formats": ("Q5_0",), "mlp": "fused"}])
def test_a_program_survives_its_bytes(choices):
    program = planned("auto", **choices)
    again = decode(encode(program))
    assert again == program
    assert hash(again.requests) == hash(program.requests)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_broken_bytes_are_one_clean_error(cut):
    data = encode(planned())
    with pytest.raises(PootError, match="no program"):
        decode(data[:cut])


@pytest.mark.parametrize("record", ['["!Nothing",1]', '["!Temp",1]', '["!bytes",0,4]', "["])
def test_bytes_of_another_shape_are_one_clean_error(record):
    with pytest.raises(PootError, match="no program"):
        decode(len(record).to_bytes(8, "little") + record.encode() + b"abc")


def test_byte_strings_and_numbers_keep_their_bits():
    record = (b"one", b"", (1e-30, 0.1, -0.0, float("inf")), b"\x00\xff", None, True)
    assert repr(decode(encode(record))) == repr(record)


@pytest.mark.parametrize(
    ("source", "k", "precision", "features", "expected"),
    [
        ("Q4_1", 64, "auto", "", "i8"),
        ("Q4_1", 64, "f32", "", "f32"),
        ("Q4_1", 48, "auto", "", "f32"),
        ("bf16", 64, "auto", "", "f32"),
        ("bf16", 64, "auto", "avx512bf16", "bf16"),
        ("bf16", 65, "auto", "avx512bf16", "f32"),
        ("f16", 64, "auto", "avx512bf16", "f32"),
        ("f32", 64, "auto", "avx512bf16", "f32"),
    ],
)
def test_the_weight_alone_decides_how_operands_are_rounded(
    source, k, precision, features, expected
):
    found = choose_activation(Matrix(source, k, ()), precision, frozenset({features}))
    assert found == expected


def test_a_plan_does_not_depend_on_the_bound_of_tokens_but_for_memory():
    graph = make().trace(trace_options(OPTIONS))
    small, large = (
        compile_graph(graph, TARGET, PlanOptions(max_tokens=n, context_tokens=64))
        for n in (16, 512)
    )
    assert small.launches == large.launches
    assert small.requests == large.requests


def test_passes_print_as_what_they_do():
    names = [repr(each).partition("(")[0] for each in pipeline(TARGET, PlanOptions())]
    assert names[0] == "InlineRegions"
    assert "PairGates" in names


def test_the_verifier_names_the_pass_and_the_equation():
    graph = make().trace(trace_options(OPTIONS))
    broken = replace(graph, equations=graph.equations[1:])
    with pytest.raises(VerifyError, match=r"after Drop: \w+ of .* reads %\d+, which nothing"):
        verify_planned(broken, "Drop")
    twice = replace(graph, equations=(graph.equations[0], *graph.equations))
    with pytest.raises(VerifyError, match="a second time"):
        verify_planned(twice, "Twice")


# --- refusals ---


def refused(build):
    b = Builder("odd")
    x = b.slot("x", (T, 8), f32)
    ids = b.slot("logit_positions", (L,), i32)
    with b.scope("strange"):
        y = build(b, x)
    b.output("logits", ops.gather(y, ids))
    with pytest.raises(UnsupportedError) as caught:
        compile_graph(b.finish(), TARGET)
    return str(caught.value)


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (lambda b, x: ops.dot_general(x, x * 2.0, contract=(0, 0)), "dot_general"),
        (lambda b, x: ops.cumsum(x, 0), "no kernel has the operation 'cumsum'"),
        (lambda b, x: x + x.sum(0, keepdims=True), "it reduces over rows"),
        (lambda b, x: x + b.iota((T, 8), 0).astype(f32), "number of its row"),
        (lambda b, x: x.transpose(1, 0).reshape(T, 8), "rows do not stay rows"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_equation_and_what_is_missing(build, found):
    message = refused(build)
    assert found in message
    assert "of strange" in message
    assert "test_compile.py" in message


def test_a_graph_without_rows_of_l_is_refused():
    b = Builder("odd")
    b.output("y", b.slot("x", (T, 8), f32) * 2.0)
    with pytest.raises(UnsupportedError, match=r"outputs y: .*rows of L"):
        compile_graph(b.finish(), TARGET)


def test_planning_many_layers_scales():
    # Not a time: the number of planned equations must not follow the number of layers.
    from poot_executor._layers import collapse

    sizes = []
    for layers in (10, 40):
        graph = make(layers=layers).trace(trace_options(OPTIONS))
        short, runs = collapse(graph)
        assert len(runs) == 1
        sizes.append(len(short.equations))
    assert sizes[0] == sizes[1]
    assert np.diff(sizes).item() == 0
