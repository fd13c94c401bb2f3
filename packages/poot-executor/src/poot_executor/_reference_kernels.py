"""Running one request on raw memory by its NumPy meaning, with the arguments of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DType, bf16, dtype_by_name, f32, i8, i32, u8
from poot_executor._load_host import row_bytes
from poot_kernelgen import (
    EIGHT_BIT,
    ArgmaxRequest,
    AttendRequest,
    ContractionRequest,
    GatherRequest,
    KvLayout,
    PackRequest,
    Request,
    RowOutput,
    RowProgram,
    WeightLayout,
)
from poot_kernelgen import reference as ref

__all__ = ["Memory", "run_request"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """A pointer: the bytes from it to the end of its buffer.

    Attributes:
        data: Bytes.
        decoded: Matrices decoded from here, by what they were decoded as.
    """

    data: NDArray[np.uint8]
    decoded: dict[Any, Any]


class _Arguments:
    """Takes a kernel's arguments in order."""

    def __init__(self, values: Sequence[Memory | int | float]) -> None:
        self._values = values
        self._next = 0

    def value(self) -> Any:
        self._next += 1
        return self._values[self._next - 1]

    def peek(self, ahead: int) -> Any:
        return self._values[self._next + ahead]

    def last(self, back: int) -> Any:
        return self._values[len(self._values) - back]

    def array(self, dtype: DType, shape: Sequence[int]) -> Array:
        """Return the memory of the next argument as an array."""
        memory = self.value()
        nbytes = prod(shape) * dtype.itemsize
        assert nbytes <= memory.data.nbytes, "a kernel would run beyond its buffer"
        return memory.data[:nbytes].view(dtype.numpy).reshape(tuple(shape))

    def done(self) -> None:
        assert self._next == len(self._values), "arguments are left over"


def run_request(request: Request, role: str, values: Sequence[Memory | int | float]) -> None:
    """Run one kernel of the answer to a request.

    Args:
        request: What it computes.
        role: Which kernel.
        values: Arguments, as the request's record lists them.
    """
    arguments = _Arguments(values)
    _MEANINGS[type(request), role](request, arguments)
    arguments.done()


