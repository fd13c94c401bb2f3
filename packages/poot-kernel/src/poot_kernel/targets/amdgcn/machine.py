"""The SIMT machine written as LLVM IR text for AMDGCN."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from poot_core import DType, bf16, boolean, f16, f32, i32, i64, u32, u64
from poot_kernel.targets.amdgcn.atoms import Architecture
from poot_kernel.targets.common.machine import Register, SpaceName, kind_of
from poot_kernel.targets.common.products import Atom, AtomMachine

__all__ = ["AmdMachine"]

_TYPES = {"boolean": "i1", "word": "i32", "long": "i64", "float": "float"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shl": "shl",
}
_SIGNED = {"div": ("udiv", "sdiv"), "rem": ("urem", "srem"), "shr": ("lshr", "ashr")}
_MATH = {"exp2": "amdgcn.exp2", "log2": "amdgcn.log", "sqrt": "sqrt", "rsqrt": "amdgcn.rsq",
         "sin": "sin", "cos": "cos", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
         "rint": "rint", "abs": "fabs"}  # fmt: skip
_ORDER = ("lt", "le", "gt", "ge")
_GLOBAL, _SHARED, _CONSTANT = "ptr addrspace(1)", "ptr addrspace(3)", "ptr addrspace(4)"


class AmdMachine(AtomMachine):
    """Emits one kernel; its shared memory is a global named ``shared_block``."""

    shared_limit = 64 * 1024

    def __init__(self, facts: Architecture) -> None:
        self.facts, self.atoms, self.subgroup_size = facts, facts.atoms, facts.subgroup_size
        self.entry: list[str] = []
        self.body: list[str] = []
        self.declared: dict[str, str] = {}
        self._lines = self.body
        self._count = 0
        self._variables: dict[str, DType] = {}

    # ---- text

    def line(self, text: str) -> None:
        """Emit one instruction."""
        self._lines.append(f"  {text}")

    def fresh(self) -> str:
        """Return a new name."""
        self._count += 1
        return f"%v{self._count}"

    def result(self, text: str, dtype: DType) -> Register:
        """Emit an instruction and return its result."""
        found = self.fresh()
        self.line(f"{found} = {text}")
        return Register(found, dtype)

    def call(self, name: str, result: str, *arguments: str) -> str:
        """Return the text of a call of an intrinsic, which is declared."""
        types = ", ".join(a.rsplit(" ", 1)[0] for a in arguments)
        self.declared[name] = f"declare {result} @{name}({types})"
        return f"call {result} @{name}({', '.join(arguments)})"

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """Emit at the kernel's entry."""
        outer, self._lines = self._lines, self.entry
        yield
        self._lines = outer

    @staticmethod
    def typed(x: Register) -> str:
        """Return an operand with its type."""
        return f"{_TYPES[kind_of(x.dtype)]} {x.code}"

    # ---- arithmetic

    def constant(self, value: float, dtype: DType) -> Register:
        """Return a literal; those of floats are written as the bits of a double."""
        kind = kind_of(dtype)
        if kind == "boolean":
            return Register("true" if value else "false", dtype)
        if kind == "float":
            rounded = struct.unpack("<f", struct.pack("<f", value))[0]
            bits = struct.unpack("<Q", struct.pack("<d", rounded))[0]
            return Register(f"0x{bits:016X}", dtype, value)
        return Register(str(int(value)), dtype, int(value))

    def binary(self, name: str, a: Register, b: Register) -> Register:
        """Return a binary result."""
        dtype, kind = a.dtype, kind_of(a.dtype)
        text = _TYPES[kind]
        if name in ("min", "max"):
            sign = "s" if dtype.kind == "int" else "u"
            intrinsic = f"llvm.{name}num.f32" if kind == "float" else f"llvm.{sign}{name}.{text}"
            return self.result(self.call(intrinsic, text, self.typed(a), self.typed(b)), dtype)
        if kind == "float":
            flags = (" contract" if self.is_contracted else "") + (
                " arcp afn" if self.is_approximate else ""
            )
            return self.result(f"{_FLOAT[name]}{flags} float {a.code}, {b.code}", dtype)
        if name == "mul_high":
            wide = i64 if dtype.kind == "int" else u64
            product = self.binary("mul", self.convert(a, wide), self.convert(b, wide))
            return self.convert(self.binary("shr", product, self.constant(32, wide)), dtype)
        opcode = _INTEGER.get(name) or _SIGNED[name][dtype.kind == "int"]
        if name in ("shl", "shr") and kind == "long":
            b = self.convert(b, u64) if kind_of(b.dtype) == "word" else b
        return self.result(f"{opcode} {text} {a.code}, {b.code}", dtype)

    def unary(self, name: str, x: Register) -> Register:
        """Return a unary result."""
        if x.dtype is f32 and name in _MATH:
            return self.result(self.call(f"llvm.{_MATH[name]}.f32", "float", self.typed(x)), f32)
        if name == "neg" and x.dtype is f32:
            return self.result(f"fneg float {x.code}", f32)
        if name == "not":
            ones = "true" if x.dtype is boolean else "-1"
            return self.result(f"xor {self.typed(x)}, {ones}", x.dtype)
        zero = self.constant(0, x.dtype)
        negative = self.binary("sub", zero, x)
        return negative if name == "neg" else self.binary("max", x, negative)

    def fma(self, a: Register, b: Register, c: Register) -> Register:
        """Return a * b + c."""
        return self.result(self.call("llvm.fma.f32", "float", *map(self.typed, (a, b, c))), f32)

    def dot4(self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]) -> Register:
        """Return acc plus four byte products."""
        x, y, z = (f"i32 {r.code}" for r in (a, b, acc))
        if self.facts.has_mixed_dot:
            left, right = (f"i1 {str(signed).lower()}" for signed in signs)
            return self.result(
                self.call("llvm.amdgcn.sudot4", "i32", left, x, right, y, z, "i1 false"), i32
            )
        if signs[0] == signs[1]:
            name = f"llvm.amdgcn.{'s' if signs[0] else 'u'}dot4"
            return self.result(self.call(name, "i32", x, y, z, "i1 false"), i32)
        if signs[0]:
            a, b = b, a
        # Unsigned a is signed (a - 128) + 128: flip its top bits and add 128 times the sum of b.
        flipped = self.binary("xor", a, self.constant(0x80808080, u32))
        ones, zero = self.constant(0x01010101, i32), self.constant(0, i32)
        total = self.dot4(ones, b, zero, (True, True))
        lifted = self.binary("shl", total, self.constant(7, u32))
        return self.dot4(flipped, b, self.binary("add", acc, lifted), (True, True))

    def compare(self, name: str, a: Register, b: Register) -> Register:
        """Return a comparison."""
        if a.dtype is f32:
            order = "une" if name == "ne" else f"o{name}"
            return self.result(f"fcmp {order} float {a.code}, {b.code}", boolean)
        sign = ("s" if a.dtype.kind == "int" else "u") if name in _ORDER else ""
        return self.result(f"icmp {sign}{name} {self.typed(a)}, {b.code}", boolean)

    def select(self, condition: Register, a: Register, b: Register) -> Register:
        """Return a or b."""
        return self.result(f"select i1 {condition.code}, {self.typed(a)}, {self.typed(b)}", a.dtype)

    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype."""
        if x.dtype is bf16:
            bits = self.result(f"shl i32 {x.code}, 16", u32)
            return self.result(f"bitcast i32 {bits.code} to float", f32)
        if x.dtype is f16:
            half = self.result(f"trunc i32 {x.code} to i16", u32)
            half = self.result(f"bitcast i16 {half.code} to half", u32)
            return self.result(f"fpext half {half.code} to float", f32)
        if dtype in (bf16, f16):
            kind = "bfloat" if dtype is bf16 else "half"
            half = self.result(f"fptrunc float {x.code} to {kind}", u32)
            half = self.result(f"bitcast {kind} {half.code} to i16", u32)
            return self.result(f"zext i16 {half.code} to i32", dtype)
        source, target = kind_of(x.dtype), kind_of(dtype)
        text = f"{self.typed(x)} to {_TYPES[target]}"
        is_signed = (dtype if source == "float" else x.dtype).kind == "int"
        if source == "boolean":
            return self.result(f"{'uitofp' if target == 'float' else 'zext'} {text}", dtype)
        if target == "float":
            return self.result(f"{'si' if is_signed else 'ui'}tofp {text}", dtype)
        if source == "float":
            # The instruction clamps; plain LLVM conversions leave what is out of range undefined.
            kind, sign = _TYPES[target], "s" if is_signed else "u"
            name = f"llvm.fpto{sign}i.sat.{kind}.f32"
            return self.result(self.call(name, kind, self.typed(x)), dtype)
        if source == target:
            return self.reinterpret(x, dtype)
        opcode = "trunc" if target == "word" else "sext" if is_signed else "zext"
        return self.result(f"{opcode} {text}", dtype)

    def reinterpret(self, x: Register, dtype: DType) -> Register:
        """Return the same bits."""
        if kind_of(x.dtype) == kind_of(dtype):
            return Register(x.code, dtype, x.literal)
        return self.result(f"bitcast {self.typed(x)} to {_TYPES[kind_of(dtype)]}", dtype)

    def pack_halves(self, low: Register, high: Register) -> Register:
        """Return two 16-bit floats in a word."""
        up = self.result(f"shl i32 {high.code}, 16", u32)
        return self.result(f"or i32 {up.code}, {low.code}", u32)

    # ---- invocations and memory

    def thread(self) -> Register:
        """Return the invocation's number."""
        return self.result(self.call("llvm.amdgcn.workitem.id.x", "i32"), u32)

    def workgroup(self, axis: int) -> Register:
        """Return the workgroup's coordinate."""
        return self.result(self.call(f"llvm.amdgcn.workgroup.id.{'xyz'[axis]}", "i32"), u32)

    def num_workgroups(self, axis: int) -> Register:
        """Return the grid's extent, which the runtime appends to the arguments."""
        base = self.result(self.call("llvm.amdgcn.implicitarg.ptr", _CONSTANT), u64)
        place = f"{_CONSTANT} {base.code}"
        if axis:
            moved = self.result(f"getelementptr i8, {place}, i32 {4 * axis}", u64)
            place = f"{_CONSTANT} {moved.code}"
        return self.result(f"load i32, {place}, align 4", u32)

    def shared_base(self) -> Register:
        """Return where shared memory begins, as an offset."""
        return self.constant(0, u32)

    def _pointer(self, space: SpaceName, address: Register, offset: int) -> str:
        if space == "shared":
            base = self.result(
                f"getelementptr i8, {_SHARED} @shared_block, i32 {address.code}", u32
            )
            kind = _SHARED
        else:
            base = self.result(f"inttoptr i64 {address.code} to {_GLOBAL}", u64)
            kind = _GLOBAL
        if offset:
            base = self.result(f"getelementptr i8, {kind} {base.code}, i32 {offset}", u64)
        return f"{kind} {base.code}"

    def load(
        self, space: SpaceName, address: Register, offset: int, dtype: DType, count: int
    ) -> list[Register]:
        """Load neighbouring elements."""
        pointer = self._pointer(space, address, offset)
        size = dtype.itemsize * count
        if dtype.bits < 32:
            small = self.result(f"load i{dtype.bits}, {pointer}, align {size}", u32)
            extend = "sext" if dtype.kind == "int" else "zext"
            return [self.result(f"{extend} i{dtype.bits} {small.code} to i32", dtype)]
        element = _TYPES[kind_of(dtype)]
        if count == 1:
            return [self.result(f"load {element}, {pointer}, align {size}", dtype)]
        kind = f"<{count} x {element}>"
        whole = self.result(f"load {kind}, {pointer}, align {size}", dtype)
        return [
            self.result(f"extractelement {kind} {whole.code}, i32 {i}", dtype) for i in range(count)
        ]

    def vector(self, values: list[Register]) -> str:
        """Return values as one typed vector."""
        element = _TYPES[kind_of(values[0].dtype)]
        kind, held = f"<{len(values)} x {element}>", "poison"
        for number, value in enumerate(values):
            text = f"insertelement {kind} {held}, {element} {value.code}, i32 {number}"
            held = self.result(text, value.dtype).code
        return f"{kind} {held}"

    def store(
        self, space: SpaceName, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Store neighbouring elements."""
        pointer, dtype = self._pointer(space, address, offset), values[0].dtype
        size = dtype.itemsize * len(values)
        if dtype.bits < 32:
            small = self.result(f"trunc i32 {values[0].code} to i{dtype.bits}", u32)
            held = f"i{dtype.bits} {small.code}"
        else:
            held = self.typed(values[0]) if len(values) == 1 else self.vector(values)
        self.line(f"store {held}, {pointer}, align {size}")

    def barrier(self) -> None:
        """Synchronise the workgroup; the fences wait for its own shared stores."""
        self.line('fence syncscope("workgroup") release')
        self.line(self.call("llvm.amdgcn.s.barrier", "void"))
        self.line('fence syncscope("workgroup") acquire')

    def shuffle_xor(self, x: Register, mask: int) -> Register:
        """Exchange among lanes: in registers where DPP can, else through the LDS crossbar."""
        bits = self.reinterpret(x, u32)
        control = self._lane_control(mask)
        if control is not None:
            arguments = (
                "i32 poison",
                f"i32 {bits.code}",
                f"i32 {control}",
                "i32 15",
                "i32 15",
                "i1 true",
            )
            text = self.call("llvm.amdgcn.update.dpp.i32", "i32", *arguments)
            return self.reinterpret(self.result(text, u32), x.dtype)
        if mask == 16 and self.facts.has_row_exchange:
            # Each lane takes its own place of the other row: selectors 0 to 15, four bits each.
            picks = (f"i32 {0x76543210}", f"i32 {0xFEDCBA98 - (1 << 32)}", "i1 true", "i1 true")
            value = f"i32 {bits.code}"
            text = self.call("llvm.amdgcn.permlanex16.i32", "i32", value, value, *picks)
            return self.reinterpret(self.result(text, u32), x.dtype)
        if mask < 32:
            text = self.call(
                "llvm.amdgcn.ds.swizzle", "i32", f"i32 {bits.code}", f"i32 {mask << 10 | 31}"
            )
            return self.reinterpret(self.result(text, u32), x.dtype)
        lane = self.binary("and", self.thread(), self.constant(self.subgroup_size - 1, u32))
        return self.shuffle(x, self.binary("xor", lane, self.constant(mask, u32)))

    def _lane_control(self, mask: int) -> int | None:
        """Return the DPP control that exchanges lanes by a mask, or None."""
        if mask < 4:
            return sum((lane ^ mask) << 2 * lane for lane in range(4))
        return 0x160 + mask if mask < 16 and self.facts.has_row_exchange else None

    def shuffle(self, x: Register, lane: Register) -> Register:
        """Return x of another lane."""
        place = self.binary("shl", lane, self.constant(2, u32))
        bits = self.reinterpret(x, u32)
        moved = self.call("llvm.amdgcn.ds.bpermute", "i32", f"i32 {place.code}", f"i32 {bits.code}")
        return self.reinterpret(self.result(moved, u32), x.dtype)

    def atomic(self, kind: str, space: SpaceName, address: Register, value: Register) -> Register:
        """Combine relaxed; return the old value."""
        if value.dtype is f32:
            operation = {"add": "fadd", "min": "fmin", "max": "fmax"}[kind]
        elif kind in ("min", "max"):
            operation = kind if value.dtype.kind == "int" else f"u{kind}"
        else:
            operation = kind
        scope = "agent" if space == "global" else "workgroup"
        pointer = self._pointer(space, address, 0)
        text = (
            f'atomicrmw {operation} {pointer}, {self.typed(value)} syncscope("{scope}") monotonic'
        )
        return self.result(text, value.dtype)

    def table(self, words: Sequence[int]) -> str:
        """Return the name of read-only words that the code object holds."""
        name = f"@table{sum(key.startswith('@table') for key in self.declared)}"
        text = ", ".join(f"i32 {word & 0xFFFFFFFF}" for word in words)
        self.declared[name] = (
            f"{name} = internal unnamed_addr addrspace(4) constant "
            f"[{len(words)} x i32] [{text}], align 16"
        )
        return name

    def table_word(self, table: str, index: Register) -> Register:
        """Return a word of a table."""
        wide = self.result(f"zext i32 {index.code} to i64", u64)
        place = self.result(f"getelementptr i32, {_CONSTANT} {table}, i64 {wide.code}", u64)
        return self.result(f"load i32, {_CONSTANT} {place.code}, align 4", u32)

    # ---- control

    def variable(self, initial: Register) -> str:
        """Return a new variable; LLVM turns it into values."""
        found = self.fresh()
        kind = _TYPES[kind_of(initial.dtype)]
        self.entry.append(f"  {found} = alloca {kind}, addrspace(5)")
        self._variables[found] = initial.dtype
        self.assign(found, initial)
        return found

    def read(self, variable: str) -> Register:
        """Return the variable's value."""
        dtype = self._variables[variable]
        return self.result(f"load {_TYPES[kind_of(dtype)]}, ptr addrspace(5) {variable}", dtype)

    def assign(self, variable: str, value: Register) -> None:
        """Set the variable."""
        self.line(f"store {self.typed(value)}, ptr addrspace(5) {variable}")

    def _label(self, name: str) -> None:
        self._lines.append(f"{name[1:]}:")

    def loop(self, condition: Callable[[], Register], body: Callable[[], None]) -> None:
        """Emit a loop."""
        top, inside, end = self.fresh(), self.fresh(), self.fresh()
        self.line(f"br label {top}")
        self._label(top)
        self.line(f"br i1 {condition().code}, label {inside}, label {end}")
        self._label(inside)
        body()
        self.line(f"br label {top}")
        self._label(end)

    def branch(
        self,
        condition: Register,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Emit a branch."""
        yes, no, end = self.fresh(), self.fresh(), self.fresh()
        self.line(f"br i1 {condition.code}, label {yes}, label {no}")
        for label, side in ((yes, then), (no, otherwise)):
            self._label(label)
            if side is not None:
                side()
            self.line(f"br label {end}")
        self._label(end)

    # ---- products

    def multiply(
        self, atom: Atom, a: list[Register], b: list[Register], acc: list[Register]
    ) -> list[Register]:
        """Emit a matrix instruction."""
        element = "half" if atom.inputs[0] == "f16" else "i16"
        kind = f"<{2 * len(a)} x {element}>"
        operands: list[str] = []
        for words in (a, b):
            packed = self.vector([self.reinterpret(x, u32) for x in words])
            operands.append(f"{kind} {self.result(f'bitcast {packed} to {kind}', u32).code}")
        result = f"<{len(acc)} x float>"
        tail = ("i32 0", "i32 0", "i32 0") if "mfma" in atom.name else ()
        whole = self.result(self.call(atom.name, result, *operands, self.vector(acc), *tail), f32)
        return [
            self.result(f"extractelement {result} {whole.code}, i32 {i}", f32)
            for i in range(len(acc))
        ]
