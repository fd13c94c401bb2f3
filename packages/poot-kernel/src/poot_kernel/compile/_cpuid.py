"""Processor features where there is no /proc/cpuinfo: the cpuid instruction, or macOS' sysctl."""

from __future__ import annotations

import ctypes
import mmap
import struct

__all__ = ["cpuid_features", "sysctl_features"]

# void stub(u32 leaf /*edi*/, u32 subleaf /*esi*/, u32 *out /*rdx*/): cpuid, then store eax..edx.
_CPUID = bytes.fromhex(
    "53 49 89 d0 89 f8 89 f1 0f a2 41 89 00 41 89 58 04 41 89 48 08 41 89 50 0c 5b c3"
)
# u64 stub(): xgetbv of register 0, what vector state the operating system saves.
_XGETBV = bytes.fromhex("31 c9 0f 01 d0 48 c1 e2 20 48 09 d0 c3")

# Intel SDM volume 2A, table 3-8; AMD APM volume 3, appendix E: (leaf, subleaf, register, bit).
_BITS = {
    "sse4_2": (1, 0, 2, 20), "popcnt": (1, 0, 2, 23), "fma": (1, 0, 2, 12), "movbe": (1, 0, 2, 22),
    "f16c": (1, 0, 2, 29), "avx2": (7, 0, 1, 5), "bmi1": (7, 0, 1, 3), "bmi2": (7, 0, 1, 8),
    "avx512f": (7, 0, 1, 16), "avx512dq": (7, 0, 1, 17), "avx512cd": (7, 0, 1, 28),
    "avx512bw": (7, 0, 1, 30), "avx512vl": (7, 0, 1, 31),
    "avx512_vbmi2": (7, 0, 2, 6), "gfni": (7, 0, 2, 8), "avx512_vnni": (7, 0, 2, 11),
    "avx512_fp16": (7, 0, 3, 23), "avx_vnni": (7, 1, 0, 4), "avx512_bf16": (7, 1, 0, 5),
    "abm": (0x80000001, 0, 2, 5),
}  # fmt: skip
_NEEDS_AVX = {"avx2", "fma", "f16c", "avx_vnni"}
_OSXSAVE = (1, 0, 2, 27)
_AVX_STATE, _AVX512_STATE = 0x6, 0xE6


def cpuid_features() -> frozenset[str]:
    """Return Linux's names of the x86-64 features that processor and operating system offer."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(_CPUID + bytes(64 - len(_CPUID)) + _XGETBV)
    exported = ctypes.c_char.from_buffer(memory)
    base = ctypes.addressof(exported)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, mmap.PAGESIZE, 5) != 0:
        return frozenset()
    run = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(base)
    registers = (ctypes.c_uint32 * 4)()

    def has(leaf: int, subleaf: int, register: int, bit: int) -> bool:
        run(leaf & 0x80000000, 0, ctypes.addressof(registers))
        if registers[0] < leaf:
            return False
        run(leaf, subleaf, ctypes.addressof(registers))
        return bool(registers[register] >> bit & 1)

    state = ctypes.CFUNCTYPE(ctypes.c_uint64)(base + 64)() if has(*_OSXSAVE) else 0
    found: set[str] = set()
    for name, where in _BITS.items():
        needed = (
            _AVX512_STATE if name.startswith("avx512") else _AVX_STATE if name in _NEEDS_AVX else 0
        )
        if state & needed == needed and has(*where):
            found.add(name)
    return frozenset(found)


def sysctl_features() -> frozenset[str]:
    """Return Linux's names of the AArch64 features that macOS reports."""
    query = ctypes.CDLL(None).sysctlbyname
    names = {"FEAT_DotProd": "asimddp", "FEAT_FP16": "asimdhp", "FEAT_I8MM": "i8mm",
             "FEAT_BF16": "bf16"}  # fmt: skip
    found: set[str] = set()
    for apple, linux in names.items():
        value, length = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
        failed = query(f"hw.optional.arm.{apple}".encode(), value, ctypes.byref(length), None, 0)
        if not failed and struct.unpack("<Q", value.raw)[0]:
            found.add(linux)
    return frozenset(found)
