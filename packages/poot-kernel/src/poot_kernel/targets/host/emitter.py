"""A writer of LLVM IR text: typed values, instructions, blocks, declarations."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import DType, boolean, f32, f64, i64
from poot_kernel.targets.host.math_body import f32_literal, f64_literal

__all__ = ["Emitter", "Number", "Val", "llvm_type"]

Number = int | float | bool
# bf16 and the 8-bit floats travel as integers of their bits; a boolean is one bit in a register.
_ELEMENTS = {"f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "boolean": "i1",
             "f8e4m3": "i8", "f8e5m2": "i8"}  # fmt: skip


def llvm_type(dtype: DType, lanes: int = 0) -> str:
    """Return LLVM's name of a scalar (``lanes`` 0) or of a vector."""
    element = _ELEMENTS.get(dtype.name, f"i{dtype.bits}")
    return f"<{lanes} x {element}>" if lanes else element


@dataclass(frozen=True, slots=True)
class Val:
    """One LLVM value.

    Attributes:
        name: Operand text: ``%v3`` or a constant.
        dtype: Element type.
        lanes: Elements of a vector; 0 for a scalar.
        constant: The number that it (or every lane) is, where known.
        bound: Largest magnitude of an integer, where known to be less than its dtype's.
    """

    name: str
    dtype: DType
    lanes: int = 0
    constant: Number | None = None
    bound: int | None = None

    @property
    def type(self) -> str:
        """LLVM's type."""
        return llvm_type(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        """Type and name, as an operand."""
        return f"{self.type} {self.name}"


class Emitter:
    """Appends instructions to the current block of one function.

    Attributes:
        block: Label of the current block.
        prelude: Definitions and declarations that stand outside of the function.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.prelude: dict[str, str] = {}
        self.metadata: list[str] = []
        self.block = "entry"
        self._count = 0

    # ---- text

    def fresh(self, stem: str = "v") -> str:
        """Return an unused name without its ``%``."""
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str) -> None:
        """Append an instruction without result."""
        self.lines.append(f"  {text}")

    def name(self, text: str) -> str:
        """Append an instruction and return its result's name."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {text}")
        return name

    def emit(self, text: str, dtype: DType, lanes: int = 0, bound: int | None = None) -> Val:
        """Append an instruction and return its result."""
        return Val(self.name(text), dtype, lanes, None, bound)

    def start(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def hole(self) -> int:
        """Append a line to be filled later."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, hole: int, text: str) -> None:
        """Fill a hole."""
        self.lines[hole] = f"  {text}"

    def declare(self, text: str) -> None:
        """Declare an intrinsic once."""
        self.prelude.setdefault(text, f"declare {text}")

    # ---- values

    def const(self, value: Number, dtype: DType, lanes: int = 0) -> Val:
        """Return a constant; every lane of a vector is the same."""
        if dtype is boolean:
            text = "true" if value else "false"
        elif dtype is f32:
            text = f32_literal(float(value))
        elif dtype is f64:
            text = f64_literal(float(value))
        elif dtype.is_float:
            bits = dtype.numpy.type(value).tobytes()[::-1].hex().upper()
            text = f"0xH{bits}" if dtype.name == "f16" else str(int(bits, 16))
        else:
            text = str(int(value))
        bound = abs(int(value)) if dtype.is_integer else None
        if lanes:
            text = f"splat ({llvm_type(dtype)} {text})"
        return Val(text, dtype, lanes, value, bound)

    def splat(self, x: Val, lanes: int) -> Val:
        """Return a scalar in every lane; vectors of that width pass."""
        if x.lanes == lanes:
            return x
        assert not x.lanes, f"cannot widen {x.lanes} lanes to {lanes}"
        if x.constant is not None:
            return self.const(x.constant, x.dtype, lanes)
        kind = llvm_type(x.dtype, lanes)
        first = self.name(f"insertelement {kind} poison, {x.typed}, i64 0")
        return self.emit(
            f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer",
            x.dtype, lanes, x.bound,
        )  # fmt: skip

    def undefined(self, dtype: DType, lanes: int) -> Val:
        """Return a vector to insert into."""
        return Val("poison", dtype, lanes)

    def extract(self, x: Val, lane: int) -> Val:
        """Return one lane."""
        if x.constant is not None:
            return self.const(x.constant, x.dtype)
        return self.emit(f"extractelement {x.typed}, i64 {lane}", x.dtype, 0, x.bound)

    def insert(self, x: Val, value: Val, lane: int) -> Val:
        """Return a vector with one lane replaced."""
        return self.emit(f"insertelement {x.typed}, {value.typed}, i64 {lane}", x.dtype, x.lanes)

    def shuffle(self, a: Val, b: Val | None, lanes: list[int]) -> Val:
        """Return lanes picked from two vectors; -1 leaves one open."""
        other = f"{a.type} poison" if b is None else b.typed
        picks = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in lanes)
        return self.emit(
            f"shufflevector {a.typed}, {other}, <{len(lanes)} x i32> <{picks}>",
            a.dtype, len(lanes), a.bound,
        )  # fmt: skip

    def binary(self, instruction: str, a: Val, b: Val, bound: int | None = None) -> Val:
        """Append an instruction on two values of one type."""
        return self.emit(f"{instruction} {a.typed}, {b.name}", a.dtype, a.lanes, bound)

    def compare(self, predicate: str, a: Val, b: Val) -> Val:
        """Append ``icmp`` or ``fcmp`` with a predicate such as ``fcmp olt``."""
        return self.emit(f"{predicate} {a.typed}, {b.name}", boolean, a.lanes)

    def select(self, condition: Val, a: Val, b: Val) -> Val:
        """Append a select; a scalar condition chooses whole vectors."""
        bound = None if a.bound is None or b.bound is None else max(a.bound, b.bound)
        return self.emit(f"select {condition.typed}, {a.typed}, {b.typed}", a.dtype, a.lanes, bound)

    def cast(self, instruction: str, x: Val, dtype: DType, bound: int | None = None) -> Val:
        """Append a cast to another element type."""
        return self.emit(f"{instruction} {x.typed} to {llvm_type(dtype, x.lanes)}", dtype, x.lanes,
                         bound)  # fmt: skip

    def reinterpret(self, x: Val, dtype: DType, lanes: int, bound: int | None = None) -> Val:
        """Return the same bits under another type."""
        target = llvm_type(dtype, lanes)
        if target == x.type:
            return Val(x.name, dtype, lanes, None, bound)
        return self.emit(f"bitcast {x.typed} to {target}", dtype, lanes, bound)

    def call(self, name: str, dtype: DType, lanes: int, *operands: Val) -> Val:
        """Call an intrinsic by its full name."""
        result = llvm_type(dtype, lanes)
        self.declare(f"{result} @{name}({', '.join(x.type for x in operands)})")
        return self.emit(
            f"call {result} @{name}({', '.join(x.typed for x in operands)})", dtype, lanes
        )

    def overloaded(self, stem: str, *operands: Val) -> Val:
        """Call an intrinsic overloaded on its first operand's type, which it returns."""
        x = operands[0]
        element = {"float": "f32", "double": "f64", "half": "f16"}.get(llvm_type(x.dtype))
        element = element or llvm_type(x.dtype)
        suffix = f"v{x.lanes}{element}" if x.lanes else element
        return self.call(f"llvm.{stem}.{suffix}", x.dtype, x.lanes, *operands)

    # ---- index arithmetic, folded where both sides are known

    def index(self, value: int) -> Val:
        """Return an i64 constant."""
        return self.const(value, i64)

    def add(self, a: Val, b: Val) -> Val:
        """Return a + b of i64 values."""
        if isinstance(a.constant, int) and isinstance(b.constant, int):
            return self.index(a.constant + b.constant)
        if a.constant == 0:
            return b
        return a if b.constant == 0 else self.binary("add nsw", a, b)

    def mul(self, a: Val, b: Val) -> Val:
        """Return a * b of i64 values."""
        if isinstance(a.constant, int) and isinstance(b.constant, int):
            return self.index(a.constant * b.constant)
        if a.constant == 0 or b.constant == 0:
            return self.index(0)
        if a.constant == 1:
            return b
        return a if b.constant == 1 else self.binary("mul nsw", a, b)

    def offset(self, pointer: str, by: Val, *, inbounds: bool = True) -> str:
        """Return a pointer moved by bytes."""
        if by.constant == 0:
            return pointer
        word = " inbounds" if inbounds else ""
        return self.name(f"getelementptr{word} i8, ptr {pointer}, {by.typed}")

    def loop_metadata(self, unroll: int) -> str:
        """Return the suffix of a loop's branch: no vectorising, unrolled as told."""
        number = len(self.metadata)
        option = (
            '!{!"llvm.loop.unroll.disable"}'
            if unroll <= 1
            else f'!{{!"llvm.loop.unroll.count", i32 {unroll}}}'
        )
        self.metadata += [
            f"!{number} = distinct !{{!{number}, !{number + 1}, !{number + 2}}}",
            f"!{number + 1} = {option}",
            f'!{number + 2} = !{{!"llvm.loop.vectorize.enable", i1 false}}',
        ]
        return f", !llvm.loop !{number}"
