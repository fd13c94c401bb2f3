"""Code objects as AMD's loaders read them: ELF header, symbols, kernel descriptors, metadata.

The rules are those of LLVM's "User Guide for AMDGPU Backend" (code object V5 and V6, "Kernel
Descriptor") and of what ROCr and HIP refuse.
"""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass
from typing import Any

import msgspec
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

__all__ = ["CodeObject", "KernelFacts", "loader_complaints", "read_code_object"]

_MACHINE, _OS_ABI = 224, 64  # EM_AMDGPU, ELFOSABI_AMDGPU_HSA
_SHARED_OBJECT = 3  # ET_DYN
_ABI_VERSIONS = {2: 4, 3: 5, 4: 6}
_METADATA_VERSIONS = {4: [1, 1], 5: [1, 2], 6: [1, 2]}
_NOTE_METADATA = 32
# EF_AMDGPU_MACH values of e_flags.
_ARCHS = {
    0x36: "gfx1030", 0x3F: "gfx90a", 0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102",
    0x4A: "gfx1151", 0x48: "gfx1200", 0x4E: "gfx1201", 0x4C: "gfx942", 0x4F: "gfx950",
}  # fmt: skip
_HAS_SETTINGS = {"gfx90a", "gfx942", "gfx950"}  # xnack and sramecc
_SETTINGS = ("unsupported", "any", "off", "on")
_LOCAL_LIMIT = 65536
# Argument kinds that poot's launches fill, or that the runtime does by itself.
_FILLED = {
    "by_value", "global_buffer", "hidden_block_count_x", "hidden_block_count_y",
    "hidden_block_count_z", "hidden_group_size_x", "hidden_group_size_y", "hidden_group_size_z",
    "hidden_remainder_x", "hidden_remainder_y", "hidden_remainder_z", "hidden_grid_dims",
    "hidden_global_offset_x", "hidden_global_offset_y", "hidden_global_offset_z", "hidden_none",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What a code object says of one kernel, in metadata and in its descriptor.

    Attributes:
        name: Entry.
        metadata: Its map of ``amdhsa.kernels``.
        descriptor_address: Where its 64 bytes lie, or None without a symbol.
        entry_address: Where its code begins, or None.
        local_bytes: Workgroup memory.
        private_bytes: Scratch of an invocation.
        argument_bytes: Size of the argument block.
        is_wave32: Whether waves have 32 lanes.
        num_vectors: Vector registers that are allocated.
        asks: Names of what stands in scalar registers at the start.
        is_reserved_zero: Whether all reserved bits are.
    """

    name: str
    metadata: dict[str, Any]
    descriptor_address: int | None
    entry_address: int | None = None
    local_bytes: int = 0
    private_bytes: int = 0
    argument_bytes: int = 0
    is_wave32: bool = False
    num_vectors: int = 0
    asks: tuple[str, ...] = ()
    is_reserved_zero: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeObject:
    """A parsed ELF file of AMD's.

    Attributes:
        kind: ELF's type; 3 for what can be loaded.
        machine: ELF's machine.
        os_abi: ELF's OS ABI.
        version: Code object version, or None.
        arch: Such as ``gfx1100``, or the number in the flags.
        xnack: ``unsupported``, ``any``, ``off`` or ``on``.
        sramecc: The same.
        symbols: Addresses of exported symbols; None for undefined ones.
        metadata: Of the note, or None.
        kernels: By name.
    """

    kind: int
    machine: int
    os_abi: int
    version: int | None
    arch: str
    xnack: str
    sramecc: str
    symbols: dict[str, int | None]
    metadata: dict[str, Any] | None
    kernels: dict[str, KernelFacts]


def read_code_object(data: bytes) -> CodeObject:
    """Return what an ELF file says.

    Raises:
        ValueError: If it is no 64-bit little-endian ELF file.
    """
    try:
        elf = ELFFile(io.BytesIO(data))
        if elf.elfclass != 64 or not elf.little_endian:
            raise ValueError("an ELF file of another class")
        flags = struct.unpack_from("<I", data, 48)[0]
        arch = _ARCHS.get(flags & 0xFF, hex(flags & 0xFF))
        symbols = _symbols(elf)
        metadata = _metadata(elf)
    except ELFError as error:
        raise ValueError(f"no ELF file: {error}") from error
    listed = [] if metadata is None else metadata.get("amdhsa.kernels", [])
    return CodeObject(
        kind=struct.unpack_from("<H", data, 16)[0],
        machine=struct.unpack_from("<H", data, 18)[0],
        os_abi=data[7],
        version=_ABI_VERSIONS.get(data[8]),
        arch=arch,
        xnack=_SETTINGS[flags >> 8 & 3],
        sramecc=_SETTINGS[flags >> 10 & 3],
        symbols=symbols,
        metadata=metadata,
        kernels={k[".name"]: _kernel(elf, k, symbols, arch) for k in listed},
    )


def _symbols(elf: Any) -> dict[str, int | None]:
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        return {}
    return {
        symbol.name: None if symbol["st_shndx"] == "SHN_UNDEF" else symbol["st_value"]
        for symbol in table.iter_symbols()
        if symbol.name
    }


def _metadata(elf: Any) -> dict[str, Any] | None:
    for segment in elf.iter_segments():
        if segment["p_type"] != "PT_NOTE":
            continue
        raw, place = segment.data(), 0
        while place < len(raw):
            name_size, size, kind = struct.unpack_from("<III", raw, place)
            name = raw[place + 12 : place + 12 + name_size].rstrip(b"\0")
            start = place + 12 + -(-name_size // 4) * 4
            if name == b"AMDGPU" and kind == _NOTE_METADATA:
                return msgspec.msgpack.decode(raw[start : start + size])
            place = start + -(-size // 4) * 4
    return None


def _bytes_at(elf: Any, address: int, size: int) -> bytes:
    for segment in elf.iter_segments():
        start = segment["p_vaddr"]
        if segment["p_type"] == "PT_LOAD" and start <= address < start + segment["p_filesz"]:
            return segment.data()[address - start : address - start + size]
    return b""


_ASKED = ("private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr",
          "dispatch_id", "flat_scratch_init", "private_segment_size")  # fmt: skip


# The hardware's queue sets these up for any kernel; others cost the runtime something.
_GIVEN = {"private_segment_buffer", "kernarg_segment_ptr"}


def _kernel(
    elf: Any, metadata: dict[str, Any], symbols: dict[str, int | None], arch: str
) -> KernelFacts:
    address = symbols.get(metadata.get(".symbol", ""))
    raw = b"" if address is None else _bytes_at(elf, address, 64)
    if address is None or len(raw) != 64:
        return KernelFacts(name=metadata[".name"], metadata=metadata, descriptor_address=None)
    (local, private, arguments, zero, entry, zeros, _resources3, resources1, resources2, asked,
     _preload, tail) = struct.unpack("<IIIIq20sIIIHHI", raw)  # fmt: skip
    is_wave32 = bool(asked >> 10 & 1)
    granule = 8 if is_wave32 or arch in _HAS_SETTINGS else 4
    _ = resources2
    return KernelFacts(
        name=metadata[".name"],
        metadata=metadata,
        descriptor_address=address,
        entry_address=address + entry,
        local_bytes=local,
        private_bytes=private,
        argument_bytes=arguments,
        is_wave32=is_wave32,
        num_vectors=((resources1 & 63) + 1) * granule,
        asks=tuple(name for bit, name in enumerate(_ASKED) if asked >> bit & 1),
        is_reserved_zero=zero == 0 and zeros == bytes(20) and tail == 0,
    )


def loader_complaints(data: bytes, arch: str) -> list[str]:
    """Return why a loader would refuse a file as a code object for an architecture; none if good."""
    try:
        found = read_code_object(data)
    except ValueError as error:
        return [str(error)]
    settings = arch in _HAS_SETTINGS
    rules = [
        (found.machine == _MACHINE, f"machine {found.machine} is not AMD's {_MACHINE}"),
        (found.os_abi == _OS_ABI, f"OS ABI {found.os_abi} is not HSA's {_OS_ABI}"),
        (found.kind == _SHARED_OBJECT, f"type {found.kind}: it is not linked"),
        (found.version == 5, f"code object version {found.version}, not 5 for an exact target"),
        (found.arch == arch, f"flags say {found.arch}, not {arch}"),
        (
            all(x == ("any" if settings else "unsupported") for x in (found.xnack, found.sramecc)),
            f"xnack is {found.xnack}, sramecc {found.sramecc}: some {arch} would refuse it",
        ),
        (found.metadata is not None, "no metadata note"),
        (bool(found.kernels), "no kernels"),
    ]
    bad = [text for good, text in rules if not good]
    bad += [f"{name} is undefined" for name, at in found.symbols.items() if at is None]
    metadata = found.metadata or {}
    if metadata and metadata.get("amdhsa.version") != _METADATA_VERSIONS.get(found.version or 0):
        bad.append(f"metadata version {metadata.get('amdhsa.version')}")
    target = str(metadata.get("amdhsa.target", ""))
    if metadata and re.split("--|:", target)[1:2] != [arch]:
        bad.append(f"metadata is for {target!r}")
    for kernel in found.kernels.values():
        bad += [f"{kernel.name}: {text}" for text in _kernel_complaints(kernel, found)]
    return bad


def _kernel_complaints(kernel: KernelFacts, found: CodeObject) -> list[str]:
    facts = kernel.metadata
    if kernel.descriptor_address is None:
        return [f"descriptor {facts.get('.symbol')!r} is not exported"]
    wave = 32 if kernel.is_wave32 else 64
    scratch = facts[".private_segment_fixed_size"]
    kinds = {a[".value_kind"] for a in facts.get(".args", [])}
    ends = [a[".offset"] + a[".size"] for a in facts.get(".args", [])]
    rules = [
        (kernel.descriptor_address % 64 == 0, "descriptor is not aligned to 64"),
        ((kernel.entry_address or 1) % 256 == 0, "code is not aligned to 256"),
        (found.symbols.get(kernel.name) == kernel.entry_address, "descriptor misses the function"),
        (kernel.is_reserved_zero, "reserved bits are set"),
        (kernel.argument_bytes == facts[".kernarg_segment_size"], "argument sizes differ"),
        (all(end <= kernel.argument_bytes for end in ends), "an argument lies outside"),
        (facts[".kernarg_segment_align"] >= 4, "arguments are not aligned"),
        (kernel.local_bytes == facts[".group_segment_fixed_size"], "workgroup memory differs"),
        (kernel.local_bytes <= _LOCAL_LIMIT, f"{kernel.local_bytes} bytes of workgroup memory"),
        (kernel.private_bytes == scratch, "scratch differs"),
        (wave == facts[".wavefront_size"], "wave sizes differ"),
        (wave == (64 if found.arch.startswith("gfx9") else 32), f"waves of {wave}"),
        (kernel.num_vectors >= facts[".vgpr_count"], "fewer vector registers than it uses"),
        (set(kernel.asks) <= _GIVEN, f"it asks for {kernel.asks}"),
        (kinds <= _FILLED, f"arguments of kinds {sorted(kinds - _FILLED)}"),
        (facts[".sgpr_spill_count"] == 0 == facts[".vgpr_spill_count"], "registers are spilled"),
    ]
    return [text for good, text in rules if not good]
