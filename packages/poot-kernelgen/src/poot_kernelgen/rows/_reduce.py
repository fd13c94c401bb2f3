"""Reductions of a row: kept in a register if one element is left, in scratch otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable

from poot_core import UnsupportedError, dtype_by_name
from poot_kernel import IRBuilder, Value
from poot_kernelgen.rows._elements import Elements, Place, Scope
from poot_kernelgen.rows._loops import Nest, element_count, run_flat, solve_nests
from poot_kernelgen.rows._operations import REDUCTIONS
from poot_kernelgen.rows._plan import RowPlan
from poot_kernelgen.rows._position import Cut, Factor, Position, Variable, flatten, unflatten

__all__ = ["RowReducer"]

_MANY = 8
_SHORT = 64
"""From so many results on, or over so few elements, an invocation of a GPU reduces each alone."""


class RowReducer:
    """Emits reductions: lanes take strided partial results that are combined by halving.

    The order depends on the row's shape and the lanes alone, so that a row's bits are the same alone
    and among others.
    """

    def __init__(
        self,
        plan: RowPlan,
        b: IRBuilder,
        elements: Elements,
        lanes: int,
        to_scratch: Callable[[int], None],
        prepare: Callable[[int], None],
        *,
        is_shared: bool = False,
    ) -> None:
        """Hold what reductions need; ``is_shared`` says that a row has a workgroup of a GPU."""
        self._plan, self._b, self._elements, self._lanes = plan, b, elements, lanes
        self._is_shared = is_shared
        self._to_scratch, self._prepare = to_scratch, prepare

    def run(self, value: int) -> None:
        """Emit one reduction and record where its result is."""
        node = self._plan.node(value)
        assert node is not None
        (source,) = node.operands
        shape = self._plan.shape(source)
        outer, extent, inner = _merged(shape, dict(node.attributes)["axes"])
        reduced = Variable(extent)

        def source_position(position: Position) -> Position:
            high, low = unflatten(position, (outer, inner))
            return flatten([high, Position.of(reduced), low], (outer, extent, inner))

        self._prepare(source)
        try:
            nests = solve_nests(
                outer * inner,
                lambda p: self._refuse_inner(source, source_position(p), reduced),
            )
        except _InnerSplit:
            self._to_scratch(source)
            nests = solve_nests(outer * inner, source_position)
        self._emit(value, source, nests, source_position, reduced)

    def _refuse_inner(self, source: int, position: Position, reduced: Variable) -> None:
        try:
            self._elements.leaves(source, position)
        except (Cut, Factor) as found:
            if found.variable == reduced:
                raise _InnerSplit from found
            raise

    def _emit(
        self, value: int, source: int, nests: list[Nest],
        source_position: Callable[[Position], Position], reduced: Variable,
    ) -> None:  # fmt: skip
        b, elements = self._b, self._elements
        size = self._plan.size(value)
        dtype = dtype_by_name(self._plan.dtype(value))
        if size == 1:
            (nest,) = nests
            scope = Scope({})
            elements.scalars[value] = self._total(value, source, source_position(nest.position),
                                                  reduced, scope)  # fmt: skip
            return
        memory = b.shared_alloc(dtype, [size])
        if self._is_shared and (size >= _MANY or reduced.extent <= _SHORT):
            for nest in nests:
                where = source_position(nest.position)
                run_flat(b, nest, lambda scope, nest=nest, where=where: b.store(
                    memory, [elements.index(nest.position, scope)],
                    self._chain(value, source, where, reduced, scope)))  # fmt: skip
            b.barrier()
            elements.places[value] = Place(memory)
            return
        for nest in nests:
            self._loops(nest, 0, Scope({}), lambda scope, nest=nest: b.store(
                memory, [elements.index(nest.position, scope)],
                self._total(value, source, source_position(nest.position), reduced, scope)))  # fmt: skip
        if self._is_shared:
            b.barrier()
        elements.places[value] = Place(memory)

    def _chain(
        self, value: int, source: int, position: Position, reduced: Variable, outer: Scope
    ) -> Value:
        """Return one element of the result, reduced by one invocation in ascending order."""
        b, node = self._b, self._plan.node(value)
        assert node is not None
        opcode, neutral = REDUCTIONS[node.op]
        dtype = dtype_by_name(node.dtype)
        start = b.constant(_neutral(neutral, dtype.name), dtype)
        with b.for_(0, reduced.extent, 1, [start]) as loop:
            scope = Scope({**outer.values, reduced: loop.index})
            found = self._elements.emit(source, position, scope)
            loop.yield_(b.binary(opcode, loop.carried[0], found))
        return loop.result

    def _loops(self, nest: Nest, depth: int, scope: Scope, body: Callable[[Scope], None]) -> None:
        if depth == len(nest.variables):
            body(scope)
            return
        with self._b.for_(0, nest.variables[depth].extent) as loop:
            scope.values[nest.variables[depth]] = loop.index
            self._loops(nest, depth + 1, scope, body)

    def _total(
        self, value: int, source: int, position: Position, reduced: Variable, outer: Scope
    ) -> Value:
        """Return one element of the result, reducing over the lanes."""
        b, elements = self._b, self._elements
        node = self._plan.node(value)
        assert node is not None
        opcode, neutral = REDUCTIONS[node.op]
        dtype = dtype_by_name(node.dtype)
        if reduced.extent == 1:
            return elements.emit(source, position, Scope(dict(outer.values)))
        leaves = elements.leaves(source, position)
        lanes = 1 if self._is_shared else self._lanes
        count = element_count(reduced, leaves, self._plan, lanes, most=4)
        start = b.constant(_neutral(neutral, dtype.name), dtype)
        if count > 1:
            start = b.splat(start, count)
        with b.foreach(0, reduced.extent // count, [start]) as loop:
            values = {**outer.values, reduced: loop.index}
            scope = Scope(values, reduced, count, is_aligned=self._is_shared)
            found = elements.spread(elements.emit(source, position, scope), count)
            loop.yield_(b.binary(opcode, loop.carried[0], found))
        found = loop.result
        if count > 1 and self._is_shared:
            return b.workgroup_reduce(b.vector_reduce(found, opcode), opcode)
        total = b.workgroup_reduce(found, opcode)
        return b.vector_reduce(total, opcode) if count > 1 else total


def _merged(shape: tuple[int, ...], axes: object) -> tuple[int, int, int]:
    """Return the extents before, of and after the reduced axes, which must be neighbours."""
    assert isinstance(axes, tuple)
    first, last = min(axes, default=0), max(axes, default=-1)
    if len(axes) != last - first + 1:
        raise UnsupportedError(f"a row program reduces over axes {axes}, which are no neighbours")
    return (
        math.prod(shape[:first]),
        math.prod(shape[first : last + 1]),
        math.prod(shape[last + 1 :]),
    )


class _InnerSplit(Exception):
    """The reduced axis itself would have to be split."""


def _neutral(value: float, dtype: str) -> float | int:
    found = dtype_by_name(dtype)
    if found.is_float:
        return value
    if value == 0.0:
        return 0
    bits = found.bits - (found.kind == "int")
    high = (1 << bits) - 1
    low = -(1 << bits) if found.kind == "int" else 0
    return low if value < 0 else high
