"""The SIMT machine written as WGSL.

Values are ``bool``, ``f32`` or ``u32``. WGSL has no 64-bit integers: longs are words too, so sizes,
indices and constants must fit 32 bits. An array's address is a byte offset into its binding; which
binding, the machine knows by the name of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from poot_core import DType, UnsupportedError, bf16, boolean, dtype_by_name, f16, f32, u32
from poot_kernel.targets.common.arithmetic import Arithmetic
from poot_kernel.targets.common.machine import Register, SpaceName, kind_of
from poot_kernel.targets.common.products import Atom, AtomMachine
from poot_kernel.targets.wgsl.atoms import vector_atoms
from poot_kernel.targets.wgsl.text import literal, type_of

__all__ = ["ArrayUse", "View", "WgslMachine"]

View = Literal["word", "quad", "atomic"]
_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|",
           "xor": "^"}  # fmt: skip
_LOGICAL = {"and": "&&", "or": "||", "xor": "!="}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SIGNED = ("div", "rem", "min", "max", "shr", "lt", "le", "gt", "ge")
_UNARY = {"abs": "abs", "exp2": "exp2", "log2": "log2", "sqrt": "sqrt", "rsqrt": "inverseSqrt",
          "sin": "sin", "cos": "cos", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
          "rint": "round"}  # fmt: skip
_QUAD_BYTES = 16


@dataclass(slots=True)
class ArrayUse:
    """How a kernel accesses one array, or workgroup memory.

    Attributes:
        reads: Bytes of the loads.
        writes: Bytes of the stores.
        is_shared_word: Whether words are changed that other invocations change too.
        kinds: Accesses, as ``ArrayAccess`` names them.
    """

    reads: set[int] = field(default_factory=set[int])
    writes: set[int] = field(default_factory=set[int])
    is_shared_word: bool = False
    kinds: set[str] = field(default_factory=set[str])

    @property
    def view(self) -> View:
        """The element type through which every access goes."""
        if self.is_shared_word:
            return "atomic"
        if self.writes - {_QUAD_BYTES} or _QUAD_BYTES not in self.reads | self.writes:
            return "word"
        return "quad"


class WgslMachine(AtomMachine):
    """Emits the body of one kernel.

    Args:
        subgroup_size: Lanes, a power of two that every subgroup of the adapter has.
        views: How arrays are declared, by number; -1 is workgroup memory. Words without.
        is_exact: Whether the adapter leaves products and sums as they are written; what it could
            join or re-associate is else hidden from it.
        has_subgroups: Whether the adapter's subgroups have that size; lanes else exchange through
            workgroup memory.

    Attributes:
        uses: What was accessed how.
        does_exchange: Whether lanes exchange through workgroup memory.
    """

    shared_limit = 16 * 1024

    def __init__(
        self, subgroup_size: int, views: dict[int, View],
        *, is_exact: bool = True, has_subgroups: bool = True,
    ) -> None:  # fmt: skip
        self.subgroup_size = subgroup_size
        self.has_subgroups = has_subgroups
        self.does_exchange = False
        self.atoms = vector_atoms(subgroup_size)
        self.is_exact = is_exact
        self.uses: dict[int, ArrayUse] = {}
        self._views = views
        self._sections: dict[str, list[str]] = {"entry": [], "body": []}
        self._section = "body"
        self._depth = 1
        self._count = 0
        self._arrays: dict[str, int] = {}
        self._products: set[str] = set()
        self._sums: dict[str, tuple[str, str]] = {}
        self._dtypes: dict[str, DType] = {}
        self.place: list[Register] = []
        self.grid: list[Register] = []
        self.tables: list[tuple[int, ...]] = []

    @property
    def lines(self) -> list[str]:
        """The body's text."""
        return self._sections["entry"] + self._sections["body"]

    # ---- text

    def line(self, text: str) -> None:
        """Append a line."""
        depth = self._depth if self._section == "body" else 1
        self._sections[self._section].append("  " * depth + text)

    def result(self, expression: str, dtype: DType) -> Register:
        """Name an expression."""
        self._count += 1
        self.line(f"let v{self._count} = {expression};")
        return Register(f"v{self._count}", dtype)

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """Emit at the kernel's entry."""
        outer, self._section = self._section, "entry"
        yield
        self._section = outer

    def array(self, number: int, code: str, dtype: DType) -> Register:
        """Return the address of an array argument: a byte offset into its binding."""
        self._arrays[code] = number
        return Register(code, dtype)

    def _signed(self, x: Register) -> str:
        return f"bitcast<i32>({x.code})"

    def _runtime(self, x: Register) -> Register:
        """Return a value that the shader compiler does not evaluate: it refuses overflows."""
        if x.literal is None:
            return x
        self._count += 1
        self.line(f"var v{self._count} = {x.code};")
        return Register(f"v{self._count}", x.dtype)

    # ---- arithmetic

    def constant(self, value: float, dtype: DType) -> Register:
        """Return a literal."""
        return Register(literal(value, dtype), dtype, value if dtype is f32 else int(value))

    def binary(self, name: str, a: Register, b: Register) -> Register:
        """Return a binary result."""
        kind = kind_of(a.dtype)
        if a.literal is not None and b.literal is not None:
            a = self._runtime(a)
        if kind == "boolean":
            return self.result(f"{a.code} {_LOGICAL[name]} {b.code}", boolean)
        if kind == "float":
            return self._float(name, a, b)
        if name == "mul_high":
            return self._multiply_high(a, b)
        found = self.result(self._integer(name, a, b), a.dtype)
        for side in (a, b):
            if side.code in self._arrays:
                self._arrays[found.code] = self._arrays[side.code]
        return found

    def _float(self, name: str, a: Register, b: Register) -> Register:
        if name in ("min", "max"):
            return self._nan_keeping(name, a, b)
        if name in ("add", "sub"):
            a, b = self._apart(a, b), self._apart(b, a)
        if name == "rem":
            return self.result(f"{a.code} % {b.code}", f32)
        found = self.result(f"{a.code} {_BINARY[name]} {b.code}", f32)
        if name == "mul":
            self._products.add(found.code)
        elif name in ("add", "sub"):
            self._sums[found.code] = (a.code, b.code)
        return found

    def _nan_keeping(self, name: str, a: Register, b: Register) -> Register:
        return self.result(f"{name}({a.code}, {b.code})", f32)

    def _apart(self, x: Register, other: Register | None = None) -> Register:
        """Return an operand of a sum in a form that the adapter cannot combine with it.

        Products are joined with sums, and (a + b) - a becomes b.
        """
        cancels = other is not None and other.code in self._sums.get(x.code, ())
        if self.is_contracted or not (cancels or x.code in self._products):
            return x
        return self.opaque(x)

    def opaque(self, x: Register) -> Register:
        """Return the same f32, of which the adapter's compiler knows nothing."""
        if self.is_exact:
            return x
        # NOTE: ``p.zero`` is always 0, which the shader compiler does not know.
        return self.result(f"bitcast<f32>(bitcast<u32>({x.code}) | p.zero)", f32)

    def _integer(self, name: str, a: Register, b: Register) -> str:
        if name == "shl":
            return f"{a.code} << {b.code}"
        left, right = a.code, b.code
        is_signed = name in _SIGNED and a.dtype.kind == "int"
        if is_signed:
            left = self._signed(a)
            right = self._signed(b) if name != "shr" else right
        found = f"{left} {_BINARY[name]} {right}" if name in _BINARY else ""
        if name == "shr":
            found = f"{left} >> {right}"
        elif name in ("min", "max"):
            found = f"{name}({left}, {right})"
        return f"bitcast<u32>({found})" if is_signed else found

    def _multiply_high(self, a: Register, b: Register) -> Register:
        if kind_of(a.dtype) == "long":
            raise UnsupportedError("WGSL has no 64-bit products")
        found = self.result(f"multiply_high({a.code}, {b.code})", a.dtype)
        if a.dtype.kind != "int":
            return found
        # A negative factor counts 2**32 too much, times the other one.
        parts = [f"select(0u, {y.code}, {self._signed(x)} < 0)" for x, y in ((a, b), (b, a))]
        return self.result(f"{found.code} - {parts[0]} - {parts[1]}", a.dtype)

    def unary(self, name: str, x: Register) -> Register:
        """Return a unary result."""
        x = self._runtime(x)
        if name == "not":
            return self.result(f"{'!' if x.dtype is boolean else '~'}{x.code}", x.dtype)
        if name == "neg":
            negated = f"-{x.code}" if x.dtype is f32 else f"0u - {x.code}"
            return self.result(negated, x.dtype)
        if x.dtype is not f32:
            assert name == "abs", f"{name} of integers"
            is_signed = x.dtype.kind == "int"
            return self.result(
                f"bitcast<u32>(abs({self._signed(x)}))" if is_signed else x.code, x.dtype
            )
        return self.result(f"{_UNARY[name]}({x.code})", f32)

    def fma(self, a: Register, b: Register, c: Register) -> Register:
        """Return a * b + c."""
        return self.result(f"fma({self._runtime(a).code}, {b.code}, {c.code})", f32)

    def dot4(self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]) -> Register:
        """Return acc plus four byte products."""
        a = self._runtime(a)
        if signs == (False, False):
            found = f"dot4U8Packed({a.code}, {b.code})"
        elif signs == (True, True):
            found = f"bitcast<u32>(dot4I8Packed({a.code}, {b.code}))"
        else:
            first, second = (a, b) if signs[0] else (b, a)
            found = f"bitcast<u32>(dot_mixed({first.code}, {second.code}))"
        return self.result(f"{acc.code} + {found}", acc.dtype)

    def compare(self, name: str, a: Register, b: Register) -> Register:
        """Return a comparison."""
        if a.literal is not None and b.literal is not None:
            a = self._runtime(a)
        left, right = a.code, b.code
        if name in _SIGNED and a.dtype.kind == "int":
            left, right = self._signed(a), self._signed(b)
        return self.result(f"{left} {_COMPARE[name]} {right}", boolean)

    def select(self, condition: Register, a: Register, b: Register) -> Register:
        """Return a or b."""
        found = self.result(f"select({b.code}, {a.code}, {condition.code})", a.dtype)
        if a.code in self._arrays:
            self._arrays[found.code] = self._arrays[a.code]
        return found

    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype."""
        x = self._runtime(x)
        if x.dtype is bf16:
            return self.result(f"bitcast<f32>({x.code} << 16u)", f32)
        if x.dtype is f16:
            return self.result(f"from_half({x.code})", f32)
        if dtype in (bf16, f16):
            name = "to_bfloat" if dtype is bf16 else "to_half"
            return self.result(f"{name}({x.code})", dtype)
        if x.dtype is boolean:
            one, zero = self.constant(1, dtype), self.constant(0, dtype)
            return self.select(x, one, zero)
        source, target = kind_of(x.dtype), kind_of(dtype)
        if target == "float":
            return self.result(f"f32({self._signed(x) if x.dtype.kind == 'int' else x.code})", f32)
        if source == "float":
            whole = f"bitcast<u32>(i32({x.code}))" if dtype.kind == "int" else f"u32({x.code})"
            return self.result(whole, dtype)
        return replace(x, dtype=dtype)

    def reinterpret(self, x: Register, dtype: DType) -> Register:
        """Return the same bits."""
        source, target = kind_of(x.dtype), kind_of(dtype)
        if (source == "float") == (target == "float"):
            return Register(x.code, dtype, x.literal)
        return self.result(f"bitcast<{type_of(dtype)}>({x.code})", dtype)

    def pack_halves(self, low: Register, high: Register) -> Register:
        """Return two 16-bit floats in a word."""
        return self.result(f"{low.code} | ({high.code} << 16u)", u32)

    # ---- invocations

    def thread(self) -> Register:
        """Return the invocation's number."""
        return Register("thread", u32)

    def workgroup(self, axis: int) -> Register:
        """Return the workgroup's coordinate."""
        return self.place[axis]

    def num_workgroups(self, axis: int) -> Register:
        """Return the grid's extent."""
        return self.grid[axis]

    def shared_base(self) -> Register:
        """Return where shared memory begins."""
        return self.constant(0, u32)

    def barrier(self) -> None:
        """Synchronise the workgroup."""
        self.line("workgroupBarrier();")

    def shuffle_xor(self, x: Register, mask: int) -> Register:
        """Exchange among lanes."""
        x = self._runtime(x)
        if not self.has_subgroups:
            return self._exchanged(x, f"thread ^ {mask}u")
        return self.result(f"subgroupShuffleXor({x.code}, {mask}u)", x.dtype)

    def shuffle(self, x: Register, lane: Register) -> Register:
        """Return x of another lane."""
        x = self._runtime(x)
        if not self.has_subgroups:
            return self._exchanged(x, f"(thread & ~{self.subgroup_size - 1}u) | {lane.code}")
        return self.result(f"subgroupShuffle({x.code}, {lane.code})", x.dtype)

    def _exchanged(self, x: Register, place: str) -> Register:
        """Return another invocation's value through workgroup memory."""
        self.does_exchange = True
        self.line(f"exchange[thread] = {self.reinterpret(x, u32).code};")
        self.barrier()
        found = self.reinterpret(self.result(f"exchange[{place}]", u32), x.dtype)
        self.barrier()
        return found

    # ---- memory

    def _number(self, space: SpaceName, address: Register) -> int:
        """Return the number of the array that an address points into; -1 is workgroup memory."""
        return -1 if space == "shared" else self._arrays[address.code]

    def _access(self, number: int, kind: str, index: str, *operands: str) -> str:
        """Return the text of an access to the element of an index."""
        self._use(number).kinds.add(kind)
        if number >= 0:
            return f"{kind}{number}({', '.join([index, *operands])})"
        place, is_atomic = f"shared_memory[{index}]", self._views.get(number) == "atomic"
        match kind:
            case "load":
                return f"atomicLoad(&{place})" if is_atomic else place
            case "store":
                return (
                    f"atomicStore(&{place}, {operands[0]})"
                    if is_atomic
                    else (f"{place} = {operands[0]}")
                )
            case "exchange":
                return f"exchange_shared({', '.join([index, *operands])})"
            case _:
                return f"atomic{kind.capitalize()}(&{place}, {operands[0]})"

    def _use(self, number: int) -> ArrayUse:
        return self.uses.setdefault(number, ArrayUse())

    def _at(self, address: Register, offset: int, shift: int) -> str:
        """Return the index of the unit of ``1 << shift`` bytes at an address."""
        if address.literal is not None:
            return f"{(int(address.literal) + offset) >> shift}u"
        if offset % (1 << shift):
            return f"(({address.code} + {offset}u) >> {shift}u)"
        tail = f" + {offset >> shift}u" if offset else ""
        if not shift:
            return f"({address.code}{tail})"
        return f"(({address.code} >> {shift}u){tail})"

    def load(
        self, space: SpaceName, address: Register, offset: int, dtype: DType, count: int
    ) -> list[Register]:
        """Load neighbouring elements."""
        number = self._number(space, address)
        size = dtype.itemsize * count
        self._use(number).reads.add(size)
        if dtype.bits < 32:
            assert count == 1, "narrow elements are loaded by whole words or alone"
            word = self._load_word(number, address, offset)
            return [self._field(word, address, offset, dtype)]
        if self._views.get(number) == "quad" and size == _QUAD_BYTES:
            whole = self.result(self._access(number, "load", self._at(address, offset, 4)), u32)
            words = [Register(f"{whole.code}.{part}", u32) for part in "xyzw"]
        else:
            words = [self._load_word(number, address, offset + 4 * i) for i in range(count)]
        return [self.reinterpret(word, dtype) for word in words]

    def _load_word(self, number: int, address: Register, offset: int) -> Register:
        if self._views.get(number) == "quad":
            part = f"{self._at(address, offset, 2)} & 3u"
            whole = self._access(number, "load", self._at(address, offset, 4))
            return self.result(f"{whole}[{part}]", u32)
        return self.result(self._access(number, "load", self._at(address, offset, 2)), u32)

    def _shift(self, address: Register, offset: int) -> str:
        """Return the bit of its word at which a narrow element lies."""
        return f"(({self._at(address, offset, 0)} & 3u) * 8u)"

    def _field(self, word: Register, address: Register, offset: int, dtype: DType) -> Register:
        shift = self._shift(address, offset)
        if dtype.kind != "int":
            return self.result(f"extractBits({word.code}, {shift}, {dtype.bits}u)", dtype)
        found = f"extractBits({self._signed(word)}, {shift}, {dtype.bits}u)"
        return self.result(f"bitcast<u32>({found})", dtype)

    def store(
        self, space: SpaceName, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Store neighbouring elements."""
        dtype, number = values[0].dtype, self._number(space, address)
        use, size = self._use(number), dtype.itemsize * len(values)
        if dtype.bits < 32:
            use.is_shared_word = True
            self._store_narrow(number, address, offset, values)
            return
        use.writes.add(size)
        words = [self.reinterpret(x, u32).code for x in values]
        if self._views.get(number) == "quad":
            held = f"vec4<u32>({', '.join(words)})"
            self.line(self._access(number, "store", self._at(address, offset, 4), held) + ";")
            return
        for i, word in enumerate(words):
            at = self._at(address, offset + 4 * i, 2)
            self.line(self._access(number, "store", at, word) + ";")

    def _store_narrow(
        self, number: int, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Change some bytes of words whose other bytes belong to other invocations."""
        if self._views.get(number) != "atomic":
            return  # the first pass, which finds the views
        for i, value in enumerate(values):
            at = offset + i * value.dtype.itemsize
            index, shift = self._at(address, at, 2), self._shift(address, at)
            mask = f"{(1 << value.dtype.bits) - 1}u"
            old = self.result(f"{self._access(number, 'load', index)} >> {shift}", u32)
            changed = f"(({old.code} ^ {value.code}) & {mask}) << {shift}"
            self._count += 1
            self.line(f"let v{self._count} = {self._access(number, 'xor', index, changed)};")

    def atomic(self, kind: str, space: SpaceName, address: Register, value: Register) -> Register:
        """Combine a word in memory with a value; return what it was."""
        number = self._number(space, address)
        self._use(number).is_shared_word = True
        if self._views.get(number) != "atomic":
            return self.result(type_of(value.dtype) + "()", value.dtype)  # the first pass
        index = self._at(address, 0, 2)
        if value.dtype is f32 or (kind in ("min", "max") and value.dtype.kind == "int"):
            return self._exchange(kind, number, index, value)
        return self.result(self._access(number, kind, index, value.code), value.dtype)

    def _exchange(self, kind: str, number: int, index: str, value: Register) -> Register:
        """Combine by compare and exchange, for what atomic words have no operation for."""
        start = self.result(self._access(number, "load", index), u32)
        self._count += 1
        held = f"x{self._count}"
        self.line(f"var {held} = {start.code};")
        self.line("loop {")
        self._depth += 1
        old = self.reinterpret(Register(held, u32), value.dtype)
        new = self.reinterpret(self.binary(kind, old, value), u32)
        done = self.result(self._access(number, "exchange", index, held, new.code), u32)
        self.line(f"if ({done.code}.y == 1u) {{ break; }}")
        self.line(f"{held} = {done.code}.x;")
        self._depth -= 1
        self.line("}")
        return self.reinterpret(Register(held, u32), value.dtype)

    def table(self, words: Sequence[int]) -> str:
        """Return the name of read-only words, which stand behind the arguments."""
        held = tuple(word & 0xFFFFFFFF for word in words)
        if held not in self.tables:
            self.tables.append(held)
        return f"p.table{self.tables.index(held)}"

    def table_word(self, table: str, index: Register) -> Register:
        """Return a word of a table."""
        x = self._runtime(index).code
        return self.result(f"{table}[{x} >> 2u][{x} & 3u]", u32)

    # ---- products

    def multiply(
        self, atom: Atom, a: list[Register], b: list[Register], acc: list[Register]
    ) -> list[Register]:
        """Return acc plus the products of a row and a column, in ascending order of k."""
        ops, dtype = Arithmetic(self), dtype_by_name(atom.inputs[0])
        sides = [
            [ops.convert(x, f32) for word in words for x in ops.unpack(word, dtype)]
            for words in (a, b)
        ]
        total = acc[0]
        for left, right in zip(*sides, strict=True):
            total = self.fma(left, right, total)
        return [total]

    # ---- control

    def variable(self, initial: Register) -> str:
        """Return a new variable."""
        self._count += 1
        name = f"x{self._count}"
        initial = self._apart(initial)
        self.line(f"var {name}: {type_of(initial.dtype)} = {initial.code};")
        self._dtypes[name] = initial.dtype
        if initial.code in self._arrays:
            self._arrays[name] = self._arrays[initial.code]
        return name

    def read(self, variable: str) -> Register:
        """Return the variable's value."""
        found = self.result(variable, self._dtypes[variable])
        if variable in self._arrays:
            self._arrays[found.code] = self._arrays[variable]
        return found

    def assign(self, variable: str, value: Register) -> None:
        """Set the variable."""
        self.line(f"{variable} = {self._apart(value).code};")

    def loop(self, condition: Callable[[], Register], body: Callable[[], None]) -> None:
        """Emit a loop."""
        self.line("loop {")
        self._depth += 1
        self.line(f"if (!{condition().code}) {{ break; }}")
        body()
        self._depth -= 1
        self.line("}")

    def branch(
        self,
        condition: Register,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Emit a branch."""
        self.line(f"if ({condition.code}) {{")
        self._depth += 1
        then()
        self._depth -= 1
        if otherwise is not None:
            self.line("} else {")
            self._depth += 1
            otherwise()
            self._depth -= 1
        self.line("}")
