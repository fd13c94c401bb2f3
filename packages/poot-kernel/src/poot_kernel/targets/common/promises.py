"""What is known of integers before launch: by which power or number they divide.

Wide copies need aligned addresses and dropped masks need whole tiles; both follow from the kernel's
own arithmetic and from what the caller promises of arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from poot_kernel.ir.core import KernelFunction, Op, Value
from poot_kernel.ir.sizes import Size

__all__ = ["Promises"]

ANY = 1 << 40  # zero is a multiple of everything


class Promises:
    """Divisors of values and sizes.

    Attributes:
        multiples: What the caller promises: scalars are multiples, array addresses are aligned.
    """

    def __init__(self, kernel: KernelFunction, multiples: Mapping[str, int]) -> None:
        self.multiples = multiples
        self._loops: dict[Value, Op] = {}
        for op in kernel.body.walk():
            if op.opcode in ("for", "pipeline"):
                for region in op.regions:
                    self._loops[region.arguments[0]] = op

    def of_size(self, size: Size) -> int:
        """Return a divisor of a size."""
        if size.kind == "constant":
            return size.value or ANY
        if size.kind == "parameter":
            return self.multiples.get(size.name, 1)
        a, b = (self.of_size(argument) for argument in size.arguments)
        return _combined(size.kind, a, b, size.arguments[1].constant)

    def of(self, value: Value) -> int:
        """Return a divisor of a scalar."""
        loop = self._loops.get(value)
        if loop is not None:
            return math.gcd(self.of(loop.operands[0]), self.of(loop.operands[2]))
        op = value.definition
        if op is None:
            return self.multiples.get(value.name, 1)
        if op.opcode == "constant":
            literal = op.attributes["value"]
            return abs(literal) or ANY if isinstance(literal, int) else 1
        if op.opcode == "assume_multiple":
            factor = op.attributes["factor"]
            assert isinstance(factor, int)
            return math.lcm(self.of(op.operands[0]), factor)
        if op.opcode == "convert":
            return self.of(op.operands[0])
        if len(op.operands) == 2 and not op.regions:
            a, b = op.operands
            return _combined(op.opcode, self.of(a), self.of(b), _literal(b))
        return 1


def _literal(value: Value) -> int | None:
    op = value.definition
    if op is None or op.opcode != "constant":
        return None
    literal = op.attributes["value"]
    return literal if isinstance(literal, int) else None


def _combined(opcode: str, a: int, b: int, literal: int | None) -> int:
    match opcode:
        case "add" | "sub" | "min" | "max":
            return math.gcd(a, b)
        case "mul":
            return min(a * b, ANY)
        case "floordiv" if literal and a % literal == 0:
            return a // literal
        case "shl" if literal is not None:
            return a << literal
        case _:
            return 1
