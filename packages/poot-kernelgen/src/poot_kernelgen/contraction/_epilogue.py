"""Epilogues: elementwise nodes of a request as a map over the accumulator's tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from poot_core import UnsupportedError, boolean, dtype_by_name
from poot_kernel import IRBuilder, Value
from poot_kernelgen.requests import Epilogue, RowNode

__all__ = ["apply_nodes", "apply_to_values"]

_DIRECT = {
    "neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "floor": "floor",
    "logical_not": "not", "add": "add", "sub": "sub", "mul": "mul", "div": "div",
    "maximum": "max", "minimum": "min", "logical_and": "and", "logical_or": "or", "equal": "eq",
    "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "select": "select",
}  # fmt: skip


def apply_nodes(b: IRBuilder, epilogue: Epilogue, tiles: Sequence[Value]) -> Value:
    """Return the tile of the last node, over the accumulators followed by the inputs.

    Raises:
        UnsupportedError: If a node is not elementwise.
    """
    if not epilogue.nodes:
        return tiles[0]
    return b.map(lambda *elements: apply_to_values(b, epilogue, elements), *tiles)


def apply_to_values(b: IRBuilder, epilogue: Epilogue, elements: Sequence[Value]) -> Value:
    """Return the last node's value, over one result's accumulators followed by its inputs.

    Raises:
        UnsupportedError: If a node is not elementwise.
    """
    values = list(elements)
    for node in epilogue.nodes:
        values.append(_node(b, node, [values[i] for i in node.operands]))
    return values[-1] if epilogue.nodes else values[0]


def _node(b: IRBuilder, node: RowNode, operands: list[Value]) -> Value:
    attributes: dict[str, Any] = dict(node.attributes)
    dtype = dtype_by_name(node.dtype)
    if node.op in _DIRECT:
        return b.one(_DIRECT[node.op], operands)
    special: dict[str, Callable[[], Value]] = {
        "literal": lambda: b.constant(
            bool(attributes["value"]) if dtype is boolean else attributes["value"], dtype
        ),
        "convert": lambda: b.convert(operands[0], dtype, saturate=dtype.is_integer),
        "broadcast": lambda: operands[0],
        "reshape": lambda: operands[0],
        "sign": lambda: _sign(b, operands[0]),
    }
    if node.op not in special:
        raise UnsupportedError(f"an epilogue has no operation {node.op!r}", op=node.op)
    return special[node.op]()


def _sign(b: IRBuilder, x: Value) -> Value:
    one = b.select(b.compare("gt", x, 0), *b.like(1, x)[:1], *b.like(0, x)[:1])
    minus = b.like(-1, x)[0]
    return b.select(b.compare("lt", x, 0), minus, one)
