# ruff: noqa: F821, F841, F401, B007 -- kernels under test, wrong on purpose
"""What the importer refuses, and how its messages point at the place."""

import numpy as np
import pytest

from poot_core import KernelSyntaxError, f32, i32, i64
from poot_kernel.language import (
    Array,
    Const,
    InOut,
    Out,
    Raw,
    copy,
    inline,
    kernel,
    load_part,
    mma,
    pipeline,
    zeros,
)

LANE = kernel(level="lane", grid=[1], workgroup_size=4)
TILE = kernel(level="tile", grid=[1])


def plain(x):
    return x + 1


@inline
def endless(x):
    return endless(x)


@inline
def wrong_helper(x):
    return x @ x


@LANE
def uses_try(n: i64):
    try:
        pass
    finally:
        pass


@LANE
def breaks(n: i64):
    for i in range(n):
        break


@LANE
def unknown_name(n: i64):
    x = n + missing


@LANE
def mixes_types(n: i64, x: Array[f32, "n"]):
    y = x[0] + n


@LANE
def divides_integers(n: i64):
    y = n / 2


@LANE
def calls_python(n: i64):
    y = plain(n)


@LANE
def recurses(n: i64):
    y = endless(n)


@LANE
def fails_in_helper(n: i64):
    y = wrong_helper(n)


@LANE
def changes_type(n: i64):
    x = 0
    for i in range(n):
        x = f32(i)


@LANE
def loop_variable_leaks(n: i64):
    for i in range(n):
        pass
    y = i + 1


@LANE
def one_sided(n: i64):
    if n > 3:
        y = n
    z = y + 1


@LANE
def returns_in_branch(n: i64):
    if n > 3:
        return


@LANE
def returns_a_value(n: i64):
    return n


@LANE
def wrong_rank(n: i64, x: Array[f32, "n", "n"]):
    y = x[0]


@LANE
def writes_read_only(n: i64, x: Array[f32, "n"]):
    x[0] = 1.0


@LANE
def float_index(n: i64, x: Array[f32, "n"]):
    y = x[1.5]


@LANE
def no_annotation(n, x: Array[f32, "n"]):
    pass


@LANE
def wrong_annotation(n: int):
    pass


@LANE
def missing_constant(n: i64, SIZE: Const[int]):
    pass


@LANE
def wrong_keyword(n: i64, x: InOut[i32, "n"]):
    y = copy(x[0:4], speed=3)


@LANE
def number_and_truth(n: i64):
    y = n and n > 2


@LANE
def lambda_statement(n: i64):
    import math


@LANE
def assertion(n: i64):
    assert 4 % 3 == 0, "sizes must divide"


@LANE
def subscripts_scalar(n: i64):
    y = n[0]


@TILE
def open_extent(n: i64, x: Array[f32, "n"]):
    tile = copy(x[0:n])


@TILE
def tile_in_branch(n: i64, x: Array[f32, "n"]):
    tile = zeros((4,), f32)
    if n > 2:
        tile = zeros((8,), f32)


@TILE
def no_load_part(n: i64, x: Array[f32, "n"]):
    for k in pipeline(0, n, 4):
        tile = copy(x[k : k + 4])


@TILE
def scalar_leaves_load_part(n: i64, x: Array[f32, "n"], y: Out[f32, 4]):
    acc = zeros((4,), f32)
    for k in pipeline(0, n, 4):
        with load_part():
            at = k + 4
            tile = copy(x[k : k + 4])
        acc = acc + tile * f32(at)


@TILE
def wrong_product(n: i64, w: Raw):
    a = zeros((4, 8), f32, space="private")
    acc = mma(a, a, zeros((4, 8), f32))


@TILE
def layout_missing(n: i64, w: Raw):
    a = copy(w[n:])


