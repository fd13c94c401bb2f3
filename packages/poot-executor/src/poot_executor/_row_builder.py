"""Building one row program out of the equations of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from poot_core import DType
from poot_executor._planned import Operand
from poot_executor._rewrite import attribute, leading_symbol, refuse, static_shape
from poot_executor._weights import Constant, Vector
from poot_graph_ir import Equation, Literal, Storage, Value
from poot_kernelgen import RowInput, RowNode, RowOutput, RowProgram

__all__ = ["RowBuilder", "Source"]


class Source(Protocol):
    """What a builder asks of the cluster it builds for."""

    def maker(self, value: Value) -> Equation:
        """Return the equation that makes a computed value."""
        ...

    def is_inside(self, value: Value) -> bool:
        """Whether the value is computed in this cluster rather than read from memory."""
        ...

    def stored(self, value: Value) -> Operand:
        """Return where a value of another cluster or kernel is stored."""
        ...


class RowBuilder:
    """Collects inputs, nodes and outputs; values are visited once."""

    def __init__(self, source: Source, symbol: str) -> None:
        self._source = source
        self._symbol = symbol
        self._inputs: list[RowInput] = []
        self._operands: list[tuple[Operand, ...]] = []
        self._input_number: dict[Any, int] = {}
        self._nodes: list[tuple[RowNode, tuple[int, ...]]] = []
        self._known: dict[int, int] = {}
        self.outputs: list[tuple[RowOutput, int, tuple[Operand, ...]]] = []

    # Values are numbered inputs ascending from 0, nodes descending from -1 until all are known.

    def visit(self, value: Value, user: Equation) -> int:
        """Return the number of a value, adding what it takes to compute it."""
        known = self._known.get(value.id)
        if known is None:
            known = self._known[value.id] = self._visit(value, user)
        return known

    def _visit(self, value: Value, user: Equation) -> int:
        if not isinstance(value.dtype, DType):
            refuse(user, f"a row program does not decode {value.dtype.name}")
        if value.storage is Storage.SLOT:
            return self._slot(value, user)
        if value.storage is Storage.CONST:
            shape = static_shape(user, value)
            vector = Vector(value.name, value.dtype.name, value.dtype.name, shape)
            return self._shared(value.dtype.name, shape, Operand("vector", vector))
        if value.storage is Storage.STATE:
            refuse(user, "a row program does not read a state")
        if not self._source.is_inside(value):
            spec = RowInput(dtype=value.dtype.name, shape=static_shape(user, value))
            return self._add_input((value.id,), spec, (self._source.stored(value),))
        maker = self._source.maker(value)
        if maker.op == "gather":
            return self._gathered(maker)
        if maker.op == "literal":
            return self._literal(maker)
        return self._node(maker, value)

    def _slot(self, value: Value, user: Equation) -> int:
        assert isinstance(value.dtype, DType)
        if leading_symbol(value) != self._symbol:
            refuse(user, f"slot {value.name!r} has no row for each row of {self._symbol}")
        spec = RowInput(dtype=value.dtype.name, shape=static_shape(user, value))
        return self._add_input(("slot", value.name), spec, (Operand("slot", value.name),))

    def _shared(self, dtype: str, shape: tuple[int, ...], operand: Operand) -> int:
        spec = RowInput(dtype=dtype, shape=shape, per_row=False)
        return self._add_input((operand,), spec, (operand,))

    def _add_input(self, key: Any, spec: RowInput, operands: tuple[Operand, ...]) -> int:
        number = self._input_number.get(key)
        if number is None:
            number = self._input_number[key] = len(self._inputs)
            self._inputs.append(spec)
            self._operands.append(operands)
        return number

    def _gathered(self, maker: Equation) -> int:
        table, ids = maker.inputs
        index = self.visit(ids, maker)
        symbol = leading_symbol(table)
        assert symbol is not None
        assert isinstance(table.dtype, DType)
        shape = static_shape(maker, table)
        spec = RowInput(dtype=table.dtype.name, shape=shape, indexed_by=index)
        operands = (self._source.stored(table), Operand("symbol", symbol))
        return self._add_input((table.id, index), spec, operands)

    def _literal(self, maker: Equation) -> int:
        literal = maker.attributes["value"]
        assert isinstance(literal, Literal)
        dtype = literal.type.dtype.name
        shape = static_shape(maker, maker.output)
        if literal.array.size == 1:
            return self.add("literal", (), shape, dtype, value=_number(literal.array))
        constant = Constant(dtype, shape, literal.array.tobytes())
        return self._shared(dtype, shape, Operand("constant", constant))

    def _node(self, maker: Equation, value: Value) -> int:
        lower = _LOWERINGS.get(maker.op, _pointwise)
        return lower(self, maker, value)

    def add(
        self,
        op: str,
        operands: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: str,
        **attributes: Any,
    ) -> int:
        """Append a node and return its number."""
        node = RowNode(
            op=op,
            operands=(),
            shape=shape,
            dtype=dtype,
            attributes=tuple(sorted(attributes.items())),
        )
        self._nodes.append((node, operands))
        return -len(self._nodes)

    def finish(self) -> tuple[RowProgram, tuple[Operand, ...]]:
        """Return the program and its operands up to and including the outputs'."""
        base = len(self._inputs) - 1

        def final(number: int) -> int:
            return number if number >= 0 else base - number

        nodes = tuple(
            RowNode(
                op=node.op,
                operands=tuple(final(i) for i in operands),
                shape=node.shape,
                dtype=node.dtype,
                attributes=node.attributes,
            )
            for node, operands in self._nodes
        )
        outputs = tuple(replace(output, value=final(number)) for output, number, _ in self.outputs)
        operands = [operand for group in self._operands for operand in group]
        operands += [operand for _, _, group in self.outputs for operand in group]
        return RowProgram(inputs=tuple(self._inputs), nodes=nodes, outputs=outputs), tuple(operands)


