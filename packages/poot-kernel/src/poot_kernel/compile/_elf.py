"""A reader of ELF64 little-endian relocatable objects: the part that poot's own objects use.

Source: System V ABI, "Object Files" (gabi.xinuos.com), and Elf64_* in elf.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from poot_core import CompileError

__all__ = ["MACHINES", "ObjectFile", "Relocation", "Section", "Symbol", "read_object"]

MACHINES = {62: "x86-64", 183: "aarch64"}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 1, 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_MOST_BYTES, _MOST_ALIGNMENT = 1 << 30, 1 << 16  # no kernel's object comes near
_UNWIND = {".eh_frame"}  # nothing unwinds through kernels


class Section(NamedTuple):
    """A section that takes part in the image.

    ``data`` is empty and ``nbytes`` is not for zero-initialised sections.
    """

    number: int
    name: str
    data: bytes
    nbytes: int
    alignment: int
    is_executable: bool
    is_writable: bool


class Symbol(NamedTuple):
    """``section`` is None for an absolute value."""

    name: str
    section: int | None
    value: int
    is_global: bool


class Relocation(NamedTuple):
    """Patch ``section`` at ``offset`` for ``symbol`` plus ``addend``."""

    section: int
    offset: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile:
    """What there is to place and to patch.

    Attributes:
        machine: ``x86-64`` or ``aarch64``.
        sections: Sections of the image.
        symbols: Defined symbols with a name.
        relocations: Patches of those sections.
    """

    machine: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def read_object(data: bytes) -> ObjectFile:
    """Return the parts of an object file.

    Raises:
        CompileError: If the bytes are no such object, are cut short, or leave a symbol undefined.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CompileError(
            f"an object of {len(data)} bytes is malformed or truncated: {error}"
        ) from None


def _read(data: bytes) -> ObjectFile:
    (ident, kind, machine, _version, _entry, _phoff, shoff, _flags, _ehsize, _phentsize, _phnum,
     shentsize, shnum, shstrndx) = _HEADER.unpack_from(data)  # fmt: skip
    if ident[:6] != b"\x7fELF\x02\x01" or kind != 1 or shentsize != _SECTION.size:
        raise CompileError("compiled code is no ELF64 little-endian relocatable object")
    if machine not in MACHINES:
        raise CompileError(f"compiled code is for ELF machine {machine}; known are {MACHINES}")
    headers = [_SECTION.unpack_from(data, shoff + i * _SECTION.size) for i in range(shnum)]
    names_at = headers[shstrndx][4]
    sections = tuple(_image_sections(data, headers, names_at))
    placed = {section.number for section in sections}
    symbols: tuple[Symbol | None, ...] = ()
    for header in headers:
        if header[1] == _SHT_SYMTAB:
            symbols = tuple(_symbols(data, header, headers, placed))
    relocations = tuple(_relocations(data, headers, placed, symbols))
    named = tuple(symbol for symbol in symbols if symbol is not None and symbol.name)
    return ObjectFile(
        machine=MACHINES[machine], sections=sections, symbols=named, relocations=relocations
    )


def _slice(data: bytes, offset: int, length: int) -> bytes:
    if offset + length > len(data):
        raise ValueError(f"bytes {offset}..{offset + length} lie past its end")
    return data[offset : offset + length]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _image_sections(
    data: bytes, headers: list[tuple[int, ...]], names_at: int
) -> Iterator[Section]:
    for index, (name_at, kind, flags, _, offset, nbytes, _, _, alignment, _) in enumerate(headers):
        if not flags & _SHF_ALLOC or nbytes == 0:
            continue
        name = _string(data, names_at + name_at)
        if flags & _SHF_TLS:
            raise CompileError(f"section {name!r} is thread-local, which poot's loader has not")
        if name in _UNWIND or kind not in {_SHT_PROGBITS, _SHT_NOBITS}:
            continue
        if nbytes > _MOST_BYTES or alignment > _MOST_ALIGNMENT:
            raise ValueError(f"section {name!r} of {nbytes} bytes, aligned to {alignment}")
        yield Section(
            number=index,
            name=name,
            data=b"" if kind == _SHT_NOBITS else _slice(data, offset, nbytes),
            nbytes=nbytes,
            alignment=max(alignment, 1),
            is_executable=bool(flags & _SHF_EXECINSTR),
            is_writable=bool(flags & _SHF_WRITE),
        )


def _symbols(
    data: bytes, header: tuple[int, ...], headers: list[tuple[int, ...]], placed: set[int]
) -> Iterator[Symbol | None]:
    strings_at = headers[header[6]][4]
    table = _slice(data, header[4], header[5])
    for number, (name_at, info, _, index, value, _) in enumerate(_SYMBOL.iter_unpack(table)):
        name = _string(data, strings_at + name_at)
        if number == 0:
            yield None
        elif index == _SHN_UNDEF:
            raise CompileError(f"compiled code calls the undefined symbol {name!r}", symbol=name)
        elif index == _SHN_COMMON:
            raise CompileError(f"compiled code holds the common symbol {name!r}", symbol=name)
        elif index == _SHN_ABS:
            yield Symbol(name, None, value, info >> 4 != 0)
        elif index in placed:
            yield Symbol(name, index, value, info >> 4 != 0)
        else:
            yield None


def _relocations(
    data: bytes,
    headers: list[tuple[int, ...]],
    placed: set[int],
    symbols: tuple[Symbol | None, ...],
) -> Iterator[Relocation]:
    for header in headers:
        if header[7] not in placed or header[1] not in {_SHT_RELA, _SHT_REL}:
            continue
        if header[1] == _SHT_REL:
            raise CompileError("compiled code has relocations without addends")
        for offset, info, addend in _RELOCATION.iter_unpack(_slice(data, header[4], header[5])):
            symbol = symbols[info >> 32]
            if symbol is None:
                raise ValueError(f"a relocation names symbol {info >> 32}, which has no place")
            yield Relocation(header[7], offset, info & 0xFFFFFFFF, symbol, addend)
