"""Type rules against what NumPy does to arrays of the same shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from poot_core import ShapeError, T, bf16, dtype_of, f32, i32
from poot_graph_ir import PRIMITIVES, Builder, TensorType, Tracer, ops
from poot_quant import format_by_name

settings.register_profile("short", max_examples=60, deadline=None)
settings.load_profile("short")

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


def _slot(array: np.ndarray, name: str = "x") -> Tracer:
    return Builder("t").slot(name, array.shape, dtype_of(array))


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0))
def test_binary_shapes_broadcast_as_in_numpy(shapes) -> None:
    b = Builder("t")
    x, y = (b.slot(n, s, f32) for n, s in zip("xy", shapes.input_shapes, strict=True))
    assert (x + y).shape == shapes.result_shape


@given(st.data(), SHAPES)
def test_basic_indexing_has_the_shape_of_numpy(data, shape) -> None:
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    items = index if isinstance(index, tuple) else (index,)
    negative = any(isinstance(i, slice) and i.step is not None and i.step < 0 for i in items)
    array = np.zeros(shape, np.float32)
    if negative:
        with pytest.raises(ShapeError):
            _slot(array)[index]
    else:
        assert _slot(array)[index].shape == array[index].shape


@given(st.data(), SHAPES, st.booleans())
def test_reductions_have_the_shape_of_numpy(data, shape, keepdims) -> None:
    axes = data.draw(hnp.valid_tuple_axes(len(shape), min_size=1))
    array = np.zeros(shape, np.float32)
    expected = array.sum(axis=axes, keepdims=keepdims).shape
    assert _slot(array).sum(axes, keepdims=keepdims).shape == expected


@given(st.data(), SHAPES)
def test_transpose_and_reshape_have_the_shape_of_numpy(data, shape) -> None:
    array = np.zeros(shape, np.float32)
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    assert _slot(array).transpose(*axes).shape == array.transpose(axes).shape
    assert _slot(array).reshape(-1).shape == (array.size,)
    with pytest.raises(ShapeError):
        _slot(array).reshape(array.size + 1)


@given(st.data(), SHAPES, SHAPES)
def test_gather_has_the_shape_of_take(data, shape, index_shape) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    b = Builder("t")
    x, indices = b.slot("x", shape, bf16), b.slot("i", index_shape, i32)
    if shape[axis] == 0:
        with pytest.raises(ShapeError):
            ops.gather(x, indices, axis)
        return
    taken = np.take(np.zeros(shape), np.zeros(index_shape, int), axis=axis)
    assert ops.gather(x, indices, axis).shape == taken.shape


@given(st.data(), SHAPES)
def test_dot_general_has_the_shape_of_einsum(data, shape) -> None:
    letters = "abcd"[: len(shape)]
    roles = data.draw(st.lists(st.sampled_from("bcf"), min_size=len(shape), max_size=len(shape)))
    paired = [name for name, role in zip(letters, roles, strict=True) if role != "f"]
    right = data.draw(st.permutations([*paired, "y", "z"]))
    sizes = {**dict(zip(letters, shape, strict=True)), "y": 2, "z": 0}
    batch = [n for n, r in zip(letters, roles, strict=True) if r == "b"]
    contract = [n for n, r in zip(letters, roles, strict=True) if r == "c"]
    b = Builder("t")
    x = b.slot("x", shape, f32)
    y = b.slot("y", tuple(sizes[n] for n in right), f32)
    result = ops.dot_general(
        x,
        y,
        batch=(tuple(map(letters.index, batch)), tuple(map(right.index, batch))),
        contract=(tuple(map(letters.index, contract)), tuple(map(right.index, contract))),
    )
    free = [n for n, r in zip(letters, roles, strict=True) if r == "f"]
    out = [*batch, *free, *(n for n in right if n in "yz")]
    arrays = (np.zeros(x.shape), np.zeros(y.shape))
    expected = np.einsum(f"{letters},{''.join(right)}->{''.join(out)}", *arrays)
    assert result.shape == expected.shape
    assert result.dtype is f32


@given(st.data(), SHAPES)
def test_pad_and_concatenate_have_the_shape_of_numpy(data, shape) -> None:
    counts = st.tuples(*(st.integers(0, 3) for _ in shape))
    low, high = data.draw(counts), data.draw(counts)
    array = np.zeros(shape, np.float32)
    x = _slot(array)
    expected = np.pad(array, list(zip(low, high, strict=True))).shape
    assert ops.pad(x, low, high).shape == expected
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    assert ops.concatenate([x, x], axis).shape == np.concatenate([array, array], axis).shape


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_primitives_refuse_wrong_numbers_of_operands_and_attributes(name) -> None:
    primitive = PRIMITIVES[name]
    types = [TensorType((2,), f32)] * ((primitive.num_inputs or 1) + 1)
    if primitive.num_inputs is not None:
        with pytest.raises(ShapeError, match="operands"):
            primitive.infer(types, dict.fromkeys(primitive.attributes))
    right = types[:1] * (1 if primitive.num_inputs is None else primitive.num_inputs)
    with pytest.raises(TypeError, match="attributes"):
        primitive.infer(right, {"unheard_of": 1})


def test_a_packed_weight_moves_by_whole_rows_only() -> None:
    b = Builder("t")
    packed = format_by_name("Q4_K")
    w = b.const("w", (2, 6, 256), packed)
    ids = b.slot("ids", (T,), i32)
    assert ops.gather(w, ids).shape == (T, 6, 256)
    assert w[:, 2:4].dtype is packed
    assert w.reshape(12, 256).dtype is packed
    assert w.transpose(1, 0, 2).shape == (6, 2, 256)
    assert ops.concatenate([w, w], 1).shape == (2, 12, 256)
    assert ops.dequantize(w).type == TensorType((2, 6, 256), f32)
    for bad in (
        lambda: w[..., :32],
        lambda: w.reshape(2, 6 * 256),
        lambda: w.transpose(2, 1, 0),
        lambda: ops.concatenate([w, w], -1),
        lambda: ops.gather(w, ids, 2),
    ):
        with pytest.raises(ShapeError, match="packed"):
            bad()


def test_symbolic_extents_pass_through_and_are_never_computed_with() -> None:
    b = Builder("t")
    x = b.slot("x", (T, 6), f32)
    assert x.reshape(T, 2, -1).shape == (T, 2, 3)
    assert x.reshape(2, -1, 3).shape == (2, T, 3)
    assert x.transpose().shape == (6, T)
    for bad in (lambda: x.reshape(-1), lambda: ops.concatenate([x, x], 0), lambda: x.reshape(6)):
        with pytest.raises(ShapeError):
            bad()
