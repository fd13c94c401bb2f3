"""Emits the element of a value at a position, following views down to what lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from poot_core import DType, dtype_by_name
from poot_kernel import IRBuilder, ScalarType, Value, VectorType
from poot_kernelgen.rows._operations import emit_node, literal_of
from poot_kernelgen.rows._plan import RowPlan
from poot_kernelgen.rows._position import Position, Variable, unflatten
from poot_kernelgen.rows._views import VIEWS, operand_positions

__all__ = ["Elements", "Place", "Scope"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value's row lies: an array and the indices before the flat one."""

    memory: Value
    leading: tuple[Value, ...] = ()


@dataclass(slots=True)
class Scope:
    """One loop body: its variables' values, and what it has computed already.

    Attributes:
        values: Index values of the loop variables.
        vector: The variable that is dealt to the lanes, if any.
        count: Neighbouring elements that each lane holds.
        memo: Elements computed so far.
        pairs: Pairs of neighbouring elements read so far, by memory and position.
        is_aligned: Whether rows and what lanes hold of them start at multiples of ``count`` elements,
            as on a GPU, so that they are loaded by one instruction.
    """

    values: dict[Variable, Value]
    vector: Variable | None = None
    count: int = 1
    memo: dict[tuple[int, Position], Value] = field(
        default_factory=dict[tuple[int, Position], Value]
    )
    pairs: dict[tuple[Value, Position], Value] = field(
        default_factory=dict[tuple[Value, Position], Value]
    )
    is_aligned: bool = False


class Elements:
    """Elements of a program's values, given where inputs and stored values lie.

    Attributes:
        places: Memory of inputs and of stored values, by number.
        scalars: Values of one element that are in registers, by number.
    """

    def __init__(self, plan: RowPlan, b: IRBuilder) -> None:
        self._plan, self._b = plan, b
        self.places: dict[int, Place] = {}
        self.scalars: dict[int, Value] = {}

    def leaves(self, value: int, position: Position) -> set[tuple[int, Position]]:
        """Return the (value, position) pairs that are read for an element.

        Raises:
            Factor, Cut: If a loop variable has to be split first.
        """
        found: set[tuple[int, Position]] = set()
        seen: set[tuple[int, Position]] = set()
        waiting = [(value, position)]
        while waiting:
            item = waiting.pop()
            if item in seen:
                continue
            seen.add(item)
            number, where = item
            node = self._plan.node(number)
            if number in self.places or number in self.scalars or node is None:
                found.add(item)
            elif node.op == "iota":
                unflatten(where, node.shape)
                found.add(item)
            elif node.op != "literal":
                shapes = [self._plan.shape(operand) for operand in node.operands]
                for index, moved in operand_positions(node, shapes, where):
                    waiting.append((node.operands[index], moved))
        return found

    def index(self, position: Position, scope: Scope) -> Value:
        """Return a position as an index value (of the first element that a lane holds)."""
        b = self._b
        total = b.constant(position.constant)
        for variable, coefficient in position.terms:
            factor = coefficient * (scope.count if variable == scope.vector else 1)
            total = b.add(total, b.mul(scope.values[variable], factor))
        return total

    def emit(self, value: int, position: Position, scope: Scope) -> Value:
        """Return an element: a scalar, or a vector where a lane holds several."""
        key = (value, position)
        if key not in scope.memo:
            scope.memo[key] = self._emit(value, position, scope)
        return scope.memo[key]

    def _emit(self, value: int, position: Position, scope: Scope) -> Value:
        b, node = self._b, self._plan.node(value)
        if value in self.scalars:
            return self.scalars[value]
        if value in self.places:
            place = self.places[value]
            if self._is_half_of_pairs(value, position, scope):
                return self._half_of_pair(place, position, scope)
            is_spread = scope.vector is not None and position.coefficient(scope.vector) > 0
            return b.load(
                place.memory, [*place.leading, self.index(position, scope)],
                count=scope.count if is_spread else 1,
                alignment=(
                    self.alignment(position, scope, self._plan.size(value), self._dtype(value))
                    if is_spread
                    else 0
                ),
            )  # fmt: skip
        assert node is not None
        if node.op == "literal":
            return b.constant(literal_of(node), dtype_by_name(node.dtype))
        if node.op == "iota":
            axis = dict(node.attributes)["axis"]
            assert isinstance(axis, int)
            digit = unflatten(position, node.shape)[axis]
            return b.convert(self.index(digit, scope), dtype_by_name(node.dtype))
        shapes = [self._plan.shape(operand) for operand in node.operands]
        found = [
            self.emit(node.operands[index], moved, scope)
            for index, moved in operand_positions(node, shapes, position)
        ]
        if node.op in VIEWS:
            return found[0]
        return emit_node(b, node, found, self._power(node.op, node.operands))

    def _dtype(self, value: int) -> DType:
        return dtype_by_name(self._plan.dtype(value))

    def alignment(self, position: Position, scope: Scope, size: int, dtype: DType) -> int:
        """Return the bytes that what a lane loads or stores is aligned to; 0 where nothing is known.

        Args:
            position: Of the first element.
            scope: What the lane holds.
            size: Elements from one row to the next.
            dtype: Of the memory.
        """
        count = scope.count
        others = [position.constant, size]
        others += [c for variable, c in position.terms if variable != scope.vector]
        if not scope.is_aligned or any(number % count for number in others):
            return 0
        return count * dtype.itemsize

    def _is_half_of_pairs(self, value: int, position: Position, scope: Scope) -> bool:
        """Whether the lanes read every other element of pairs that lie whole in the row."""
        if scope.vector is None or scope.count > 1 or position.coefficient(scope.vector) != 2:
            return False
        even = all(coefficient % 2 == 0 for _, coefficient in position.terms)
        return even and position.largest | 1 < self._plan.size(value)

    def _half_of_pair(self, place: Place, position: Position, scope: Scope) -> Value:
        half = position.constant % 2
        whole = position.shifted(-half)
        key = (place.memory, whole)
        if key not in scope.pairs:
            indices = [*place.leading, self.index(whole, scope)]
            scope.pairs[key] = self._b.load(place.memory, indices, count=2)
        return self._b.extract(scope.pairs[key], half)

    def _power(self, op: str, operands: Sequence[int]) -> float | None:
        if op != "pow":
            return None
        node = self._plan.node(operands[1])
        while node is not None and node.op in {"broadcast", "reshape"}:
            node = self._plan.node(node.operands[0])
        if node is None or node.op != "literal":
            return None
        return float(literal_of(node))

    def is_vector(self, value: Value) -> bool:
        """Whether a lane holds several elements."""
        return isinstance(value.type, VectorType)

    def spread(self, value: Value, count: int) -> Value:
        """Return a scalar as a vector of equal elements, if lanes hold several."""
        if count == 1 or isinstance(value.type, VectorType):
            return value
        assert isinstance(value.type, ScalarType)
        return self._b.splat(value, count)