CASES = [
    (uses_try, "kernels have no 'try'", "try:"),
    (breaks, "kernels have no 'break': make the loop's condition say when to stop ('while')",
     "break"),
    (unknown_name, "name 'missing' is not defined", "missing"),
    (mixes_types, "'add' of f32 and i64: convert one of them, as in f32(x)", "x[0] + n"),
    (divides_integers, "'/' divides floats: write '//' or convert to a float first", "n / 2"),
    (calls_python, "'plain' is plain Python and is given values of run time; mark it @inline to "
     "import its body", "plain(n)"),
    (recurses, "helpers call each other without end; recursion is not possible", "endless(x)"),
    (fails_in_helper, "values have no operator @: write mma(a, b, acc)", "x @ x"),
    (changes_type, "'x' is i64 before the loop and f32 after a turn; begin with f32(...)",
     "for i in range(n):"),
    (loop_variable_leaks, "name 'i' has no value here: a loop's variable ends with the loop", "i"),
    (one_sided, "name 'y' has no value here: only one side of a branch assigns it", "y"),
    (returns_in_branch, "'return' cannot stand under a branch or loop of run time; assign to a "
     "variable and return it at the end", "return"),
    (returns_a_value, "a kernel returns nothing: it writes into its Out arrays", "return n"),
    (wrong_rank, "a array<f32, (\"n\", \"n\"), r, 4> has 2 axes, got 1 indices", "x[0]"),
    (writes_read_only, "'store' writes array<f32, (\"n\"), r, 4>, which is read-only", "x[0]"),
    (float_index, "an index must be an integer, got 1.5 (float)", "1.5"),
    (no_annotation, "parameter 'n' needs a type, such as i64", "n"),
    (wrong_annotation, "parameter 'n' must be a dtype, Array, Out, InOut, Raw or Const, got "
     "<class 'int'> (type)", "n: int"),
    (missing_constant, "compile-time parameter 'SIZE' is missing", "SIZE: Const[int]"),
    (wrong_keyword, "copy(): got an unexpected keyword argument 'speed'", "copy(x[0:4], speed=3)"),
    (number_and_truth, "'and' and 'or' take booleans, got a i64; bits are combined with & and |",
     "n"),
    (lambda_statement, "kernels have no imports inside; import at the top of the module",
     "import math"),
    (assertion, "assertion fails at import: sizes must divide",
     'assert 4 % 3 == 0, "sizes must divide"'),
    (subscripts_scalar, "cannot subscript a i64", "n[0]"),
    (open_extent, "a tile's extent must be known at import time: write the slice as "
     "[start : start + EXTENT]", "0:n"),
    (tile_in_branch, "'if' else yields: got (tile<f32, 4, accumulator>), expected (tile<f32, 8, "
     "accumulator>)", "if n > 2:"),
    (no_load_part, "a pipeline loop begins with 'with load_part():'", "tile = copy(x[k : k + 4])"),
    (scalar_leaves_load_part, "name 'at' has no value here: only tiles leave a load part", "at"),
    (wrong_product, "'mma' shapes must be (M, K), (K, N), (M, N), got tile<f32, 4x8, private>, "
     "tile<f32, 4x8, private>, tile<f32, 4x8, accumulator>", "mma(a, a, zeros((4, 8), f32))"),
    (layout_missing, "copies a box of an array: write x[i : i + SIZE], or give a layout",
     "copy(w[n:])"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "reason", "marked"), CASES, ids=lambda x: getattr(x, "name", ""))
def test_refusal_names_reason_and_place(given, reason, marked):
    with pytest.raises(KernelSyntaxError) as caught:
        given.specialise()
    error = caught.value
    assert error.reason == reason
    first, excerpt, caret = str(error).split("\n")
    assert first == f"{__file__}:{error.line}:{error.column}: {reason}"
    with open(__file__) as file:
        assert file.readlines()[error.line - 1].rstrip() == error.excerpt == excerpt[4:]
    start = len(caret) - len(caret.lstrip()) - 4
    assert start == error.column - 1
    if ":" not in marked or marked.count("\n") == 0:
        assert error.excerpt[start:].startswith(marked.split(":")[0])


def test_unknown_constant_is_refused():
    with pytest.raises(KernelSyntaxError, match="no compile-time parameter 'TM'; there are: SIZE"):
        missing_constant.specialise(SIZE=3, TM=4)
    with pytest.raises(KernelSyntaxError, match="'SIZE' must be a int, got 'x'"):
        missing_constant.specialise(SIZE="x")


def test_operations_cannot_be_called_outside_of_kernels():
    with pytest.raises(TypeError, match="use it inside of @kernel"):
        copy(np.zeros(3))


def test_prompt_source_is_refused():
    namespace = {}
    code = compile("def typed(n):\n    pass\n", "<stdin>", "exec")
    exec(code, namespace)  # a function without a file
    with pytest.raises(KernelSyntaxError, match="no source for kernel 'typed'"):
        kernel(level="lane", grid=[1])(namespace["typed"]).specialise()
