"""Arithmetic over a machine: constant folding, narrow integers, packing, element opcodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poot_core import DType, UnsupportedError, bf16, boolean, f16, f32, i32, i64, u8, u32
from poot_kernel.ir.core import Op
from poot_kernel.targets.common.machine import Machine, Register

__all__ = ["Arithmetic"]

_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "floordiv": "div", "mod": "rem",
    "min": "min", "max": "max", "mul_high": "mul_high", "and": "and", "or": "or", "xor": "xor",
    "shl": "shl", "shr": "shr",
}  # fmt: skip
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "abs", "not", "exp2", "log2", "sqrt", "rsqrt", "sin", "cos", "floor", "ceil",
          "trunc", "rint")  # fmt: skip
_IDENTITY = {"add": 0, "sub": 0, "shl": 0, "shr": 0, "or": 0, "xor": 0, "mul": 1, "div": 1}


class Arithmetic:
    """Integer helpers for addresses, and the lowering of element opcodes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    # ---- integers with folding

    def word(self, value: int) -> Register:
        """Return a u32 literal."""
        return self.machine.constant(value, u32)

    def integer(self, name: str, a: Register, b: Register | int) -> Register:
        """Return a binary result, folded where the operands are literals."""
        if isinstance(b, int):
            b = self.machine.constant(b, a.dtype)
        x, y = a.literal, b.literal
        if y is not None and _IDENTITY.get(name) == y:
            return a
        if x == 0 and name == "add":
            return b
        if y == 0 and name in ("mul", "and"):
            return b
        if isinstance(x, int) and isinstance(y, int) and name in ("add", "sub", "mul", "shl"):
            folded = {"add": x + y, "sub": x - y, "mul": x * y, "shl": x << y}[name]
            return self.machine.constant(folded, a.dtype)
        if isinstance(y, int) and y > 0 and y & (y - 1) == 0:
            if name == "mul":
                return self.integer("shl", a, y.bit_length() - 1)
            if name == "div" and a.dtype.kind != "int":
                return self.integer("shr", a, y.bit_length() - 1)
        if name in ("shl", "shr") and b.dtype.bits == 64:
            b = self.machine.constant(y, u32) if y is not None else self.convert(b, u32)
        return self.machine.binary(name, a, b)

    def add(self, a: Register, b: Register | int) -> Register:
        """Return a + b."""
        return self.integer("add", a, b)

    def mul(self, a: Register, b: Register | int) -> Register:
        """Return a * b."""
        return self.integer("mul", a, b)

    def field(self, x: Register, start: int, count: int, width: int, step: int) -> Register:
        """Return bits start .. start + count of a word of ``width`` bits, times step."""
        found = self.integer("shr", x, start)
        if start + count < width:
            found = self.integer("and", found, (1 << count) - 1)
        return self.mul(found, step)

    # ---- conversion

    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype; integers wrap."""
        if x.dtype is dtype:
            return x
        if x.literal is not None and dtype.kind in ("int", "uint") and x.dtype.kind != "float":
            return self.machine.constant(x.literal, dtype)
        if x.dtype in (bf16, f16) and dtype is not f32:
            x = self.machine.convert(x, f32)
        if dtype is boolean:
            return self.machine.compare("ne", x, self.machine.constant(0, x.dtype))
        if dtype in (bf16, f16) and x.dtype is not f32:
            x = self.machine.convert(x, f32)
        if dtype.is_float or x.dtype.is_float or dtype.bits >= 32:
            return self.machine.convert(x, dtype)
        return self.narrow(self.machine.convert(x, i32 if dtype.kind == "int" else u32), dtype)

    def narrow(self, x: Register, dtype: DType) -> Register:
        """Return a word brought into the range of a narrow integer."""
        if dtype.bits >= 32 or dtype.is_float or dtype is boolean:
            return self.machine.reinterpret(x, dtype)
        if dtype.kind == "uint":
            kept = self.machine.binary("and", x, self.machine.constant((1 << dtype.bits) - 1, u32))
            return self.machine.reinterpret(kept, dtype)
        signed = self.machine.reinterpret(x, i32)
        shift = self.word(32 - dtype.bits)
        up = self.machine.binary("shl", signed, shift)
        return self.machine.reinterpret(self.machine.binary("shr", up, shift), dtype)

    def pack(self, values: Sequence[Register]) -> list[Register]:
        """Return the words that hold narrow elements in memory order."""
        bits = values[0].dtype.bits
        if bits >= 32:
            return list(values)
        if bits == 16:
            pairs = zip(values[::2], values[1::2], strict=True)
            return [self.machine.pack_halves(low, high) for low, high in pairs]
        words: list[Register] = []
        for first in range(0, len(values), 4):
            word = self.word(0)
            for place, value in enumerate(values[first : first + 4]):
                raw = self.integer("and", self.machine.reinterpret(value, u32), 255)
                word = self.integer("or", self.integer("shl", raw, 8 * place), word)
            words.append(word)
        return words

    def unpack(self, word: Register, dtype: DType) -> list[Register]:
        """Return the elements that a word holds."""
        if dtype.bits >= 32:
            return [self.machine.reinterpret(word, dtype)]
        found: list[Register] = []
        for place in range(32 // dtype.bits):
            shifted = self.integer("shr", word, place * dtype.bits)
            if dtype.kind == "int":
                found.append(self.narrow(shifted, dtype))
                continue
            if (place + 1) * dtype.bits < 32:
                shifted = self.integer("and", shifted, (1 << dtype.bits) - 1)
            found.append(self.machine.reinterpret(shifted, dtype))
        return found

    # ---- element opcodes

    def element(self, op: Op, operands: list[Register], dtype: DType) -> Register:
        """Return the result of an element opcode.

        Raises:
            UnsupportedError: If GPU targets have no lowering for it yet.
        """
        name, machine = op.opcode, self.machine
        if name == "constant":
            value = op.attributes["value"]
            assert isinstance(value, int | float)
            return machine.constant(value, dtype)
        if name in _COMPARE:
            return machine.compare(name, *self._wide(operands))
        if name == "select":
            return machine.select(operands[0], operands[1], operands[2])
        if name == "convert":
            return self.convert(operands[0], dtype)
        if name == "bitcast":
            return machine.reinterpret(operands[0], dtype)
        if name == "assume_multiple":
            return operands[0]
        if name == "dot4":
            signs = bool(op.attributes["a_signed"]), bool(op.attributes["b_signed"])
            return machine.dot4(operands[0], operands[1], operands[2], signs)
        if name == "fma":
            a, b, c = self._wide(operands)
            return self.convert(machine.fma(a, b, c), dtype)
        if name in _BINARY:
            return self._binary(name, operands, dtype)
        if name == "exp":
            scaled = machine.binary(
                "mul", self._wide(operands)[0], machine.constant(1 / math.log(2), f32)
            )
            return self.convert(machine.unary("exp2", scaled), dtype)
        if name in _UNARY:
            return self._narrowed(machine.unary(name, self._wide(operands)[0]), dtype)
        raise UnsupportedError(
            f"{name!r} has no lowering for GPUs yet; lowered are {sorted(_BINARY)}, {_UNARY}"
        )

    def _binary(self, name: str, operands: list[Register], dtype: DType) -> Register:
        a, b = self._wide(operands)
        if a.dtype.is_float or dtype is boolean:
            return self._narrowed(self.machine.binary(_BINARY[name], a, b), dtype)
        if name in ("floordiv", "mod") and dtype.kind == "int" and not _is_positive(b):
            raise UnsupportedError(f"{name!r} of signed integers needs a positive literal divisor")
        if name in ("floordiv", "mod") and dtype.kind == "int":
            return self._floor(name, a, b)
        return self._narrowed(self.integer(_BINARY[name], a, b), dtype)

    def _floor(self, name: str, a: Register, b: Register) -> Register:
        literal = b.literal
        assert isinstance(literal, int)
        if literal & (literal - 1) == 0:  # arithmetic shift and mask round down
            if name == "mod":
                return self.integer("and", a, literal - 1)
            return self.integer("shr", a, literal.bit_length() - 1)
        quotient = self.machine.binary("div", a, b)
        rest = self.machine.binary("sub", a, self.machine.binary("mul", quotient, b))
        zero, one = self.machine.constant(0, a.dtype), self.machine.constant(1, a.dtype)
        below = self.machine.compare("lt", rest, zero)
        if name == "mod":
            return self.machine.select(below, self.machine.binary("add", rest, b), rest)
        lower = self.machine.binary("sub", quotient, one)
        return self.machine.select(below, lower, quotient)

    def _wide(self, operands: list[Register]) -> list[Register]:
        return [self.convert(x, f32) if x.dtype in (bf16, f16) else x for x in operands]

    def _narrowed(self, x: Register, dtype: DType) -> Register:
        if dtype in (bf16, f16):
            return self.convert(x, dtype)
        return self.narrow(x, dtype) if dtype.bits < 32 and dtype is not boolean else x

    def combine(self, kind: str, a: Register, b: Register) -> Register:
        """Return one step of a reduction."""
        name = {"sum": "add", "add": "add", "max": "max", "min": "min"}.get(kind, kind)
        return self.machine.binary(name, a, b)


def _is_positive(x: Register) -> bool:
    return isinstance(x.literal, int) and x.literal > 0


_ = (u8, i64)
