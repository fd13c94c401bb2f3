"""The SIMT machine written as SPIR-V words.

Integers of every signedness are unsigned in the module; instructions choose the sign.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from poot_core import DType, UnsupportedError, bf16, boolean, f16, f32, i32, i64, u32, u64
from poot_kernel.targets.common.machine import Register, SpaceName, kind_of
from poot_kernel.targets.common.products import AtomMachine, dot_atoms
from poot_kernel.targets.spirv.module import STORAGE, SpirvModule

__all__ = ["SpirvMachine"]

_INTEGER = {"add": "IAdd", "sub": "ISub", "mul": "IMul", "and": "BitwiseAnd", "or": "BitwiseOr",
            "xor": "BitwiseXor", "shl": "ShiftLeftLogical"}  # fmt: skip
_SIGNED = {"div": ("UDiv", "SDiv"), "rem": ("UMod", "SRem"),
           "shr": ("ShiftRightLogical", "ShiftRightArithmetic")}  # fmt: skip
_FLOAT = {"add": "FAdd", "sub": "FSub", "mul": "FMul", "div": "FDiv"}
_LOGICAL = {"and": "LogicalAnd", "or": "LogicalOr", "xor": "LogicalNotEqual"}
_EXTENDED = {"min": (37, 38, 39), "max": (40, 41, 42)}  # float, unsigned, signed
_MATH = {"exp2": 29, "log2": 30, "sqrt": 31, "rsqrt": 32, "sin": 13, "cos": 14, "floor": 8,
         "ceil": 9, "trunc": 3, "rint": 2}  # fmt: skip
_ORDER = {"lt": "LessThan", "le": "LessThanEqual", "gt": "GreaterThan", "ge": "GreaterThanEqual"}
_BUILTIN = {"workgroup": 26, "num_workgroups": 24, "thread": 29}
_SHARED_WORDS = 4  # shared memory is an array of vectors of four words


class SpirvMachine(AtomMachine):
    """Emits one entry point named ``main``."""

    def __init__(
        self, subgroup_size: int = 32, features: frozenset[str] = frozenset({"dot8"})
    ) -> None:
        """Open a module.

        Args:
            subgroup_size: Lanes.
            features: Of the target: ``dot8`` (packed dot products), ``floats`` (infinities and NaN
                are kept).
        """
        self.subgroup_size = subgroup_size
        self.features = features
        self.atoms = dot_atoms(subgroup_size) if subgroup_size >= 16 else ()
        self.module = m = SpirvModule()
        self.void, self.bool = m.type("TypeVoid"), m.type("TypeBool")
        self.u32, self.f32 = m.type("TypeInt", 32, 0), m.type("TypeFloat", 32)
        self.u64 = m.type("TypeInt", 64, 0)
        self.quad = m.type("TypeVector", self.u32, _SHARED_WORDS)
        self.types: dict[str, int] = {}
        self._dtypes: dict[str, DType] = {}
        self.interface: list[int] = []
        self.extended = m.fresh()
        self.shared = m.fresh()
        self._builtins: dict[str, int] = {}
        self._widened: dict[str, Register] = {}  # sign-extended integers, and from what
        m.emit("ExtInstImport", self.extended, "GLSL.std.450", section="imports")
        for capability in (1, 11, 5345, 5347):  # Shader, Int64, memory model, addresses
            m.once("Capability", "capabilities", capability)

    # ---- ids

    def type_of(self, dtype: DType) -> int:
        """Return the type of a machine value."""
        kind = kind_of(dtype)
        return {"boolean": self.bool, "float": self.f32, "long": self.u64}.get(kind, self.u32)

    def wrap(self, value: int, dtype: DType, type_id: int | None = None) -> Register:
        """Return an id as a register."""
        self.types[str(value)] = type_id or self.type_of(dtype)
        return Register(str(value), dtype)

    def emit(self, opcode: str, dtype: DType, *operands: Register | int) -> Register:
        """Emit an instruction and return its result."""
        ids = [int(x.code) if isinstance(x, Register) else x for x in operands]
        return self.wrap(self.module.value(opcode, self.type_of(dtype), *ids), dtype)

    def _extended(self, number: int, dtype: DType, *operands: Register) -> Register:
        ids = [int(x.code) for x in operands]
        found = self.module.value("ExtInst", self.type_of(dtype), self.extended, number, *ids)
        return self.wrap(found, dtype)

    def word(self, value: int) -> int:
        """Return the id of a u32 literal."""
        return self.module.constant(self.u32, value & 0xFFFFFFFF)

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """Emit at the kernel's entry."""
        outer, self.module.section = self.module.section, "entry"
        yield
        self.module.section = outer

    # ---- arithmetic

    def constant(self, value: float, dtype: DType) -> Register:
        """Return a literal."""
        kind = kind_of(dtype)
        if kind == "boolean":
            return self.wrap(self.module.truth(self.bool, bool(value)), dtype)
        if kind == "float":
            words = struct.unpack("<I", struct.pack("<f", value))
        elif kind == "long":
            words = struct.unpack("<II", struct.pack("<Q", int(value) & (1 << 64) - 1))
        else:
            words = (int(value) & 0xFFFFFFFF,)
        found = self.wrap(self.module.constant(self.type_of(dtype), *words), dtype)
        return Register(found.code, dtype, value if kind == "float" else int(value))

    def binary(self, name: str, a: Register, b: Register) -> Register:
        """Return a binary result."""
        dtype, kind = a.dtype, kind_of(a.dtype)
        if name in _EXTENDED:
            which = 0 if kind == "float" else 2 if dtype.kind == "int" else 1
            return self._extended(_EXTENDED[name][which], dtype, a, b)
        if kind == "float":
            return self._rounded(self.emit(_FLOAT[name], dtype, a, b))
        if kind == "boolean":
            return self.emit(_LOGICAL[name], dtype, a, b)
        if name == "mul_high":
            wide = i64 if dtype.kind == "int" else u64
            product = self.emit("IMul", wide, self.convert(a, wide), self.convert(b, wide))
            high = self.emit("ShiftRightLogical", u64, product, self.word(32))
            return self.emit("UConvert", dtype, high)
        opcode = _INTEGER.get(name) or _SIGNED[name][dtype.kind == "int"]
        return self.emit(opcode, dtype, a, b)

    def _rounded(self, x: Register) -> Register:
        if not self.is_contracted:
            self.module.emit("Decorate", int(x.code), 42, section="decorations")  # NoContraction
        return x

    def unary(self, name: str, x: Register) -> Register:
        """Return a unary result."""
        if name in _MATH:
            return self._extended(_MATH[name], f32, x)
        if name == "abs":
            return self._extended(4 if x.dtype is f32 else 5, x.dtype, x)
        if name == "not":
            return self.emit("LogicalNot" if x.dtype is boolean else "Not", x.dtype, x)
        return self.emit("FNegate" if x.dtype is f32 else "SNegate", x.dtype, x)

    def fma(self, a: Register, b: Register, c: Register) -> Register:
        """Return a * b + c."""
        return self._extended(50, f32, a, b, c)

    def dot4(self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]) -> Register:
        """Return acc plus four byte products."""
        if "dot8" not in self.features:
            return self._four_products(a, b, acc, signs)
        for capability in (6018, 6019):
            self.module.once("Capability", "capabilities", capability)
        if signs == (False, True):
            a, b = b, a
        opcode = "SDot" if all(signs) else "SUDot" if any(signs) else "UDot"
        # A dot product with signed bytes has a signed result type.
        result = self.module.type("TypeInt", 32, 1) if any(signs) else self.u32
        found = self.module.value(opcode, result, int(a.code), int(b.code), 0)
        if any(signs):
            found = self.module.value("Bitcast", self.u32, found)
        return self.emit("IAdd", acc.dtype, acc, found)

    def _four_products(
        self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]
    ) -> Register:
        total = acc
        for byte in range(4):
            parts = [
                self.emit(
                    "ShiftRightArithmetic" if signed else "ShiftRightLogical",
                    u32,
                    self.emit("ShiftLeftLogical", u32, x, self.word(24 - 8 * byte)),
                    self.word(24),
                )
                for x, signed in zip((a, b), signs, strict=True)
            ]
            total = self.emit("IAdd", acc.dtype, total, self.emit("IMul", u32, *parts))
        return total

    def compare(self, name: str, a: Register, b: Register) -> Register:
        """Return a comparison; of a widened integer with a literal, at the width it came from.

        Mesa 22.3 gets the order of a sign-extended integer and a 64-bit literal wrong.
        """
        if name in _ORDER:
            a, b = self._narrowed(a, b), self._narrowed(b, a)
        is_float = a.dtype is f32
        if name in _ORDER:
            prefix = "FOrd" if is_float else "S" if a.dtype.kind == "int" else "U"
            return self.emit(prefix + _ORDER[name], boolean, a, b)
        opcode = {"eq": ("IEqual", "FOrdEqual"), "ne": ("INotEqual", "FUnordNotEqual")}[name]
        return self.emit(opcode[is_float], boolean, a, b)

    def _narrowed(self, x: Register, other: Register) -> Register:
        """Return x as 32 bits where x and other are a widened integer and a literal that fits."""
        literal = x.literal if x.literal is not None else other.literal
        if literal is None or not -(1 << 31) <= literal < 1 << 31:
            return x
        if x.literal is not None:
            return self.constant(literal, i32) if other.code in self._widened else x
        return self._widened.get(x.code, x)

    def select(self, condition: Register, a: Register, b: Register) -> Register:
        """Return a or b."""
        return self.emit("Select", a.dtype, condition, a, b)

    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype."""
        if x.dtype is bf16:
            return self.emit("Bitcast", f32, self.emit("ShiftLeftLogical", u32, x, self.word(16)))
        if x.dtype is f16:
            pair = self.module.value(
                "ExtInst",
                self.module.type("TypeVector", self.f32, 2),
                self.extended,
                62,
                int(x.code),
            )
            return self.wrap(self.module.value("CompositeExtract", self.f32, pair, 0), f32)
        if dtype is bf16:
            return self._to_bf16(x)
        if dtype is f16:
            pair_type = self.module.type("TypeVector", self.f32, 2)
            zero = self.constant(0, f32)
            pair = self.module.value("CompositeConstruct", pair_type, int(x.code), int(zero.code))
            found = self.module.value("ExtInst", self.u32, self.extended, 58, pair)
            return self.wrap(found, f16)
        if x.dtype is boolean:
            return self.select(x, self.constant(1, dtype), self.constant(0, dtype))
        source, target = kind_of(x.dtype), kind_of(dtype)
        is_signed = (dtype if source == "float" else x.dtype).kind == "int"
        if target == "float":
            return self.emit("ConvertSToF" if is_signed else "ConvertUToF", dtype, x)
        if source == "float":
            return self.emit("ConvertFToS" if is_signed else "ConvertFToU", dtype, x)
        if source == target:
            return self.reinterpret(x, dtype)
        if not is_signed or target != "long":
            return self.emit("UConvert", dtype, x)
        found = self.emit("SConvert", dtype, x)
        if dtype.kind == "int":
            self._widened[found.code] = x
        return found

    def _to_bf16(self, x: Register) -> Register:
        """Round to nearest even on the bits; a NaN stays one."""
        bits = self.emit("Bitcast", u32, x)
        odd = self.emit(
            "BitwiseAnd",
            u32,
            self.emit("ShiftRightLogical", u32, bits, self.word(16)),
            self.word(1),
        )
        rounded = self.emit("IAdd", u32, self.emit("IAdd", u32, bits, self.word(0x7FFF)), odd)
        high = self.emit("ShiftRightLogical", bf16, rounded, self.word(16))
        nan = self.wrap(self.word(0x7FC0), bf16)
        return self.select(self.compare("eq", x, x), high, nan)

    def reinterpret(self, x: Register, dtype: DType) -> Register:
        """Return the same bits."""
        if kind_of(x.dtype) == kind_of(dtype):
            return Register(x.code, dtype, x.literal)
        return self.emit("Bitcast", dtype, x)

    def pack_halves(self, low: Register, high: Register) -> Register:
        """Return two 16-bit floats in a word."""
        up = self.emit("ShiftLeftLogical", u32, high, self.word(16))
        return self.emit("BitwiseOr", u32, up, low)

    # ---- invocations

    def _builtin(self, name: str, axis: int) -> Register:
        kind = self.u32 if name == "thread" else self.module.type("TypeVector", self.u32, 3)
        if name not in self._builtins:
            self._builtins[name] = found = self.module.fresh()
            pointer = self.module.pointer("Input", kind)
            self.module.emit("Variable", pointer, found, STORAGE["Input"], section="types")
            self.module.emit("Decorate", found, 11, _BUILTIN[name], section="decorations")
            self.interface.append(found)
        loaded = self.module.value("Load", kind, self._builtins[name])
        if name == "thread":
            return self.wrap(loaded, u32)
        return self.wrap(self.module.value("CompositeExtract", self.u32, loaded, axis), u32)

    def thread(self) -> Register:
        """Return the invocation's number."""
        return self._builtin("thread", 0)

    def workgroup(self, axis: int) -> Register:
        """Return the workgroup's coordinate."""
        return self._builtin("workgroup", axis)

    def num_workgroups(self, axis: int) -> Register:
        """Return the grid's extent."""
        return self._builtin("num_workgroups", axis)

    def shared_base(self) -> Register:
        """Return where shared memory begins."""
        return self.constant(0, u32)

    # ---- memory

    def load(
        self, space: SpaceName, address: Register, offset: int, dtype: DType, count: int
    ) -> list[Register]:
        """Load neighbouring elements."""
        if space == "shared":
            return self._load_shared(self._moved(address, offset), dtype, count)
        element, pointer = self._global(address, offset, dtype, count)
        size = dtype.itemsize * count
        loaded = self.module.value("Load", element, pointer, 2, size)
        if count > 1:
            return [
                self.wrap(
                    self.module.value("CompositeExtract", self.type_of(dtype), loaded, i), dtype
                )
                for i in range(count)
            ]
        if dtype.bits < 32:
            opcode = "SConvert" if dtype.kind == "int" else "UConvert"
            return [self.wrap(self.module.value(opcode, self.u32, loaded), dtype)]
        return [self.wrap(loaded, dtype)]

    def _moved(self, address: Register, offset: int) -> Register:
        return (
            address
            if offset == 0
            else self.emit("IAdd", address.dtype, address, self.constant(offset, address.dtype))
        )

    def _global(self, address: Register, offset: int, dtype: DType, count: int) -> tuple[int, int]:
        element = self.type_of(dtype)
        if dtype.bits < 32:
            for capability in {8: (39, 4448), 16: (22, 4433)}[dtype.bits]:
                self.module.once("Capability", "capabilities", capability)
            element = self.module.type("TypeInt", dtype.bits, 0)
        if count > 1:
            element = self.module.type("TypeVector", element, count)
        kind = self.module.pointer("Physical", element)
        at = self._moved(address, offset)
        return element, self.module.value("ConvertUToPtr", kind, int(at.code))

    def quad_pointer(self, address: Register) -> int:
        """Return the pointer to the 16 bytes of shared memory at an address."""
        index = self.emit("ShiftRightLogical", u32, address, self.word(4))
        kind = self.module.pointer("Workgroup", self.quad)
        return self.module.value("AccessChain", kind, self.shared, int(index.code))

    def _word_pointer(self, address: Register) -> int:
        words = self.emit("ShiftRightLogical", u32, address, self.word(2))
        quad = self.emit("ShiftRightLogical", u32, words, self.word(2))
        part = self.emit("BitwiseAnd", u32, words, self.word(3))
        kind = self.module.pointer("Workgroup", self.u32)
        return self.module.value("AccessChain", kind, self.shared, int(quad.code), int(part.code))

    def _load_shared(self, address: Register, dtype: DType, count: int) -> list[Register]:
        if count == 4 and dtype.bits == 32:
            loaded = self.module.value("Load", self.quad, self.quad_pointer(address))
            parts = [self.module.value("CompositeExtract", self.u32, loaded, i) for i in range(4)]
            return [self.reinterpret(self.wrap(p, u32), dtype) for p in parts]
        if count > 1:
            size = dtype.itemsize
            return [
                self._load_shared(self._moved(address, i * size), dtype, 1)[0] for i in range(count)
            ]
        word = self.wrap(self.module.value("Load", self.u32, self._word_pointer(address)), u32)
        if dtype.bits == 32:
            return [self.reinterpret(word, dtype)]
        byte = self.emit("BitwiseAnd", u32, address, self.word(3))
        shift = self.emit("ShiftLeftLogical", u32, byte, self.word(3))
        moved = self.emit("ShiftRightLogical", u32, word, shift)
        if dtype.kind == "int":
            up = self.word(32 - dtype.bits)
            left = self.emit("ShiftLeftLogical", u32, moved, up)
            return [self.emit("ShiftRightArithmetic", dtype, left, up)]
        return [self.emit("BitwiseAnd", dtype, moved, self.word((1 << dtype.bits) - 1))]

    def store(
        self, space: SpaceName, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Store neighbouring elements."""
        dtype, count = values[0].dtype, len(values)
        if space == "global":
            element, pointer = self._global(address, offset, dtype, count)
            ids = [int(x.code) for x in values]
            if dtype.bits < 32:
                ids = [self.module.value("UConvert", element, ids[0])]
            held = ids[0] if count == 1 else self.module.value("CompositeConstruct", element, *ids)
            self.module.emit("Store", pointer, held, 2, dtype.itemsize * count)
            return
        if dtype.bits < 32:
            raise UnsupportedError(
                "SPIR-V stores whole words to shared memory; got a narrow element"
            )
        words = [int(self.reinterpret(x, u32).code) for x in values]
        at = self._moved(address, offset)
        if count == _SHARED_WORDS:
            held = self.module.value("CompositeConstruct", self.quad, *words)
            self.module.emit("Store", self.quad_pointer(at), held)
            return
        for number, word in enumerate(words):
            self.module.emit("Store", self._word_pointer(self._moved(at, 4 * number)), word)

    def barrier(self) -> None:
        """Synchronise the workgroup: acquire and release of workgroup memory."""
        self.module.emit("ControlBarrier", self.word(2), self.word(2), self.word(0x108))

    def shuffle_xor(self, x: Register, mask: int) -> Register:
        """Exchange among lanes."""
        for capability in (61, 65):
            self.module.once("Capability", "capabilities", capability)
        return self.emit("GroupNonUniformShuffleXor", x.dtype, self.word(3), x, self.word(mask))

    def shuffle(self, x: Register, lane: Register) -> Register:
        """Exchange among lanes."""
        for capability in (61, 65):
            self.module.once("Capability", "capabilities", capability)
        return self.emit("GroupNonUniformShuffle", x.dtype, self.word(3), x, lane)

    def atomic(self, kind: str, space: SpaceName, address: Register, value: Register) -> Register:
        """Combine a word into memory."""
        if value.dtype is f32:
            raise UnsupportedError("SPIR-V kernels have no atomics of floats")
        if space == "shared":
            pointer = self._word_pointer(address)
        else:
            kind_of_pointer = self.module.pointer("Physical", self.u32)
            pointer = self.module.value("ConvertUToPtr", kind_of_pointer, int(address.code))
        sign = ("U", "S")[value.dtype.kind == "int"]
        opcode = {"add": "AtomicIAdd", "min": f"Atomic{sign}Min", "max": f"Atomic{sign}Max",
                  "and": "AtomicAnd", "or": "AtomicOr", "xor": "AtomicXor"}[kind]  # fmt: skip
        # Device scope, relaxed.
        found = self.module.value(
            opcode, self.u32, pointer, self.word(1), self.word(0), int(value.code)
        )
        return self.wrap(found, value.dtype)

    def table(self, words: Sequence[int]) -> str:
        """Return a variable of the module that holds the words."""
        m = self.module
        kind = m.type("TypeArray", self.u32, self.word(len(words)))
        value = m.fresh()
        ids = [self.word(word) for word in words]
        m.emit("ConstantComposite", kind, value, *ids, section="types")
        variable = m.fresh()
        pointer = m.pointer("Private", kind)
        m.emit("Variable", pointer, variable, STORAGE["Private"], value, section="types")
        self.interface.append(variable)
        return str(variable)

    def table_word(self, table: str, index: Register) -> Register:
        """Load a word of a table."""
        pointer = self.module.pointer("Private", self.u32)
        at = self.module.value("AccessChain", pointer, int(table), int(index.code))
        return self.wrap(self.module.value("Load", self.u32, at), u32)

    # ---- control

    def variable(self, initial: Register) -> str:
        """Return a new variable of the function."""
        kind = self.types[initial.code]
        found = self.module.fresh()
        pointer = self.module.pointer("Function", kind)
        self.module.emit("Variable", pointer, found, STORAGE["Function"], section="variables")
        self.types[f"*{found}"] = kind
        self._dtypes[str(found)] = initial.dtype
        self.module.emit("Store", found, int(initial.code))
        return str(found)

    def read(self, variable: str) -> Register:
        """Return the variable's value."""
        kind = self.types[f"*{variable}"]
        return self.wrap(
            self.module.value("Load", kind, int(variable)), self._dtypes[variable], kind
        )

    def assign(self, variable: str, value: Register) -> None:
        """Set the variable."""
        self.module.emit("Store", int(variable), int(value.code))

    def loop(self, condition: Callable[[], Register], body: Callable[[], None]) -> None:
        """Emit a structured loop."""
        m = self.module
        header, test, inside, following, merge = (m.fresh() for _ in range(5))
        m.emit("Branch", header)
        m.emit("Label", header)
        m.emit("LoopMerge", merge, following, 0)
        m.emit("Branch", test)
        m.emit("Label", test)
        m.emit("BranchConditional", int(condition().code), inside, merge)
        m.emit("Label", inside)
        body()
        m.emit("Branch", following)
        m.emit("Label", following)
        m.emit("Branch", header)
        m.emit("Label", merge)

    def branch(
        self,
        condition: Register,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Emit a structured branch."""
        m = self.module
        yes, no, merge = m.fresh(), m.fresh(), m.fresh()
        m.emit("SelectionMerge", merge, 0)
        m.emit("BranchConditional", int(condition.code), yes, no)
        for label, side in ((yes, then), (no, otherwise)):
            m.emit("Label", label)
            if side is not None:
                side()
            m.emit("Branch", merge)
        m.emit("Label", merge)
