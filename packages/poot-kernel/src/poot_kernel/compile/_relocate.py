"""What each relocation kind writes, for x86-64 and AArch64.

Sources: System V ABI AMD64 supplement, table 4.9 "Relocation Types"; ELF for the Arm 64-bit
Architecture (AAELF64), sections 5.7.5 to 5.7.10. Letters as there: S symbol, A addend, P place,
G the symbol's slot in the table of addresses (GOT).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from poot_core import CompileError

__all__ = ["NEEDS_ADDRESS_SLOT", "apply_relocation"]

# R_X86_64_GOTPCREL, GOTPCRELX, REX_GOTPCRELX; R_AARCH64_ADR_GOT_PAGE, LD64_GOT_LO12_NC
NEEDS_ADDRESS_SLOT = {"x86-64": frozenset({9, 41, 42}), "aarch64": frozenset({311, 312})}

Patch = Callable[[memoryview, int, int, int], None]
"""``patch(image, at, place, value)``: value is S + A, or G + A for NEEDS_ADDRESS_SLOT."""


def apply_relocation(
    machine: str, kind: int, image: memoryview, at: int, place: int, value: int
) -> None:
    """Patch ``image`` at byte ``at``, whose address is ``place``.

    Args:
        machine: ``x86-64`` or ``aarch64``.
        kind: Relocation type of that machine.
        image: Writable bytes of the image.
        at: Offset into them.
        place: Address that this offset has.
        value: S + A, or G + A for kinds in NEEDS_ADDRESS_SLOT.

    Raises:
        CompileError: If the kind is unknown or the value does not fit.
    """
    patch = _PATCHES[machine].get(kind)
    if patch is None:
        raise CompileError(
            f"compiled code needs relocation type {kind} of {machine}, which poot's loader "
            f"has not; it has {sorted(_PATCHES[machine])}"
        )
    try:
        patch(image, at, place, value)
    except (struct.error, OverflowError):
        raise CompileError(
            f"relocation type {kind} of {machine} cannot reach {value:#x} from {place:#x}"
        ) from None


def _absolute64(image: memoryview, at: int, place: int, value: int) -> None:
    del place
    struct.pack_into("<Q", image, at, value & 0xFFFFFFFFFFFFFFFF)


def _absolute32(image: memoryview, at: int, place: int, value: int) -> None:
    del place
    struct.pack_into("<I", image, at, value)


def _absolute32_signed(image: memoryview, at: int, place: int, value: int) -> None:
    del place
    struct.pack_into("<i", image, at, value)


def _relative32(image: memoryview, at: int, place: int, value: int) -> None:
    struct.pack_into("<i", image, at, value - place)


def _relative64(image: memoryview, at: int, place: int, value: int) -> None:
    struct.pack_into("<q", image, at, value - place)


def _insert(image: memoryview, at: int, mask: int, bits: int) -> None:
    word = struct.unpack_from("<I", image, at)[0]
    struct.pack_into("<I", image, at, (word & ~mask) | (bits & mask))


def _fits(value: int, bits: int) -> None:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise OverflowError


def _page(image: memoryview, at: int, place: int, value: int) -> None:
    # ADRP: 21 bits of page difference, the low two in bits 30:29, the rest in 23:5.
    pages = (value >> 12) - (place >> 12)
    _fits(pages, 21)
    _insert(image, at, 0x60FFFFE0, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)


def _adr(image: memoryview, at: int, place: int, value: int) -> None:
    distance = value - place
    _fits(distance, 21)
    _insert(image, at, 0x60FFFFE0, (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5)


def _low12(scale: int) -> Patch:
    def patch(image: memoryview, at: int, place: int, value: int) -> None:
        del place
        if value & ((1 << scale) - 1):
            raise OverflowError
        _insert(image, at, 0x003FFC00, (value & 0xFFF) >> scale << 10)

    return patch


def _branch(bits: int, shift: int) -> Patch:
    def patch(image: memoryview, at: int, place: int, value: int) -> None:
        distance = value - place
        if distance & 3:
            raise OverflowError
        _fits(distance >> 2, bits)
        mask = ((1 << bits) - 1) << shift
        _insert(image, at, mask, (distance >> 2) << shift)

    return patch


_PATCHES: dict[str, dict[int, Patch]] = {
    "x86-64": {
        1: _absolute64,  # R_X86_64_64
        2: _relative32,  # PC32
        4: _relative32,  # PLT32
        9: _relative32,  # GOTPCREL
        10: _absolute32,  # 32
        11: _absolute32_signed,  # 32S
        24: _relative64,  # PC64
        41: _relative32,  # GOTPCRELX
        42: _relative32,  # REX_GOTPCRELX
    },
    "aarch64": {
        257: _absolute64,  # R_AARCH64_ABS64
        258: _absolute32,  # ABS32
        260: _relative64,  # PREL64
        261: _relative32,  # PREL32
        274: _adr,  # ADR_PREL_LO21
        275: _page,  # ADR_PREL_PG_HI21
        276: _page,  # ADR_PREL_PG_HI21_NC
        277: _low12(0),  # ADD_ABS_LO12_NC
        278: _low12(0),  # LDST8_ABS_LO12_NC
        279: _branch(14, 5),  # TSTBR14
        280: _branch(19, 5),  # CONDBR19
        282: _branch(26, 0),  # JUMP26
        283: _branch(26, 0),  # CALL26
        284: _low12(1),  # LDST16_ABS_LO12_NC
        285: _low12(2),  # LDST32_ABS_LO12_NC
        286: _low12(3),  # LDST64_ABS_LO12_NC
        299: _low12(4),  # LDST128_ABS_LO12_NC
        311: _page,  # ADR_GOT_PAGE
        312: _low12(3),  # LD64_GOT_LO12_NC
    },
}
