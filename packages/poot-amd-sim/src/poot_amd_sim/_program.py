"""Assembly text to a program: instructions, labels, kernel descriptor, argument list, constants."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from poot_amd_sim._errors import UnknownInstruction

__all__ = ["Argument", "Instruction", "Program", "parse_programs"]

_MODIFIER = re.compile(
    r"\b(offset\d?|neg_lo|neg_hi|op_sel|op_sel_hi|scope|th|mul|div|quad_perm|dpp8|row_\w+|bank_mask"
    r"|bound_ctrl|fi|wave_\w+|dst_sel|dst_unused|src0_sel|src1_sel|cbsz|abid|blgp|bitop3|index_key"
    r"):(\[[^\]]*\]|\S+)"
)
_FLAGS = {"clamp", "glc", "slc", "dlc", "sc0", "sc1", "nt", "gds", "row_mirror", "row_half_mirror"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, or one half of a dual one.

    Attributes:
        name: Mnemonic.
        operands: As written, without modifiers.
        modifiers: Such as ``offset`` and ``op_sel``; flags map to an empty text.
        line: Number in the text, from 1.
    """

    name: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    line: int

    def __str__(self) -> str:
        tail = "".join(f" {k}:{v}" if v else f" {k}" for k, v in self.modifiers.items())
        return f"{self.name} {', '.join(self.operands)}{tail}"


@dataclass(frozen=True, slots=True)
class Argument:
    """One entry of a kernel's argument list; ``kind`` is the metadata's ``.value_kind``."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One kernel.

    Attributes:
        name: Entry.
        arch: Such as ``gfx1100``.
        steps: Instructions that issue together, mostly one.
        labels: Places in ``steps``.
        descriptor: ``.amdhsa_`` values, without that prefix.
        arguments: What its kernel arguments hold.
        data: Bytes of each constant object by symbol.
    """

    name: str
    arch: str
    steps: tuple[tuple[Instruction, ...], ...]
    labels: dict[str, int] = field(repr=False)
    descriptor: dict[str, int]
    arguments: tuple[Argument, ...]
    data: dict[str, bytes] = field(repr=False, default_factory=lambda: dict[str, bytes]())

    @property
    def wave_size(self) -> int:
        """Lanes of a wave."""
        return 32 if self.descriptor.get("wavefront_size32") else 64

    def places(self, pattern: str) -> list[int]:
        """Return where instructions stand whose text matches a regular expression from its start."""
        return [
            place
            for place, step in enumerate(self.steps)
            if any(re.match(pattern, str(part)) for part in step)
        ]

    def without(self, place: int) -> Program:
        """Return a mutant in which the instruction at a place does nothing."""
        gone = (Instruction("s_nop", ("0",), {}, self.steps[place][0].line),)
        return replace(self, steps=(*self.steps[:place], gone, *self.steps[place + 1 :]))

    def mutants(self, pattern: str) -> Iterator[Program]:
        """Yield for each matching instruction the program without it."""
        return (self.without(place) for place in self.places(pattern))


def split_operands(text: str) -> tuple[str, ...]:
    """Return operands, split at commas outside of brackets.

    >>> split_operands("v[0:1], s[2:3], off")
    ('v[0:1]', 's[2:3]', 'off')
    """
    return tuple(part.strip() for part in re.split(r",(?![^\[\(]*[\]\)])", text) if part.strip())


def _instruction(text: str, line: int) -> Instruction:
    name, _, rest = text.strip().partition(" ")
    modifiers = {key: value for key, value in _MODIFIER.findall(rest)}
    rest = _MODIFIER.sub("", rest)
    words = rest.split()
    while words and words[-1] in _FLAGS:
        modifiers[words.pop()] = ""
    return Instruction(name, split_operands(" ".join(words)), modifiers, line)


