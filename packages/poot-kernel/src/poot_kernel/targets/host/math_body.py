"""A small writer of straight-line LLVM functions over one vector width; used for the math library."""

from __future__ import annotations

import struct

__all__ = ["MathBody", "f32_literal", "f64_literal"]


def f32_literal(value: float) -> str:
    """Return an f32 constant in LLVM's spelling: the bits of the same value as a double."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return f64_literal(rounded)


def f64_literal(value: float) -> str:
    """Return an f64 constant in LLVM's spelling."""
    return "0x" + struct.pack(">d", value).hex().upper()


class MathBody:
    """Lines of one function whose values all have ``width`` lanes (1: scalars).

    Value names are returned by the methods; ``f``, ``i``, ``b`` are the types of f32, i32 and
    boolean values, ``g`` and ``j`` of f64 and i64 ones.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.f, self.i, self.b, self.g, self.j = (
            element if width == 1 else f"<{width} x {element}>"
            for element in ("float", "i32", "i1", "double", "i64")
        )

    def emit(self, text: str) -> str:
        """Append an instruction and return its result's name."""
        name = f"%t{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def real(self, value: float) -> str:
        """Return an f32 constant."""
        return self._splat("float", f32_literal(value))

    def double(self, value: float) -> str:
        """Return an f64 constant."""
        return self._splat("double", f64_literal(value))

    def integer(self, value: int) -> str:
        """Return an i32 constant."""
        return self._splat("i32", str(value))

    def long(self, value: int) -> str:
        """Return an i64 constant."""
        return self._splat("i64", str(value))

    def _splat(self, element: str, literal: str) -> str:
        return literal if self.width == 1 else f"splat ({element} {literal})"

    def binary(self, instruction: str, a: str, b: str, kind: str = "f") -> str:
        """Emit ``fadd fsub fmul fdiv add sub and or xor shl lshr`` on values of one kind."""
        return self.emit(f"{instruction} {getattr(self, kind)} {a}, {b}")

    def fma(self, a: str, b: str, c: str, kind: str = "f") -> str:
        """Emit a * b + c, rounded once."""
        return self.intrinsic("llvm.fma", kind, a, b, c)

    def intrinsic(self, name: str, kind: str, *operands: str) -> str:
        """Emit a call to an intrinsic that is overloaded on one type."""
        found = getattr(self, kind)
        suffix = {"f": "f32", "i": "i32", "g": "f64", "j": "i64"}[kind]
        full = f"@{name}.{suffix}" if self.width == 1 else f"@{name}.v{self.width}{suffix}"
        self.declarations.add(f"declare {found} {full}({', '.join([found] * len(operands))})")
        return self.emit(f"call {found} {full}({', '.join(f'{found} {x}' for x in operands)})")

    def absolute(self, x: str) -> str:
        """Emit |x|."""
        return self.intrinsic("llvm.fabs", "f", x)

    def with_sign(self, magnitude: str, sign: str) -> str:
        """Emit magnitude with the sign of ``sign``."""
        return self.intrinsic("llvm.copysign", "f", magnitude, sign)

    def bits(self, x: str) -> str:
        """Emit the i32 bits of an f32."""
        return self.emit(f"bitcast {self.f} {x} to {self.i}")

    def from_bits(self, x: str) -> str:
        """Emit the f32 of i32 bits."""
        return self.emit(f"bitcast {self.i} {x} to {self.f}")

    def compare(self, predicate: str, a: str, b: str) -> str:
        """Emit an ordered comparison of f32 values: ``olt ogt oeq une ...``."""
        return self.emit(f"fcmp {predicate} {self.f} {a}, {b}")

    def compare_integers(self, predicate: str, a: str, b: str) -> str:
        """Emit a comparison of i32 values."""
        return self.emit(f"icmp {predicate} {self.i} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """Emit a where the condition holds, else b, of f32 values."""
        return self.emit(f"select {self.b} {condition}, {self.f} {a}, {self.f} {b}")

    def horner(self, x: str, coefficients: tuple[float, ...]) -> str:
        """Emit a polynomial, lowest coefficient first."""
        result = self.real(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.real(coefficient))
        return result

    def horner_double(self, x: str, coefficients: tuple[float, ...]) -> str:
        """Emit an f64 polynomial, lowest coefficient first."""
        result = self.double(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.double(coefficient), "g")
        return result
