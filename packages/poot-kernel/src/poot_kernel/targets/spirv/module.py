"""A SPIR-V module under construction: numbered opcodes, interned types and constants, sections."""

from __future__ import annotations

import struct

__all__ = ["OPCODES", "SECTIONS", "STORAGE", "SpirvModule"]

OPCODES = {
    "Extension": 10, "ExtInstImport": 11, "ExtInst": 12, "MemoryModel": 14, "EntryPoint": 15,
    "ExecutionMode": 16, "Capability": 17, "TypeVoid": 19, "TypeBool": 20, "TypeInt": 21,
    "TypeFloat": 22, "TypeVector": 23, "TypeArray": 28, "TypeRuntimeArray": 29, "TypeStruct": 30,
    "TypePointer": 32, "TypeFunction": 33, "ConstantTrue": 41, "ConstantFalse": 42, "Constant": 43,
    "Function": 54, "FunctionEnd": 56, "Variable": 59, "Load": 61, "Store": 62, "AccessChain": 65,
    "Decorate": 71, "MemberDecorate": 72, "CompositeConstruct": 80, "CompositeExtract": 81,
    "ConvertFToU": 109, "ConvertFToS": 110, "ConvertSToF": 111, "ConvertUToF": 112,
    "UConvert": 113, "SConvert": 114, "FConvert": 115, "ConvertUToPtr": 120, "Bitcast": 124,
    "SNegate": 126, "FNegate": 127, "IAdd": 128, "FAdd": 129, "ISub": 130, "FSub": 131,
    "IMul": 132, "FMul": 133, "UDiv": 134, "SDiv": 135, "FDiv": 136, "UMod": 137, "SRem": 138,
    "LogicalOr": 166, "LogicalAnd": 167, "LogicalNot": 168, "Select": 169, "IEqual": 170,
    "INotEqual": 171, "UGreaterThan": 172, "SGreaterThan": 173, "UGreaterThanEqual": 174,
    "SGreaterThanEqual": 175, "ULessThan": 176, "SLessThan": 177, "ULessThanEqual": 178,
    "SLessThanEqual": 179, "FOrdEqual": 180, "FUnordNotEqual": 183, "FOrdLessThan": 184,
    "FOrdGreaterThan": 186, "FOrdLessThanEqual": 188, "FOrdGreaterThanEqual": 190,
    "ShiftRightLogical": 194, "ShiftRightArithmetic": 195, "ShiftLeftLogical": 196,
    "BitwiseOr": 197, "BitwiseXor": 198, "BitwiseAnd": 199, "Not": 200, "LogicalNotEqual": 165,
    "ControlBarrier": 224, "LoopMerge": 246, "SelectionMerge": 247, "Label": 248, "Branch": 249,
    "BranchConditional": 250, "Return": 253, "GroupNonUniformShuffle": 345,
    "GroupNonUniformShuffleXor": 346, "AtomicIAdd": 234, "AtomicSMin": 236, "AtomicUMin": 237,
    "AtomicSMax": 238, "AtomicUMax": 239, "AtomicAnd": 240, "AtomicOr": 241, "AtomicXor": 242,
    "ConstantComposite": 44, "SDot": 4450,
    "UDot": 4451, "SUDot": 4452, "TypeCooperativeMatrixKHR": 4456, "CooperativeMatrixLoadKHR": 4457,
    "CooperativeMatrixStoreKHR": 4458, "CooperativeMatrixMulAddKHR": 4459,
}  # fmt: skip
STORAGE = {
    "Input": 1,
    "Workgroup": 4,
    "Private": 6,
    "Function": 7,
    "PushConstant": 9,
    "Physical": 5349,
}
SECTIONS = ("capabilities", "extensions", "imports", "memory", "entry_points", "modes",
            "decorations", "types", "prologue", "variables", "entry", "body")  # fmt: skip
VERSION = 0x10600


class SpirvModule:
    """Words by section; ``section`` is where ``emit`` and ``value`` write."""

    def __init__(self) -> None:
        self.sections: dict[str, list[int]] = {name: [] for name in SECTIONS}
        self.section = "body"
        self._next = 1
        self._interned: dict[tuple[object, ...], int] = {}

    def fresh(self) -> int:
        """Return a new id."""
        self._next += 1
        return self._next - 1

    def emit(self, opcode: str, *operands: int | str, section: str | None = None) -> None:
        """Append an instruction."""
        words = [w for x in operands for w in ([x] if isinstance(x, int) else _text(x))]
        self.sections[section or self.section] += [len(words) + 1 << 16 | OPCODES[opcode], *words]

    def value(self, opcode: str, type_id: int, *operands: int) -> int:
        """Append an instruction with a result and return its id."""
        found = self.fresh()
        self.emit(opcode, type_id, found, *operands)
        return found

    def type(self, opcode: str, *operands: int) -> int:
        """Return an interned type."""
        key = (opcode, *operands)
        if key not in self._interned:
            self._interned[key] = found = self.fresh()
            self.emit(opcode, found, *operands, section="types")
        return self._interned[key]

    def pointer(self, storage: str, type_id: int) -> int:
        """Return a pointer type."""
        return self.type("TypePointer", STORAGE[storage], type_id)

    def constant(self, type_id: int, *words: int) -> int:
        """Return an interned constant."""
        key = ("Constant", type_id, *words)
        if key not in self._interned:
            self._interned[key] = found = self.fresh()
            self.emit("Constant", type_id, found, *words, section="types")
        return self._interned[key]

    def truth(self, type_id: int, value: bool) -> int:
        """Return a boolean constant."""
        key = ("truth", value)
        if key not in self._interned:
            self._interned[key] = found = self.fresh()
            opcode = "ConstantTrue" if value else "ConstantFalse"
            self.emit(opcode, type_id, found, section="types")
        return self._interned[key]

    def once(self, opcode: str, section: str, *operands: int | str) -> None:
        """Append an instruction unless it is there."""
        key = (opcode, section, *operands)
        if key not in self._interned:
            self._interned[key] = 0
            self.emit(opcode, *operands, section=section)

    def binary(self) -> bytes:
        """Return the module."""
        words = [w for name in SECTIONS for w in self.sections[name]]
        header = [0x07230203, VERSION, 0, self._next, 0]
        return struct.pack(f"<{len(words) + 5}I", *header, *words)


def _text(value: str) -> list[int]:
    raw = value.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))