def parse_programs(text: str) -> dict[str, Program]:
    """Return the kernels of an assembly file by name.

    Raises:
        UnknownInstruction: If it is not AMD assembly as LLVM prints it.
    """
    found = re.search(r'\.amdgcn_target\s+"amdgcn-amd-amdhsa--(gfx\w+)', text)
    if found is None:
        raise UnknownInstruction("the text names no .amdgcn_target")
    arch = found[1]
    data = _constants(text)
    code: dict[str, list[tuple[Instruction, ...]]] = {}
    labels: dict[str, int] = {}
    descriptors: dict[str, dict[str, int]] = {}
    current, kernel = "", ""
    functions = set(re.findall(r"\.type\s+(\S+),@function", text))
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split(";")[0].strip()
        if not line:
            continue
        if match := re.fullmatch(r"([\w.$]+):", line):
            if match[1] in functions:
                current = match[1]
                code[current] = []
            elif current:
                labels[match[1]] = len(code[current])
        elif match := re.match(r"\.amdhsa_kernel (\S+)", line):
            kernel, current = match[1], ""
            descriptors[kernel] = {}
        elif match := re.match(r"\.amdhsa_(\w+) (\S+)", line):
            if kernel and match[2].lstrip("-").isdigit():
                descriptors[kernel][match[1]] = int(match[2])
        elif current and not line.startswith("."):
            code[current].append(tuple(_instruction(part, number) for part in line.split(" :: ")))
    arguments = _arguments(text)
    return {
        name: Program(
            name=name,
            arch=arch,
            steps=tuple(code[name]),
            labels=labels,
            descriptor=descriptors[name],
            arguments=arguments.get(name, ()),
            data=data,
        )
        for name in descriptors
    }


def _arguments(text: str) -> dict[str, tuple[Argument, ...]]:
    """Read each kernel's argument list from the metadata's YAML, in LLVM's fixed layout."""
    _, _, metadata = text.partition(".amdgpu_metadata")
    found: dict[str, tuple[Argument, ...]] = {}
    held: list[dict[str, str]] = []
    inside = False
    for line in metadata.partition(".end_amdgpu_metadata")[0].splitlines():
        if match := re.match(r"(  [- ] )\.(\w+):\s*(.*)", line):
            if match[1] == "  - ":
                held, inside = [], False
            inside = match[2] == "args"
            if match[2] == "name":
                found[match[3].strip("'\"")] = tuple(
                    Argument(int(a["offset"]), int(a["size"]), a["value_kind"]) for a in held
                )
        elif inside and (match := re.match(r"      ([- ]) \.(\w+):\s*(.*)", line)):
            if match[1] == "-":
                held.append({})
            held[-1][match[2]] = match[3].strip()
    return found


_WIDTHS = {"byte": "<B", "short": "<H", "long": "<I", "quad": "<Q", "p2align": ""}


def _constants(text: str) -> dict[str, bytes]:
    """Return the bytes of data objects (``.type name,@object``)."""
    found: dict[str, bytes] = {}
    objects = set(re.findall(r"\.type\s+(\S+),@object", text))
    current: bytearray | None = None
    for raw in text.splitlines():
        line = raw.split(";")[0].strip()
        if match := re.fullmatch(r"([\w.$]+):", line):
            current = bytearray() if match[1] in objects else None
            if current is not None:
                found[match[1]] = current  # type: ignore[assignment]
        elif current is not None and (match := re.match(r"\.(\w+)\s+(.*)", line)):
            kind, value = match[1], match[2]
            if kind in ("byte", "short", "long", "quad"):
                form = _WIDTHS[kind]
                top = 1 << 8 * struct.calcsize(form)
                for part in value.split(","):
                    current += struct.pack(form, int(part, 0) % top)
            elif kind == "zero":
                current += bytes(int(value.split(",")[0], 0))
            elif kind in ("ascii", "asciz"):
                body = value.strip()[1:-1].encode().decode("unicode_escape").encode("latin-1")
                current += body + (b"\0" if kind == "asciz" else b"")
    return {name: bytes(value) for name, value in found.items()}
