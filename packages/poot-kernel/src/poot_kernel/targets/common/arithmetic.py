"""Arithmetic over a machine: constant folding, narrow integers, packing, element opcodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from poot_core import DType, UnsupportedError, bf16, boolean, f16, f32, i32, u32
from poot_kernel.ir.core import Op
from poot_kernel.targets.common.machine import Machine, Register
from poot_kernel.targets.common.math import MATH_FUNCTIONS, math_function

__all__ = ["Arithmetic"]

_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "floordiv": "div", "mod": "rem",
    "min": "min", "max": "max", "mul_high": "mul_high", "and": "and", "or": "or", "xor": "xor",
    "shl": "shl", "shr": "shr",
}  # fmt: skip
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "abs", "not", "sqrt", "rsqrt", "floor", "ceil", "trunc", "rint")
_APPROXIMATE = ("exp2", "log2")  # instructions of every machine
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
            a, b = self._wide(operands)
            if a.dtype is boolean:
                return self._compare_booleans(name, a, b)
            return machine.compare(name, a, b)
        if name == "select":
            return machine.select(operands[0], operands[1], operands[2])
        if name == "convert":
            x = operands[0]
            return (
                self._saturated(x, dtype) if op.attributes["saturate"] else self.convert(x, dtype)
            )
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
        if name in MATH_FUNCTIONS:
            return self.convert(self._function(name, self._wide(operands)), dtype)
        if name in ("lut16", "count_ones", "dot2"):
            return self._rare(op, operands, dtype)
        if name in _UNARY:
            return self._narrowed(machine.unary(name, self._wide(operands)[0]), dtype)
        raise UnsupportedError(
            f"{name!r} has no lowering for GPUs yet; lowered are {sorted(_BINARY)}, {_UNARY}"
        )

    def _rare(self, op: Op, operands: list[Register], dtype: DType) -> Register:
        if op.opcode == "dot2":
            return self._dot2(operands, cast("DType", op.attributes["dtype"]))
        if op.opcode == "count_ones":
            return self._count_ones(operands[0], dtype)
        return self._looked_up(operands[0], cast("tuple[int, ...]", op.attributes["table"]), dtype)

    def _function(self, name: str, operands: list[Register]) -> Register:
        machine = self.machine
        if machine.is_approximate and name == "exp":
            scaled = machine.binary("mul", operands[0], machine.constant(1 / math.log(2), f32))
            return machine.unary("exp2", scaled)
        if machine.is_approximate and name in _APPROXIMATE:
            return machine.unary(name, operands[0])
        return math_function(machine, name, *operands)

    def _saturated(self, x: Register, dtype: DType) -> Register:
        """Return x as an integer, clamped to its range; a NaN gives 0."""
        machine = self.machine
        (x,) = self._wide([x])
        if not dtype.is_integer or x.dtype is boolean:
            return self.convert(x, dtype)
        signed = dtype.kind == "int"
        low = -(1 << dtype.bits - 1) if signed else 0
        high = (1 << dtype.bits - signed) - 1
        if x.dtype is f32:
            # The largest f32 that the type holds; what is beyond is chosen afterwards.
            top = float(high) if dtype.bits < 24 else float(high + 1) * (1 - 2.0**-24)
            inside = machine.binary("max", x, machine.constant(float(low), f32))
            inside = machine.binary("min", inside, machine.constant(top, f32))
            is_number = machine.compare("eq", x, x)
            inside = machine.select(is_number, inside, machine.constant(0.0, f32))
            found = self.convert(inside, dtype)
            if dtype.bits < 24:
                return found
            beyond = machine.compare("gt", x, machine.constant(top, f32))
            return machine.select(beyond, machine.constant(high, dtype), found)
        source_signed = x.dtype.kind == "int"
        if high < (1 << x.dtype.bits - source_signed) - 1:
            x = machine.binary("min", x, machine.constant(high, x.dtype))
        if source_signed and low > -(1 << x.dtype.bits - 1):
            x = machine.binary("max", x, machine.constant(low, x.dtype))
        return self.convert(x, dtype)

    def _looked_up(self, index: Register, table: tuple[int, ...], dtype: DType) -> Register:
        """Return table[index & 15] by halving: bits of the index choose among literals."""
        machine = self.machine
        wide = i32 if dtype.kind == "int" else u32
        found = [machine.constant(value, wide) for value in table]
        for bit in range(4):
            part = self.integer("and", self.reinterpreted(index, u32), 1 << bit)
            is_set = machine.compare("ne", part, machine.constant(0, u32))
            found = [
                machine.select(is_set, b, a) for a, b in zip(found[::2], found[1::2], strict=True)
            ]
        return machine.reinterpret(found[0], dtype)

    def reinterpreted(self, x: Register, dtype: DType) -> Register:
        """Return a word's bits as another dtype of words."""
        return x if x.dtype is dtype else self.machine.reinterpret(x, dtype)

    def _count_ones(self, x: Register, dtype: DType) -> Register:
        def fold(x: Register, shift: int, mask: int) -> Register:
            high = self.integer("and", self.integer("shr", x, shift), mask)
            return self.integer("add", self.integer("and", x, mask), high)

        if x.dtype.bits == 64:
            raise UnsupportedError("'count_ones' of 64 bits has no lowering for GPUs")
        mask = (1 << x.dtype.bits) - 1
        word = self.integer("and", self.reinterpreted(x, u32), mask) if x.dtype.bits < 32 else (
            self.reinterpreted(x, u32))  # fmt: skip
        for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF),
                            (16, 0x0000FFFF)):  # fmt: skip
            word = fold(word, shift, mask)
        return self.machine.reinterpret(word, dtype)

    def _dot2(self, operands: list[Register], dtype: DType) -> Register:
        """Return fma(low, fma(high, acc)): the order of ``pair_chain``."""
        a, b, acc = operands
        low, high = (
            [self.machine.convert(half, f32) for half in halves]
            for halves in zip(
                *(self.unpack(self.reinterpreted(x, u32), dtype) for x in (a, b)), strict=True
            )
        )
        return self.machine.fma(low[0], low[1], self.machine.fma(high[0], high[1], acc))

    def _compare_booleans(self, name: str, a: Register, b: Register) -> Register:
        if name in ("eq", "ne"):
            differ = self.machine.binary("xor", a, b)
            return differ if name == "ne" else self.machine.unary("not", differ)
        wide = [self.machine.convert(x, u32) for x in (a, b)]
        return self.machine.compare(name, *wide)

    def _binary(self, name: str, operands: list[Register], dtype: DType) -> Register:
        a, b = self._wide(operands)
        if dtype is boolean:
            return self.machine.binary({"min": "and", "max": "or"}.get(name, name), a, b)
        if a.dtype.is_float:
            return self._narrowed(self.machine.binary(_BINARY[name], a, b), dtype)
        if name in ("floordiv", "mod") and dtype.kind == "int":
            return self._floor(name, a, b)
        return self._narrowed(self.integer(_BINARY[name], a, b), dtype)

    def _floor(self, name: str, a: Register, b: Register) -> Register:
        literal = b.literal
        if isinstance(literal, int) and literal > 0 and literal & (literal - 1) == 0:
            # An arithmetic shift and a mask round down.
            if name == "mod":
                return self.integer("and", a, literal - 1)
            return self.integer("shr", a, literal.bit_length() - 1)
        if not _is_positive(b):
            return self._floor_any(name, a, b)
        quotient = self.machine.binary("div", a, b)
        rest = self.machine.binary("sub", a, self.machine.binary("mul", quotient, b))
        zero, one = self.machine.constant(0, a.dtype), self.machine.constant(1, a.dtype)
        below = self.machine.compare("lt", rest, zero)
        if name == "mod":
            return self.machine.select(below, self.machine.binary("add", rest, b), rest)
        lower = self.machine.binary("sub", quotient, one)
        return self.machine.select(below, lower, quotient)

    def _floor_any(self, name: str, a: Register, b: Register) -> Register:
        """Round down whatever the signs are."""
        machine = self.machine
        quotient = machine.binary("div", a, b)
        rest = machine.binary("sub", a, machine.binary("mul", quotient, b))
        zero = machine.constant(0, a.dtype)
        signs = machine.compare("lt", machine.binary("xor", rest, b), zero)
        is_off = machine.binary("and", machine.compare("ne", rest, zero), signs)
        if name == "mod":
            return machine.select(is_off, machine.binary("add", rest, b), rest)
        lower = machine.binary("sub", quotient, machine.constant(1, a.dtype))
        return machine.select(is_off, lower, quotient)

    def _wide(self, operands: list[Register]) -> list[Register]:
        return [self.convert(x, f32) if x.dtype in (bf16, f16) else x for x in operands]

    def _narrowed(self, x: Register, dtype: DType) -> Register:
        if dtype in (bf16, f16):
            return self.convert(x, dtype)
        return self.narrow(x, dtype) if dtype.bits < 32 and dtype is not boolean else x

    def combine(self, kind: str, a: Register, b: Register) -> Register:
        """Return one step of a reduction."""
        name = {"sum": "add", "add": "add", "max": "max", "min": "min"}.get(kind, kind)
        if a.dtype is boolean:
            name = {"max": "or", "min": "and"}.get(name, name)
        return self.machine.binary(name, a, b)


def _is_positive(x: Register) -> bool:
    return isinstance(x.literal, int) and x.literal > 0
