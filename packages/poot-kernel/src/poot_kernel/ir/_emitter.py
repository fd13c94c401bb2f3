"""The builder's core: emits operations with inferred types at an insertion point."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from poot_core import DType, DTypeError, VerifyError, boolean, f32, i64
from poot_kernel.ir.core import Attribute, Location, Op, Region, Value
from poot_kernel.ir.opcodes import OPCODES, complete_attributes, infer_results
from poot_kernel.ir.specs import RuleError
from poot_kernel.ir.types import ScalarType, TileType, VectorType

__all__ = ["Emitter", "Operand"]

Operand = Value | int | float | bool


class Emitter:
    """Emits operations into the current region.

    Attributes:
        location: Given to every operation emitted from now on.
    """

    def __init__(self, body: Region) -> None:
        self.location: Location | None = None
        self._regions = [body]

    def op(
        self,
        opcode: str,
        operands: Sequence[Value] = (),
        regions: Sequence[Region] = (),
        **attributes: Attribute,
    ) -> list[Value]:
        """Emit any operation and return its results.

        Raises:
            VerifyError: If there is no such opcode.
            DTypeError: If operands or attributes break the opcode's rule.
        """
        where = f" at {self.location}" if self.location else ""
        spec = OPCODES.get(opcode)
        if spec is None:
            raise VerifyError(f"{opcode!r} is no opcode{where}", opcode=opcode)
        try:
            completed = complete_attributes(spec, attributes)
            types = infer_results(spec, operands, completed, regions)
        except RuleError as error:
            raise DTypeError(
                f"{opcode!r} {error}{where}", op=opcode,
                location=str(self.location) if self.location else None,
            ) from error  # fmt: skip
        op = Op(opcode, list(operands), [], completed, list(regions), self.location)
        op.results = [Value(found, definition=op) for found in types]
        self._regions[-1].operations.append(op)
        return op.results

    def one(self, opcode: str, operands: Sequence[Value] = (), **attributes: Attribute) -> Value:
        """Emit an operation with one result and return it."""
        (value,) = self.op(opcode, operands, (), **attributes)
        return value

    @contextmanager
    def inserting(self, region: Region) -> Generator[Region]:
        """Emit into another region inside the ``with`` block."""
        self._regions.append(region)
        try:
            yield region
        finally:
            self._regions.pop()

    def constant(self, value: float | int | bool, dtype: DType | None = None) -> Value:
        """Return a literal; without dtype a bool, an i64 or an f32."""
        if dtype is None:
            dtype = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f32
        literal = float(value) if dtype.is_float else value
        return self.one("constant", value=literal, dtype=dtype)

    def index(self, value: Operand) -> Value:
        """Return a value as i64: literals become constants, other integers are converted."""
        if not isinstance(value, Value):
            return self.constant(int(value), i64)
        if isinstance(value.type, ScalarType) and value.type.dtype is not i64:
            return self.one("convert", [value], dtype=i64)
        return value

    def like(self, *values: Operand) -> list[Value]:
        """Return values with literals made constants of the dtype that the others have."""
        found = next((v.type for v in values if isinstance(v, Value)), None)
        dtype = found.dtype if isinstance(found, ScalarType | VectorType | TileType) else None
        result: list[Value] = []
        for value in values:
            if isinstance(value, Value):
                result.append(value)
                continue
            literal = self.constant(value, dtype)
            if isinstance(found, VectorType):
                literal = self.one("splat", [literal], count=found.count)
            result.append(literal)
        return result
