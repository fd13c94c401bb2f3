"""What an operation is: the record type of the opcode table and helpers for its result rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeVar

from poot_core import DType, boolean
from poot_kernel.ir.core import Attribute, Region, Value
from poot_kernel.ir.types import (
    BOOLEAN,
    INDEX,
    ArrayType,
    MemoryType,
    ScalarType,
    SharedType,
    TileType,
    Type,
    VectorType,
)

__all__ = ["REDUCE_KINDS", "Effect", "OpSpec", "Request", "RuleError", "Uniformity", "lane_op"]

Effect = Literal["pure", "read", "write", "sync"]
REDUCE_KINDS = ("add", "mul", "min", "max", "and", "or", "xor")
"""How values may be combined."""
T = TypeVar("T")


class RuleError(Exception):
    """Operands or attributes break an operation's rule; callers add the operation and place."""


class Uniformity(IntEnum):
    """Over which invocations a value is the same; combining values takes the maximum."""

    WORKGROUP = 0
    SUBGROUP = 1
    VARYING = 2


@dataclass(frozen=True, slots=True)
class Request:
    """What a result rule sees: operands, attributes (defaults filled in) and finished regions."""

    operands: Sequence[Value]
    attributes: dict[str, Attribute]
    regions: Sequence[Region]

    def type(self, index: int) -> Type:
        """Return the type of one operand.

        Raises:
            RuleError: If there are too few operands.
        """
        if index >= len(self.operands):
            raise RuleError(f"needs operand {index}, got {len(self.operands)} operands")
        return self.operands[index].type

    def count(self, least: int, most: int | None = None) -> None:
        """Check the number of operands."""
        got = len(self.operands)
        if got < least or got > (least if most is None else most):
            expected = f"{least}" if most in {None, least} else f"{least} to {most}"
            raise RuleError(f"takes {expected} operands, got {got}")

    def attribute(self, name: str, kind: type[T]) -> T:
        """Return an attribute of the given Python type."""
        value = self.attributes.get(name)
        if not isinstance(value, kind):
            raise RuleError(f"attribute {name!r} must be {kind.__name__}, got {value!r}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a tuple of integers."""
        value = self.attribute(name, tuple)
        numbers = tuple(v for v in value if isinstance(v, int))  # pyright: ignore[reportUnknownVariableType]
        if len(numbers) != len(value):  # pyright: ignore[reportUnknownArgumentType]
            raise RuleError(f"attribute {name!r} must hold integers, got {value!r}")
        return numbers

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """Return a text attribute out of a closed set."""
        value = self.attribute(name, str)
        if value not in choices:
            raise RuleError(
                f"attribute {name!r} must be one of {', '.join(choices)}, got {value!r}"
            )
        return value

    def elementwise(self, index: int, kinds: str = "any") -> ScalarType | VectorType:
        """Return a scalar or vector operand's type, checked for its kind of dtype."""
        found = self.type(index)
        if not isinstance(found, ScalarType | VectorType):
            raise RuleError(f"operand {index} must be a scalar or vector, got {found}")
        check_kind(found.dtype, kinds, f"operand {index}")
        return found

    def integer(self, index: int) -> None:
        """Check that an operand is an integer scalar (index, extent, lane)."""
        found = self.type(index)
        if not isinstance(found, ScalarType) or not found.dtype.is_integer:
            raise RuleError(f"operand {index} must be an integer scalar, got {found}")

    def condition(self, index: int) -> None:
        """Check that an operand is a boolean scalar."""
        if self.type(index) != BOOLEAN:
            raise RuleError(f"operand {index} must be boolean, got {self.type(index)}")

    def memory(self, index: int = 0) -> MemoryType:
        """Return the type of an array or shared-memory operand."""
        found = self.type(index)
        if not isinstance(found, ArrayType | SharedType):
            raise RuleError(f"operand {index} must be an array or shared memory, got {found}")
        return found

    def tile(self, index: int) -> TileType:
        """Return the type of a tile operand."""
        found = self.type(index)
        if not isinstance(found, TileType):
            raise RuleError(f"operand {index} must be a tile, got {found}")
        return found

    def readable(self, memory: MemoryType) -> None:
        """Check that an array may be read."""
        if isinstance(memory, ArrayType) and memory.access == "w":
            raise RuleError(f"reads {memory}, which is write-only")

    def writable(self, memory: MemoryType) -> None:
        """Check that an array may be written."""
        if isinstance(memory, ArrayType) and memory.access == "r":
            raise RuleError(f"writes {memory}, which is read-only")


Rule = Callable[[Request], tuple[Type, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """The facts of one opcode, read by builder, verifier, interpreter and generators alike.

    Attributes:
        name: The opcode.
        level: Kernels it may stand in: ``lane``, ``tile`` or ``both``.
        operands: Signature for readers.
        rule: Checks operands, attributes and regions; returns the result types.
        attributes: Names with defaults; ``REQUIRED`` where there is none.
        num_regions: Nested regions.
        effect: ``pure`` may be moved, duplicated or dropped; ``read``, ``write``, ``sync`` may not
            pass a write or a sync.
        is_elementwise: Lane by lane on scalars, vectors, and inside ``map``.
        is_commutative: The two operands may be swapped bit for bit.
        is_terminator: Ends a nested region.
        needs_uniform: Only under workgroup-uniform control flow.
        uniformity: What the result is; None inherits the maximum of operands and regions.
        doc: One line of meaning.
    """

    name: str
    level: Literal["lane", "tile", "both"]
    operands: str
    rule: Rule
    attributes: dict[str, Attribute | None]
    num_regions: int = 0
    effect: Effect = "pure"
    is_elementwise: bool = False
    is_commutative: bool = False
    is_terminator: bool = False
    needs_uniform: bool = False
    uniformity: Uniformity | None = None
    doc: str


def check_kind(dtype: DType, kinds: str, what: str) -> None:
    """Check a dtype against ``any float integer number bool bits``.

    Raises:
        RuleError: If it is of another kind.
    """
    accepted = {
        "any": True,
        "float": dtype.is_float,
        "integer": dtype.is_integer,
        "number": dtype.is_float or dtype.is_integer,
        "bits": dtype.is_integer or dtype is boolean,
        "bool": dtype is boolean,
    }[kinds]
    if not accepted:
        raise RuleError(f"{what} must have a dtype of kind {kinds}, got {dtype.name}")


def with_dtype(like: ScalarType | VectorType, dtype: DType) -> ScalarType | VectorType:
    """Return the type of the same shape with another dtype."""
    return ScalarType(dtype) if isinstance(like, ScalarType) else VectorType(dtype, like.count)


def same_types(request: Request, kinds: str = "any") -> ScalarType | VectorType:
    """Return the one type that all operands share."""
    first = request.elementwise(0, kinds)
    for index in range(1, len(request.operands)):
        if request.type(index) != first:
            raise RuleError(f"operands differ in type: {first} and {request.type(index)}")
    return first


def is_index(found: Type) -> bool:
    """Whether a type is the index type."""
    return found == INDEX


def lane_op(
    name: str,
    operands: str,
    rule: Rule,
    effect: Effect,
    doc: str,
    attributes: dict[str, Attribute | None] | None = None,
    *,
    uniformity: Uniformity | None = None,
    uniform: bool = False,
    both: bool = False,
) -> OpSpec:
    """Return the row of an operation of lanes; with ``both`` tile kernels have it too."""
    return OpSpec(
        name=name,
        level="both" if both else "lane",
        operands=operands,
        rule=rule,
        attributes=attributes or {},
        effect=effect,
        uniformity=uniformity,
        needs_uniform=uniform,
        doc=doc,
    )