def _number(array: np.ndarray[Any, Any]) -> bool | int | float:
    number: bool | int | float = array.reshape(-1)[0].item()
    return number


Lowering = Callable[[RowBuilder, Equation, Value], int]


def _dtype(value: Value) -> str:
    assert isinstance(value.dtype, DType)
    return value.dtype.name


def _pointwise(builder: RowBuilder, maker: Equation, value: Value) -> int:
    operands = tuple(builder.visit(v, maker) for v in maker.inputs)
    return builder.add(maker.op, operands, static_shape(maker, value), _dtype(value))


def _full(builder: RowBuilder, maker: Equation, value: Value) -> int:
    number = attribute(maker, "value")
    return builder.add("literal", (), static_shape(maker, value), _dtype(value), value=number)


def _iota(builder: RowBuilder, maker: Equation, value: Value) -> int:
    axis = attribute(maker, "axis")
    axis -= _offset(value)
    if axis < 0:
        refuse(maker, "a row program does not know the number of its row")
    return builder.add("iota", (), static_shape(maker, value), _dtype(value), axis=axis)


def _offset(value: Value) -> int:
    return 1 if leading_symbol(value) else 0


def _broadcast(builder: RowBuilder, maker: Equation, value: Value) -> int:
    (x,) = maker.inputs
    dimensions = attribute(maker, "dimensions")
    operand, shape = builder.visit(x, maker), static_shape(maker, value)
    inner = static_shape(maker, x)
    if leading_symbol(x):
        if dimensions[0] != 0:
            refuse(maker, "rows do not stay rows")
        dimensions = dimensions[1:]
    elif leading_symbol(value) and 0 in dimensions:
        # An axis of extent 1 is spread over the rows: it has no place within a row.
        inner, dimensions = inner[1:], dimensions[1:]
        operand = builder.add("reshape", (operand,), inner, _dtype(value))
    dimensions = tuple(axis - _offset(value) for axis in dimensions)
    if inner == shape and dimensions == tuple(range(len(shape))):
        return operand
    return builder.add("broadcast", (operand,), shape, _dtype(value), dimensions=dimensions)


def _reshape(builder: RowBuilder, maker: Equation, value: Value) -> int:
    (x,) = maker.inputs
    if leading_symbol(x) != leading_symbol(value):
        refuse(maker, "rows do not stay rows")
    operand = builder.visit(x, maker)
    return builder.add("reshape", (operand,), static_shape(maker, value), _dtype(value))


def _transpose(builder: RowBuilder, maker: Equation, value: Value) -> int:
    (x,) = maker.inputs
    permutation = attribute(maker, "permutation")
    if leading_symbol(x):
        if permutation[0] != 0:
            refuse(maker, "rows do not stay rows")
        permutation = tuple(axis - 1 for axis in permutation[1:])
    operand = builder.visit(x, maker)
    shape = static_shape(maker, value)
    return builder.add("transpose", (operand,), shape, _dtype(value), permutation=permutation)


def _slice(builder: RowBuilder, maker: Equation, value: Value) -> int:
    (x,) = maker.inputs
    cut = _offset(x)
    starts, limits, strides = (
        tuple(attribute(maker, name)[cut:]) for name in ("starts", "limits", "strides")
    )
    operand, shape = builder.visit(x, maker), static_shape(maker, value)
    return builder.add(
        "slice", (operand,), shape, _dtype(value), starts=starts, limits=limits, strides=strides
    )


def _concatenate(builder: RowBuilder, maker: Equation, value: Value) -> int:
    axis = attribute(maker, "axis")
    operands = tuple(builder.visit(v, maker) for v in maker.inputs)
    shape = static_shape(maker, value)
    return builder.add("concatenate", operands, shape, _dtype(value), axis=axis - _offset(value))


def _pad(builder: RowBuilder, maker: Equation, value: Value) -> int:
    (x,) = maker.inputs
    low, high, number = (attribute(maker, name) for name in ("low", "high", "value"))
    operand, shape = builder.visit(x, maker), list(static_shape(maker, x))
    for axis in range(len(shape)):
        before, after = (int(side[axis + _offset(x)]) for side in (low, high))
        if not before and not after:
            continue
        parts: list[int] = []
        for size in (before, None, after):
            if size is None:
                parts.append(operand)
            elif size:
                piece = (*shape[:axis], size, *shape[axis + 1 :])
                parts.append(builder.add("literal", (), piece, _dtype(value), value=number))
        shape[axis] += before + after
        operand = builder.add("concatenate", tuple(parts), tuple(shape), _dtype(value), axis=axis)
    return operand


def _reduce(builder: RowBuilder, maker: Equation, value: Value) -> int:
    (x,) = maker.inputs
    axes = attribute(maker, "axes")
    if leading_symbol(x) and 0 in axes:
        refuse(maker, "it reduces over rows")
    operand = builder.visit(x, maker)
    axes = tuple(axis - _offset(x) for axis in axes)
    return builder.add(maker.op, (operand,), static_shape(maker, value), _dtype(value), axes=axes)


_LOWERINGS: dict[str, Lowering] = {
    "full": _full,
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reduce_sum": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
}
