"""Puts host objects into memory and makes them callable, without LLVM.

Several objects share one mapping: code pages first, then read-only data, then writable data. Pages
are written before they become executable, never both at once.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from poot_core import CompileError, DeviceError
from poot_kernel.compile._elf import ObjectFile, Section, read_object
from poot_kernel.compile._relocate import NEEDS_ADDRESS_SLOT, apply_relocation

__all__ = ["LoadedCode", "load_objects"]

_READ, _WRITE, _EXECUTE = 1, 2, 4  # PROT_*


class LoadedCode:
    """Executable memory and the addresses of the global symbols in it.

    Attributes:
        symbols: For each object that was loaded, address by symbol name.
    """

    symbols: tuple[Mapping[str, int], ...]

    def __init__(self, memory: mmap.mmap, symbols: Sequence[Mapping[str, int]]) -> None:
        self._memory = memory
        self.symbols = tuple(symbols)

    def close(self) -> None:
        """Unmap the code; calling into it afterwards faults."""
        self._memory.close()


def load_objects(objects: Sequence[bytes], machine: str) -> LoadedCode:
    """Return the objects loaded into one mapping.

    Args:
        objects: ELF64 relocatable objects.
        machine: ``x86-64`` or ``aarch64``, what this process runs on.

    Raises:
        CompileError: If an object is malformed, for another machine, has an undefined symbol or a
            relocation that the loader does not know.
        DeviceError: If the operating system refuses executable memory.
    """
    files = [read_object(data) for data in objects]
    for file in files:
        if file.machine != machine:
            raise CompileError(f"compiled code is for {file.machine}, this host is {machine}")
    places, slots, groups, nbytes = _lay_out(files)
    memory = _map(nbytes)
    exported = (ctypes.c_char * nbytes).from_buffer(memory)
    base = ctypes.addressof(exported)
    with memoryview(memory) as image:
        symbols = [
            _place(file, image, base, place, slot)
            for file, place, slot in zip(files, places, slots, strict=True)
        ]
    _protect(base, groups)
    del exported
    return LoadedCode(memory, symbols)


def _group(section: Section) -> int:
    return 0 if section.is_executable else 2 if section.is_writable else 1


def _lay_out(
    files: Sequence[ObjectFile],
) -> tuple[list[dict[int, int]], list[dict[str, int]], list[tuple[int, int]], int]:
    """Return per file section offsets and address-slot offsets, the three page ranges, the size."""
    page = mmap.PAGESIZE
    places: list[dict[int, int]] = [{} for _ in files]
    slots: list[dict[str, int]] = [{} for _ in files]
    groups: list[tuple[int, int]] = []
    offset = 0
    for group in range(3):
        start = offset
        for file, place, slot in zip(files, places, slots, strict=True):
            for section in file.sections:
                if _group(section) == group:
                    offset = -(-offset // section.alignment) * section.alignment
                    place[section.number] = offset
                    offset += section.nbytes
            if group == 1:
                for relocation in file.relocations:
                    name = _slot_name(relocation.symbol.name, relocation.symbol.section)
                    if relocation.kind in NEEDS_ADDRESS_SLOT[file.machine] and name not in slot:
                        slot[name] = offset = -(-offset // 8) * 8
                        offset += 8
        offset = -(-offset // page) * page
        groups.append((start, offset))
    return places, slots, groups, max(offset, page)


def _slot_name(name: str, section: int | None) -> str:
    return name or f"section {section}"


def _map(nbytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        raise DeviceError("loading compiled code is not built for Windows yet")
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DeviceError(f"no memory for {nbytes} bytes of code: {error}") from None


def _place(
    file: ObjectFile,
    image: memoryview,
    base: int,
    place: Mapping[int, int],
    slot: Mapping[str, int],
) -> Mapping[str, int]:
    for section in file.sections:
        at = place[section.number]
        image[at : at + len(section.data)] = section.data
    sizes = {section.number: section.nbytes for section in file.sections}
    needs_slot = NEEDS_ADDRESS_SLOT[file.machine]
    for section, offset, kind, symbol, addend in file.relocations:
        if offset + 4 > sizes[section]:
            raise CompileError("an object is malformed: a relocation lies outside its section")
        value = symbol.value
        if symbol.section is not None:
            value += base + place[symbol.section]
        if kind in needs_slot:
            slot_at = slot[_slot_name(symbol.name, symbol.section)]
            image[slot_at : slot_at + 8] = value.to_bytes(8, "little")
            value = base + slot_at
        at = place[section] + offset
        apply_relocation(file.machine, kind, image, at, base + at, value + addend)
    return MappingProxyType(
        {
            symbol.name: base + place[symbol.section] + symbol.value
            for symbol in file.symbols
            if symbol.is_global and symbol.section is not None
        }
    )


def _protect(base: int, groups: Sequence[tuple[int, int]]) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    modes = (_READ | _EXECUTE, _READ, _READ | _WRITE)
    for (start, stop), mode in zip(groups, modes, strict=True):
        if start == stop or mode & _WRITE:
            continue
        if library.mprotect(base + start, stop - start, mode) != 0:
            raise DeviceError(
                f"the operating system refuses memory protection {mode} "
                f"(errno {ctypes.get_errno()}); poot needs executable memory for its kernels"
            )
    # Linux makes the instruction cache coherent when pages become executable; elsewhere ask.
    if hasattr(library, "sys_icache_invalidate"):
        start, stop = groups[0]
        library.sys_icache_invalidate(ctypes.c_void_p(base + start), ctypes.c_size_t(stop - start))
