"""The SIMT machine written as PTX text."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from poot_core import DType, bf16, boolean, dtype_by_name, f16, f32, i32, u32, u64
from poot_kernel.targets.common.fragments import Fragment
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register, SpaceName, kind_of
from poot_kernel.targets.common.products import Atom, AtomMachine, dot_atoms
from poot_kernel.targets.common.tiles import FragmentTile, MemoryTile
from poot_kernel.targets.nvptx.atoms import ATOMS, matrix_load

__all__ = ["REGION", "PtxMachine", "capability_of"]

LINES = ".L2::128B"  # what a copy to shared memory brings into the cache: mostly the next step's
REGION = "WARP_REGION"  # stands in the text until the size of a warp's shared memory is known

_CLASS = {
    "boolean": ("p", "pred"),
    "word": ("r", "b32"),
    "long": ("d", "b64"),
    "float": ("f", "f32"),
}
_TYPE = {"boolean": "pred", "float": "f32"}
_APPROXIMATE = {"sqrt": "sqrt.rn.f32", "rsqrt": "rsqrt.approx.f32", "exp2": "ex2.approx.ftz.f32",
                "log2": "lg2.approx.f32", "sin": "sin.approx.f32", "cos": "cos.approx.f32"}  # fmt: skip
_ROUND = {"floor": "rmi", "ceil": "rpi", "trunc": "rzi", "rint": "rni"}


def _suffix(dtype: DType) -> str:
    kind = kind_of(dtype)
    if kind in _TYPE:
        return _TYPE[kind]
    return ("s" if dtype.kind == "int" else "u") + ("64" if kind == "long" else "32")


# Most shared memory of a workgroup, where it differs from its generation's.
SHARED_LIMITS = {
    80: 163 * 1024, 87: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 101: 227 * 1024, 103: 227 * 1024,
}  # fmt: skip


def capability_of(arch: str) -> int:
    """Return an architecture's number.

    >>> capability_of("sm_90a")
    90
    """
    return int(arch.removeprefix("sm_").rstrip("af"))


class PtxMachine(AtomMachine):
    """Emits PTX; its shared memory is one block named ``shared_block``."""

    def __init__(self, arch: str = "sm_90a") -> None:
        self.capability = capability_of(arch)
        ampere = self.capability >= 80
        self.has_async_copy = ampere
        self.shared_limit = SHARED_LIMITS.get(self.capability, 99 * 1024 if ampere else 64 * 1024)
        self.atoms = (*ATOMS, *dot_atoms(32)) if ampere else dot_atoms(32)
        self.cached = "cg"  # where copies to shared memory leave lines: cg in L2, ca in L1 too
        self.is_split = False  # a warp stands for the workgroup, see split.py
        self.members = 0  # invocations that meet at barriers, where those are not all
        self.is_remote = False  # stores to shared memory go to another workgroup's
        self.tables: list[str] = []
        self.entry: list[str] = []
        self.body: list[str] = []
        self._lines = self.body
        self._counts: dict[str, int] = dict.fromkeys(("p", "r", "d", "f", "h"), 0)
        self._labels = 0

    # ---- text

    def line(self, text: str) -> None:
        """Emit one instruction."""
        self._lines.append(f"\t{text};")

    def fresh(self, dtype: DType) -> Register:
        """Return a new register."""
        letter = _CLASS[kind_of(dtype)][0]
        self._counts[letter] += 1
        return Register(f"%{letter}{self._counts[letter]}", dtype)

    def result(self, opcode: str, dtype: DType, *operands: Register | str | int) -> Register:
        """Emit an instruction and return its result."""
        found = self.fresh(dtype)
        text = ", ".join(x.code if isinstance(x, Register) else str(x) for x in operands)
        self.line(f"{opcode} {found.code}, {text}")
        return found

    def declarations(self) -> list[str]:
        """Return the register declarations."""
        found = [
            f"\t.reg .{kind} %{letter}<{self._counts[letter] + 1}>;"
            for letter, kind in _CLASS.values()
        ]
        return [*found, f"\t.reg .b16 %h<{self._counts['h'] + 1}>;"]

    def label(self) -> str:
        """Return a new label."""
        self._labels += 1
        return f"$L{self._labels}"

    def place(self, label: str) -> None:
        """Put a label here."""
        self._lines.append(f"{label}:")

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """Emit at the kernel's entry."""
        outer, self._lines = self._lines, self.entry
        yield
        self._lines = outer

    # ---- arithmetic

    def constant(self, value: float, dtype: DType) -> Register:
        """Return a literal; immediates stand in the text as they are."""
        kind = kind_of(dtype)
        if kind == "float":
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            return Register(f"0f{bits:08X}", dtype, value)
        if dtype in (bf16, f16):
            assert value == 0, "only zero is a literal of 16-bit floats"
            return Register("0", dtype, value)
        if kind == "boolean":
            return self.result("setp.ne.u32", dtype, int(value), 0)
        return Register(str(int(value)), dtype, int(value))

    def binary(self, name: str, a: Register, b: Register) -> Register:
        """Return a binary result."""
        dtype, kind = a.dtype, kind_of(a.dtype)
        bits = "pred" if kind == "boolean" else "b64" if kind == "long" else "b32"
        if name in ("and", "or", "xor"):
            return self.result(f"{name}.{bits}", dtype, a, b)
        if name == "shl":
            return self.result(f"shl.{bits}", dtype, a, b)
        rounded = {
            "add": ".rn",
            "sub": ".rn",
            "mul": ".rn",
            "div": ".full" if self.is_approximate else ".rn",
        }
        if kind == "float":
            contracted = self.is_contracted and name != "div"
            return self.result(
                f"{name}{'' if contracted else rounded.get(name, '')}.f32", dtype, a, b
            )
        if name == "mul":
            return self.result(f"mul.lo.{_suffix(dtype)}", dtype, a, b)
        if name == "mul_high":
            return self.result(f"mul.hi.{_suffix(dtype)}", dtype, a, b)
        return self.result(f"{name}.{_suffix(dtype)}", dtype, a, b)

    def unary(self, name: str, x: Register) -> Register:
        """Return a unary result."""
        if name in _APPROXIMATE:
            return self.result(_APPROXIMATE[name], f32, x)
        if name in _ROUND:
            return self.result(f"cvt.{_ROUND[name]}.f32.f32", f32, x)
        if name == "not":
            kind = kind_of(x.dtype)
            bits = "pred" if kind == "boolean" else "b64" if kind == "long" else "b32"
            return self.result(f"not.{bits}", x.dtype, x)
        return self.result(f"{name}.{_suffix(x.dtype)}", x.dtype, x)

    def fma(self, a: Register, b: Register, c: Register) -> Register:
        """Return a * b + c."""
        return self.result("fma.rn.f32", f32, a, b, c)

    def dot4(self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]) -> Register:
        """Return acc plus four byte products."""
        left, right = ("s32" if signed else "u32" for signed in signs)
        return self.result(f"dp4a.{left}.{right}", i32, a, b, acc)

    def compare(self, name: str, a: Register, b: Register) -> Register:
        """Return a comparison."""
        name = "neu" if name == "ne" and a.dtype is f32 else name
        return self.result(f"setp.{name}.{_suffix(a.dtype)}", boolean, a, b)

    def select(self, condition: Register, a: Register, b: Register) -> Register:
        """Return a or b."""
        kind = kind_of(a.dtype)
        if kind == "boolean":
            left = self.binary("and", condition, a)
            right = self.binary("and", self.unary("not", condition), b)
            return self.binary("or", left, right)
        opcode = "selp.f32" if kind == "float" else "selp.b64" if kind == "long" else "selp.b32"
        return self.result(opcode, a.dtype, a, b, condition)

    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype."""
        if x.dtype is bf16:
            return self.result("shl.b32", f32, x, 16)
        if x.dtype is f16 or dtype in (bf16, f16):
            return self._half(x, dtype)
        if x.dtype is boolean:
            one, zero = self.constant(1, dtype), self.constant(0, dtype)
            return self.select(x, one, zero)
        if kind_of(x.dtype) == kind_of(dtype):
            return self.reinterpret(x, dtype)
        rounding = ".rzi" if x.dtype is f32 else ".rn" if dtype is f32 else ""
        return self.result(f"cvt{rounding}.{_suffix(dtype)}.{_suffix(x.dtype)}", dtype, x)

    def _half(self, x: Register, dtype: DType) -> Register:
        self._counts["h"] += 1
        half = f"%h{self._counts['h']}"
        if x.dtype is f16:
            self.line(f"cvt.u16.u32 {half}, {x.code}")
            return self.result("cvt.f32.f16", f32, half)
        if dtype is bf16 and self.capability < 80:
            return self._rounded(x)
        self.line(f"cvt.rn.{dtype.name}.f32 {half}, {x.code}")
        word = self.result("cvt.u32.u16", dtype, half)
        return Register(word.code, dtype, wide=x)

    def _rounded(self, x: Register) -> Register:
        """Return an f32 as bf16 by integers: to nearest even, a NaN stays one."""
        bits = self.reinterpret(x, u32)
        odd = self.binary("and", self.result("shr.u32", u32, bits, 16), self.constant(1, u32))
        carried = self.result("add.u32", u32, self.result("add.u32", u32, bits, odd), 0x7FFF)
        quiet = self.result("or.b32", u32, bits, 0x400000)
        chosen = self.select(self.compare("ne", x, x), quiet, carried)
        return Register(self.result("shr.u32", bf16, chosen, 16).code, bf16)

    def reinterpret(self, x: Register, dtype: DType) -> Register:
        """Return the same bits."""
        if kind_of(x.dtype) == kind_of(dtype) or kind_of(dtype) == kind_of(x.dtype):
            return Register(x.code, dtype, x.literal)
        return self.result("mov.b32", dtype, x)

    def pack_halves(self, low: Register, high: Register) -> Register:
        """Return two 16-bit floats in a word."""
        if low.wide is not None and high.wide is not None and self.capability >= 80:
            return self.result(f"cvt.rn.{low.dtype.name}x2.f32", u32, high.wide, low.wide)
        return self.result("prmt.b32", u32, low, high, "0x5410")

    # ---- invocations and memory

    def thread(self) -> Register:
        """Return the invocation's number."""
        found = self.result("mov.u32", u32, "%tid.x")
        return self.result("and.b32", u32, found, 31) if self.is_split else found

    def warp(self) -> Register:
        """Return the warp's number in its workgroup."""
        return self.result("shr.u32", u32, self.result("mov.u32", u32, "%tid.x"), 5)

    def num_warps(self) -> Register:
        """Return the warps of a workgroup."""
        return self.result("shr.u32", u32, self.result("mov.u32", u32, "%ntid.x"), 5)

    def cluster_rank(self) -> Register:
        """Return the workgroup's number in its cluster."""
        return self.result("mov.u32", u32, "%cluster_ctarank")

    def half(self, value: int) -> str:
        """Return a 16-bit register with a number."""
        self._counts["h"] += 1
        self.line(f"mov.u16 %h{self._counts['h']}, {value}")
        return f"%h{self._counts['h']}"

    def shared_base(self) -> Register:
        """Return where shared memory begins; under ``is_split`` that of the warp."""
        found = self.result("mov.u32", u32, "shared_block")
        if not self.is_split:
            return found
        return self.result("mad.lo.u32", u32, self.warp(), REGION, found)

    def partials(self) -> Register:
        """Return where shared memory begins that no warp has for itself, under ``is_split``."""
        found = self.result("mov.u32", u32, "shared_block")
        return self.result("mad.lo.u32", u32, self.num_warps(), REGION, found)

    def workgroup(self, axis: int) -> Register:
        """Return the workgroup's coordinate."""
        return self.result("mov.u32", u32, f"%ctaid.{'xyz'[axis]}")

    def num_workgroups(self, axis: int) -> Register:
        """Return the grid's extent."""
        return self.result("mov.u32", u32, f"%nctaid.{'xyz'[axis]}")

    def load(
        self, space: SpaceName, address: Register, offset: int, dtype: DType, count: int
    ) -> list[Register]:
        """Load neighbouring elements."""
        found = [self.fresh(dtype) for _ in range(count)]
        kind = self._memory_type(dtype)
        vector = f".v{count}" if count > 1 else ""
        names = ", ".join(x.code for x in found)
        names = f"{{{names}}}" if count > 1 else names
        self.line(f"ld.{space}{vector}.{kind} {names}, [{address.code}+{offset}]")
        return found

    def store(
        self, space: SpaceName, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Store neighbouring elements."""
        kind = self._memory_type(values[0].dtype).replace("s", "u")
        vector = f".v{len(values)}" if len(values) > 1 else ""
        held = [self._held(x) for x in values]
        names = f"{{{', '.join(held)}}}" if len(held) > 1 else held[0]
        where = "shared::cluster" if self.is_remote and space == "shared" else space
        self.line(f"st.{where}{vector}.{kind} [{address.code}+{offset}], {names}")

    def _held(self, x: Register) -> str:
        if x.code.startswith("%"):
            return x.code
        kind = kind_of(x.dtype)
        return self.result(
            {"float": "mov.f32", "long": "mov.b64"}.get(kind, "mov.b32"), x.dtype, x
        ).code

    def _memory_type(self, dtype: DType) -> str:
        if dtype.bits >= 32:
            return f"b{dtype.bits}"
        return ("s" if dtype.kind == "int" else "u") + str(dtype.bits)

    def barrier(self) -> None:
        """Synchronise the workgroup."""
        if self.members:
            self.line(f"bar.sync 1, {self.members}")
        else:
            self.line("bar.warp.sync -1" if self.is_split else "bar.sync 0")

    def shuffle_xor(self, x: Register, mask: int) -> Register:
        """Exchange among lanes."""
        return self.result("shfl.sync.bfly.b32", x.dtype, self._held(x), mask, 31, -1)

    def shuffle(self, x: Register, lane: Register) -> Register:
        """Return x of another lane."""
        return self.result("shfl.sync.idx.b32", x.dtype, self._held(x), lane, 31, -1)

    def atomic(self, kind: str, space: SpaceName, address: Register, value: Register) -> Register:
        """Combine relaxed; return the old value."""
        form = "b32" if kind in ("and", "or", "xor") else _suffix(value.dtype)
        scope = "gpu" if space == "global" else "cta"
        opcode = f"atom.relaxed.{scope}.{space}.{kind}.{form}"
        return self.result(opcode, value.dtype, f"[{address.code}]", self._held(value))

    def table(self, words: Sequence[int]) -> str:
        """Return the name of read-only words that the module holds."""
        name = f"table{len(self.tables)}"
        text = ", ".join(str(word & 0xFFFFFFFF) for word in words)
        self.tables.append(f".visible .global .align 16 .b32 {name}[{len(words)}] = {{{text}}};")
        return name

    def table_word(self, table: str, index: Register) -> Register:
        """Return a word of a table."""
        base = self.result("mov.u64", u64, table)
        address = self.result("mad.wide.u32", u64, index, 4, base)
        return self.result("ld.global.nc.b32", u32, f"[{address.code}]")

    def async_copy(
        self, destination: Register, offset: int, source: Register, valid: Register | None
    ) -> None:
        """Start copying 16 bytes."""
        opcode = f"cp.async.{self.cached}.shared.global{LINES}"
        where = f"{opcode} [{destination.code}+{offset}], [{source.code}], 16"
        if valid is None:
            self.line(where)
            return
        size = self.result("selp.u32", u32, 16, 0, valid)
        self.line(f"{where}, {size.code}")

    def async_commit(self) -> None:
        """End a group."""
        self.line("cp.async.commit_group")

    def async_wait(self, pending: int) -> None:
        """Wait for groups."""
        self.line(f"cp.async.wait_group {pending}")

    # ---- control

    def variable(self, initial: Register) -> str:
        """Return a new register that may be assigned."""
        return (
            self.result(self._move(initial.dtype), initial.dtype, initial).code
            + f" {initial.dtype.name}"
        )

    def _move(self, dtype: DType) -> str:
        return "mov." + {"boolean": "pred", "float": "f32", "long": "b64"}.get(
            kind_of(dtype), "b32"
        )

    def read(self, variable: str) -> Register:
        """Return a copy of the variable."""
        code, name = variable.split()
        dtype = dtype_by_name(name)
        return self.result(self._move(dtype), dtype, code)

    def assign(self, variable: str, value: Register) -> None:
        """Set the variable."""
        self.line(f"{self._move(value.dtype)} {variable.split()[0]}, {value.code}")

    def loop(self, condition: Callable[[], Register], body: Callable[[], None]) -> None:
        """Emit a loop."""
        top, end = self.label(), self.label()
        self._lines.append(f"{top}:")
        self.line(f"@!{condition().code} bra {end}")
        body()
        self.line(f"bra {top}")
        self._lines.append(f"{end}:")

    def branch(
        self,
        condition: Register,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Emit a branch."""
        other, end = self.label(), self.label()
        self.line(f"@!{condition.code} bra {other}")
        then()
        if otherwise is not None:
            self.line(f"bra {end}")
        self._lines.append(f"{other}:")
        if otherwise is not None:
            otherwise()
            self._lines.append(f"{end}:")

    # ---- products

    def multiply(
        self, atom: Atom, a: list[Register], b: list[Register], acc: list[Register]
    ) -> list[Register]:
        """Emit a matrix instruction."""
        found = [self.fresh(x.dtype) for x in acc]
        groups = (found, a, b, acc)
        text = ", ".join(f"{{{', '.join(x.code for x in group)}}}" for group in groups)
        self.line(f"{atom.name} {text}")
        return found

    def load_matrices(
        self, low: Lowering, tile: MemoryTile, layout: Fragment, along: int
    ) -> FragmentTile | None:
        """Load 16-bit operands by ldmatrix where rows of 8 lie together."""
        return matrix_load(self, low, tile, layout, along)