def _row_program(request: RowProgram, a: _Arguments) -> None:
    has_status = any(s.indexed_by is not None for s in request.inputs) or any(
        output.kind == "kv" for output in request.outputs
    )
    rows = a.last(2 if has_status else 1)
    inputs: list[Array] = []
    for spec in request.inputs:
        dtype = dtype_by_name(spec.dtype)
        if spec.indexed_by is not None:
            inputs.append(a.array(dtype, (a.peek(1), *spec.shape)))
            a.value()
        else:
            inputs.append(a.array(dtype, (rows, *spec.shape) if spec.per_row else spec.shape))
    shapes = [spec.shape for spec in request.inputs] + [node.shape for node in request.nodes]
    pools: dict[int, Array] = {}
    targets: list[list[Array]] = []
    for index, output in enumerate(request.outputs):
        if output.kind == "kv":
            assert output.layout is not None
            pools[index] = _pool(a, output.layout, a.peek(1) // output.layout.block_size)
            a.value()
            targets.append([])
        else:
            targets.append(_targets(output, rows, shapes[output.value], a))
    a.value()
    status = a.array(i32, (rows,)) if has_status else None
    results = ref.run_row_program(request, inputs, rows, pools=pools, status=status)
    for target, result in zip(targets, results, strict=True):
        if result is None:
            continue
        found = result if isinstance(result, tuple) else (result,)
        parts = [part for part in found if part is not None]
        for array, part in zip(target, parts, strict=True):
            # Lifted codes stand as u8, 128 more than they are.
            is_lifted = array.dtype == np.uint8 and part.dtype == np.int8
            array[...] = (_lift(part) if is_lifted else part).reshape(array.shape)


def _targets(output: RowOutput, rows: int, shape: Sequence[int], a: _Arguments) -> list[Array]:
    if output.kind in EIGHT_BIT:
        return _quantised(output.kind, rows, prod(shape), a)
    if output.kind == "bf16":
        return [a.array(bf16, (rows, *shape)).view(np.uint16)]
    return [a.array(dtype_by_name(output.dtype), (rows, *shape))]


def _quantised(kind: str, rows: int, k: int, a: _Arguments) -> list[Array]:
    """Return codes, scales and sums, and with a residual its codes and scales."""
    blocks = (rows, k // ref.BLOCK)
    code = u8 if kind == "u8r" else i8
    arrays = [a.array(code, (rows, k)), a.array(f32, blocks), a.array(f32, blocks)]
    if kind != "i8":
        arrays += [a.array(code, (rows, k)), a.array(f32, blocks)]
    return arrays


def _lift(codes: Array) -> Array:
    """Return codes 128 higher, wrapped into u8; applied to such it takes the 128 off again."""
    return codes.view(np.uint8) ^ np.uint8(128)


def _pool(a: _Arguments, layout: KvLayout, blocks: int) -> Array:
    return a.array(dtype_by_name(layout.dtype), ref.kv_pool_shape(layout, blocks))


def _logical(memory: Memory, layout: WeightLayout, n: int, k: int, *, gated: bool) -> Any:
    """Return the logical weight of a matrix; a gated one's first half above its second."""
    key = (layout, n, k, gated)
    if key not in memory.decoded:
        groups = -(-n // layout.interleave)
        raw = memory.data[: groups * layout.interleave * row_bytes(layout.source, k)]
        shape = (groups, layout.interleave, -1)
        if gated:
            raw = np.concatenate([raw.reshape(shape)[0::2], raw.reshape(shape)[1::2]])
        rows = groups * layout.interleave
        whole = ref.LogicalWeight.from_stored(layout.source, raw, rows, k)
        memory.decoded[key] = whole.rows(0, n)
    return memory.decoded[key]


def _contraction(request: ContractionRequest, a: _Arguments) -> None:
    rows, n, k, stride = (a.last(i) for i in (4, 3, 2, 1))
    assert stride == n
    total = 2 * n if request.gated else n
    weight = _logical(a.value(), request.weight, total, k, gated=request.gated)
    activation: Any
    if request.activation in EIGHT_BIT:
        arrays: list[Any] = _quantised(request.activation, rows, k, a)
        if request.activation == "u8r":
            arrays = [_lift(x).view(np.int8) if x.dtype == np.uint8 else x for x in arrays]
        activation = ref.QuantisedActivation(*arrays)
    elif request.activation == "bf16":
        activation = a.array(bf16, (rows, k)).view(np.uint16)
    else:
        activation = a.array(f32, (rows, k))
    extra = [
        a.array(f32, (n,) if kind == "column" else (rows, n)) for kind in request.epilogue.inputs
    ]
    result = a.array(f32, (rows, n))
    result[...] = ref.contract(request, weight, activation, extra)
    for _ in range(4):
        a.value()


def _pack(request: PackRequest, a: _Arguments) -> None:
    source, target = a.value(), a.value()
    n, k, first, step = (a.value() for _ in range(4))
    interleave, width = request.layout.interleave, row_bytes(request.layout.source, k)
    rows = source.data[: n * width].reshape(n, width)
    groups = target.data[: len(target.data) // (interleave * width) * interleave * width]
    groups = groups.reshape(-1, interleave, width)
    for group in range(-(-n // interleave)):
        part = rows[group * interleave : (group + 1) * interleave]
        groups[first + group * step, : len(part)] = part


def _gather(request: GatherRequest, a: _Arguments) -> None:
    rows, n, k, scale = (a.last(i) for i in (5, 4, 3, 2))
    weight = _logical(a.value(), request.layout, n, k, gated=False)
    ids, result = a.array(i32, (rows,)), a.array(f32, (rows, k))
    for _ in range(4):
        a.value()
    result[...] = ref.gather(weight, ids, scale, a.array(i32, (rows,)))


def _attend(request: AttendRequest, a: _Arguments) -> None:
    heads, dim = request.num_heads, request.value.head_dim
    # Tokens, sequences and blocks are not passed: the work list names all that is touched.
    queries, keys, values, positions, rows, tables, work = (a.value() for _ in range(7))
    items = work.data.view(np.int32)[: 4 * a.peek(0)].reshape(-1, 4)
    a.value()
    width = a.value()
    lengths = None if request.causal else a.value()
    sinks = a.array(f32, (heads,)) if request.sinks else None
    slopes = a.array(f32, (heads,)) if request.alibi else None
    partials, stride, result = a.value(), a.value(), a.value()
    if not len(items):
        return
    tokens = int((items[:, 0] + items[:, 1]).max())
    numbers = _head(rows, i32, (tokens,))
    arrays = (
        _head(queries, f32, (tokens, heads, request.key.head_dim)),
        (_whole_pool(keys, request.key), _whole_pool(values, request.value)),
        _head(positions, i32, (tokens,)),
        numbers,
        _head(tables, i32, (int(numbers.max()) + 1, width)),
    )
    with _as_f32(
        request, _head(result, dtype_by_name(request.result_dtype), (tokens, heads, dim))
    ) as y:
        ref.attend_partials(
            request, *arrays, items, _head(partials, f32, (tokens, stride, heads, dim + 2)), y,
            sinks=sinks, slopes=slopes,
            lengths=None if lengths is None else _head(lengths, i32, (int(numbers.max()) + 1,)),
        )  # fmt: skip


@contextmanager
def _as_f32(request: AttendRequest, result: Array) -> Generator[Array]:
    """Give a result as f32, and round what was stored there."""
    if request.result_dtype == "f32":
        yield result
        return
    wide = result.astype(np.float32)
    yield wide
    result[...] = wide.astype(result.dtype)


def _head(memory: Memory, dtype: DType, shape: Sequence[int]) -> Array:
    return _Arguments([memory]).array(dtype, shape)


def _whole_pool(memory: Memory, layout: KvLayout) -> Array:
    block_bytes = layout.num_kv_heads * layout.head_dim * layout.block_size
    block_bytes *= dtype_by_name(layout.dtype).itemsize
    blocks = memory.data.nbytes // block_bytes
    return _head(memory, dtype_by_name(layout.dtype), ref.kv_pool_shape(layout, blocks))


def _merge(request: AttendRequest, a: _Arguments) -> None:
    tokens = a.last(1)
    heads, dim = request.num_heads, request.value.head_dim
    partials = a.array(f32, (tokens, a.peek(1), heads, dim + 2))
    a.value()
    positions = a.array(i32, (tokens,))
    rows = lengths = None
    if not request.causal:
        rows = a.array(i32, (tokens,))
        lengths = _head(a.value(), i32, (int(rows.max(initial=0)) + 1,))
    sinks = a.array(f32, (heads,)) if request.sinks else None
    result = a.array(dtype_by_name(request.result_dtype), (tokens, heads, dim))
    a.value()
    with _as_f32(request, result) as y:
        ref.merge_partials(request, partials, positions, y, sinks=sinks, rows=rows, lengths=lengths)


def _argmax_partial(request: ArgmaxRequest, a: _Arguments) -> None:
    rows, n = a.last(2), a.last(1)
    chunks = -(-n // request.chunk)
    logits = a.array(f32, (rows, n))
    values, ids = a.array(f32, (rows, chunks)), a.array(i32, (rows, chunks))
    a.value()
    a.value()
    for chunk in range(chunks):
        part = logits[:, chunk * request.chunk : (chunk + 1) * request.chunk]
        found = ref.argmax(part)
        values[:, chunk] = part[np.arange(rows), found]
        ids[:, chunk] = found + chunk * request.chunk


def _argmax_final(request: ArgmaxRequest, a: _Arguments) -> None:
    rows, chunks = a.last(2), a.last(1)
    values, ids = a.array(f32, (rows, chunks)), a.array(i32, (rows, chunks))
    result = a.array(i32, (rows,))
    a.value()
    a.value()
    result[...] = ids[np.arange(rows), ref.argmax(values)]


_MEANINGS: dict[tuple[Any, str], Callable[[Any, _Arguments], None]] = {
    (RowProgram, "main"): _row_program,
    (ContractionRequest, "main"): _contraction,
    (PackRequest, "main"): _pack,
    (GatherRequest, "main"): _gather,
    (AttendRequest, "main"): _attend,
    (AttendRequest, "merge"): _merge,
    (ArgmaxRequest, "partial"): _argmax_partial,
    (ArgmaxRequest, "final"): _argmax_final,
}
