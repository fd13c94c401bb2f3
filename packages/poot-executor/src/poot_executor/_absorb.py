"""Finding the pointwise work that can run on a product's accumulators before they are stored."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from poot_core import DType, f32
from poot_executor._rewrite import Links, extents
from poot_executor._weights import Vector
from poot_graph_ir import PRIMITIVES, Equation, Storage, Value
from poot_kernelgen import Epilogue, RowNode

__all__ = ["Absorbed", "absorb", "stored_vector"]

_POINTWISE = frozenset(
    name
    for name, primitive in PRIMITIVES.items()
    if primitive.category in {"unary", "binary", "compare", "select"} and name != "dequantize"
)


@dataclass(frozen=True, slots=True)
class Absorbed:
    """Pointwise equations that become an epilogue.

    Attributes:
        equations: In order; the result of the last one is what is stored.
        epilogue: The same as a record.
        columns: For each epilogue input its vector, or None where it is a computed matrix.
        operands: The computed matrices, in order.
    """

    equations: tuple[Equation, ...]
    epilogue: Epilogue
    columns: tuple[Vector | None, ...]
    operands: tuple[Value, ...]


def absorb(
    accumulators: Sequence[Value], links: Links, taken: Collection[int] = ()
) -> Absorbed | None:
    """Return the longest run of pointwise equations that leaves one value behind, or None.

    Args:
        accumulators: Products of equal shape (rows, N); all of them must be used up.
        links: Makers and users.
        taken: Ids of values whose equations others have absorbed.
    """
    candidates = _reachable(accumulators, links, taken)
    best = 0
    inside = {equation.output.id for equation in candidates}
    for count in range(len(candidates), 0, -1):
        values = [*accumulators, *(equation.output for equation in candidates[:count])]
        inside = {equation.output.id for equation in candidates[:count]}
        escaping = [v for v in values if _escapes(v, inside, links)]
        last = candidates[count - 1].output
        if [v.id for v in escaping] == [last.id] and last.dtype is f32:
            best = count
            break
    return _record(accumulators, candidates[:best], links) if best else None


def _escapes(value: Value, inside: set[int], links: Links) -> bool:
    if value.id in links.kept:
        return True
    return any(user.output.id not in inside for user in links.users_of(value))


def _reachable(
    accumulators: Sequence[Value], links: Links, taken: Collection[int]
) -> list[Equation]:
    shape = accumulators[0].shape
    members = {value.id for value in accumulators}
    below = _Below(accumulators, links)
    queue: list[int] = []
    queued: dict[int, Equation] = {}

    def push(value: Value) -> None:
        for user in links.users_of(value):
            if len(user.outputs) == 1:
                position = links.position[user.output.id]
                if position not in queued:
                    queued[position] = user
                    heapq.heappush(queue, position)

    for value in accumulators:
        push(value)
    found: list[Equation] = []
    while queue:
        equation = queued[heapq.heappop(queue)]
        if (
            equation.op not in _POINTWISE
            or equation.output.shape != shape
            or equation.output.id in taken
        ):
            continue
        if all(v.id in members or _is_operand(v, below, links) for v in equation.inputs):
            found.append(equation)
            members.add(equation.output.id)
            push(equation.output)
    return found


class _Below:
    """Tells whether a value depends on the accumulators; looks no further back than they stand."""

    def __init__(self, accumulators: Sequence[Value], links: Links) -> None:
        self._links = links
        self._known = {value.id: True for value in accumulators}
        self._first = min(links.position[value.id] for value in accumulators)

    def __contains__(self, value: Value) -> bool:
        known = self._known.get(value.id)
        if known is None:
            maker = self._links.maker.get(value.id)
            known = (
                maker is not None
                and self._links.position[value.id] > self._first
                and any(source in self for source in maker.inputs)
            )
            self._known[value.id] = known
        return known


def _is_operand(value: Value, below: _Below, links: Links) -> bool:
    maker = links.maker.get(value.id)
    if maker is None:
        return False
    if maker.op == "full" or stored_vector(value, links) is not None:
        return True
    if value in below:
        return False
    return value.dtype is f32 and _is_stored(maker)


def _is_stored(maker: Equation) -> bool:
    # A spread or cut value would be written out only to be read here: leave those to a row program.
    return maker.op not in {"broadcast_in_dim", "slice", "iota", "literal"}


def stored_vector(value: Value, links: Links) -> Vector | None:
    """Return the (N,) const that a (rows, N) value repeats for every row, or None."""
    maker = links.maker.get(value.id)
    if maker is None or maker.op != "broadcast_in_dim":
        return None
    if maker.attributes["dimensions"] != (len(value.shape) - 1,):
        return None
    source = maker.inputs[0]
    while source.storage is not Storage.CONST:
        maker = links.maker.get(source.id)
        if maker is None or maker.op not in {"convert", "dequantize"}:
            return None
        source = maker.inputs[0]
    if source.shape != value.shape[-1:] or not isinstance(source.dtype, DType):
        return None
    return Vector(source.name, source.dtype.name, "f32", extents(source))


def _record(accumulators: Sequence[Value], equations: Sequence[Equation], links: Links) -> Absorbed:
    inside = {value.id for value in accumulators} | {e.output.id for e in equations}
    external: dict[int, Value] = {}
    for equation in equations:
        for value in equation.inputs:
            if value.id not in inside and links.maker[value.id].op != "full":
                external.setdefault(value.id, value)
    columns = tuple(stored_vector(value, links) for value in external.values())
    kinds: tuple[Literal["column", "full"], ...] = tuple(
        "full" if vector is None else "column" for vector in columns
    )
    number = {value.id: i for i, value in enumerate([*accumulators, *external.values()])}
    nodes: list[RowNode] = []

    def add(node: RowNode) -> int:
        nodes.append(node)
        return len(accumulators) + len(external) + len(nodes) - 1

    for equation in equations:
        for value in equation.inputs:
            if value.id not in number:
                full = links.maker[value.id]
                number[value.id] = add(_node("literal", (), value, value_=full.attributes["value"]))
        operands = tuple(number[value.id] for value in equation.inputs)
        number[equation.output.id] = add(_node(equation.op, operands, equation.output))
    operands = tuple(
        value for value, vector in zip(external.values(), columns, strict=True) if vector is None
    )
    return Absorbed(tuple(equations), Epilogue(inputs=kinds, nodes=tuple(nodes)), columns, operands)


def _node(op: str, operands: tuple[int, ...], value: Value, value_: Any = None) -> RowNode:
    assert isinstance(value.dtype, DType)
    node = RowNode(op=op, operands=operands, shape=(), dtype=value.dtype.name)
    return node if value_ is None else replace(node, attributes=(("value", value_),))
