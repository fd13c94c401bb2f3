"""Builder methods for element arithmetic; literals take the other operand's dtype."""

from __future__ import annotations

from collections.abc import Sequence

from poot_core import DType
from poot_kernel.ir._emitter import Emitter, Operand
from poot_kernel.ir.core import Value

__all__ = ["ElementBuilder"]


class ElementBuilder(Emitter):
    """Arithmetic, comparison, conversion and math on scalars and vectors."""

    def binary(self, opcode: str, a: Operand, b: Operand) -> Value:
        """Emit a binary or comparison opcode by name."""
        return self.one(opcode, self.like(a, b))

    def unary(self, opcode: str, x: Value) -> Value:
        """Emit a unary opcode by name: ``neg abs not exp exp2 log log2 sqrt rsqrt sin ...``."""
        return self.one(opcode, [x])

    def add(self, a: Operand, b: Operand) -> Value:
        """Return a + b."""
        return self.binary("add", a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        """Return a - b."""
        return self.binary("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        """Return a * b."""
        return self.binary("mul", a, b)

    def div(self, a: Operand, b: Operand) -> Value:
        """Return a / b of floats."""
        return self.binary("div", a, b)

    def floordiv(self, a: Operand, b: Operand) -> Value:
        """Return a // b of integers."""
        return self.binary("floordiv", a, b)

    def mod(self, a: Operand, b: Operand) -> Value:
        """Return a % b of integers."""
        return self.binary("mod", a, b)

    def minimum(self, a: Operand, b: Operand) -> Value:
        """Return the smaller."""
        return self.binary("min", a, b)

    def maximum(self, a: Operand, b: Operand) -> Value:
        """Return the larger."""
        return self.binary("max", a, b)

    def and_(self, a: Operand, b: Operand) -> Value:
        """Return the bitwise and."""
        return self.binary("and", a, b)

    def or_(self, a: Operand, b: Operand) -> Value:
        """Return the bitwise or."""
        return self.binary("or", a, b)

    def xor(self, a: Operand, b: Operand) -> Value:
        """Return the bitwise exclusive or."""
        return self.binary("xor", a, b)

    def shl(self, a: Operand, b: Operand) -> Value:
        """Return a << b."""
        return self.binary("shl", a, b)

    def shr(self, a: Operand, b: Operand) -> Value:
        """Return a >> b."""
        return self.binary("shr", a, b)

    def compare(self, opcode: str, a: Operand, b: Operand) -> Value:
        """Return a boolean; opcode is ``eq ne lt le gt ge``."""
        return self.binary(opcode, a, b)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """Return a * b + c, rounded once."""
        return self.one("fma", self.like(a, b, c))

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """Return a where the condition holds, else b."""
        return self.one("select", [condition, *self.like(a, b)])

    def convert(self, x: Value, dtype: DType, *, saturate: bool = False) -> Value:
        """Return x in another dtype."""
        return self.one("convert", [x], dtype=dtype, saturate=saturate)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """Return the same bits as another dtype."""
        return self.one("bitcast", [x], dtype=dtype)

    def dot4(
        self, a: Value, b: Value, acc: Value, *, a_signed: bool = True, b_signed: bool = True
    ) -> Value:
        """Return acc plus four byte products."""
        return self.one("dot4", [a, b, acc], a_signed=a_signed, b_signed=b_signed)

    def dot2(self, a: Value, b: Value, acc: Value, dtype: DType) -> Value:
        """Return acc plus two 16-bit float products, low first."""
        return self.one("dot2", [a, b, acc], dtype=dtype)

    def lut16(self, index: Value, table: Sequence[int], dtype: DType) -> Value:
        """Return table[index & 15]."""
        return self.one("lut16", [index], table=tuple(table), dtype=dtype)

    def vector_build(self, *scalars: Value) -> Value:
        """Return a vector of scalars."""
        return self.one("vector_build", scalars)

    def splat(self, x: Value, count: int) -> Value:
        """Return a vector of equal elements."""
        return self.one("splat", [x], count=count)

    def extract(self, vector: Value, index: int) -> Value:
        """Return one element of a vector."""
        return self.one("extract", [vector], index=index)

    def insert(self, vector: Value, x: Value, index: int) -> Value:
        """Return a vector with one element replaced."""
        return self.one("insert", [vector, x], index=index)

    def vector_reduce(self, vector: Value, kind: str) -> Value:
        """Return a vector's elements combined in ascending order."""
        return self.one("vector_reduce", [vector], kind=kind)

    def assume_multiple(self, x: Value, factor: int) -> Value:
        """Return x, promised to be a multiple of factor."""
        return self.one("assume_multiple", [x], factor=factor)
