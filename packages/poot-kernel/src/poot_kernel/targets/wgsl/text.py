"""WGSL spellings: literals, types of machine values, and conversions that WGSL leaves open."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import numpy as np

from poot_core import DType, UnsupportedError
from poot_kernel.targets.common.machine import kind_of

__all__ = ["HELPERS", "literal", "type_of", "used_helpers"]

# Rounding of packing to half is left to the driver, and many flush what is subnormal in half.
HELPERS = {
    "from_half": """\
fn from_half(h: u32) -> f32 {
  let rest = h & 0x7fffu;
  var bits = (rest << 13u) + 0x38000000u;
  if (rest >= 0x7c00u) { bits = (rest << 13u) | 0x7f800000u; }
  if (rest < 0x400u) { bits = bitcast<u32>(f32(rest) * 5.9604645e-08f); }
  return bitcast<f32>(bits | ((h & 0x8000u) << 16u));
}
""",
    "to_half": """\
fn to_half(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let rest = bits & 0x7fffffffu;
  var half = (rest - 0x38000000u + 0xfffu + ((rest >> 13u) & 1u)) >> 13u;
  if (rest >= 0x477ff000u) { half = 0x7c00u; }
  if (rest > 0x7f800000u) { half = 0x7e00u; }
  if (rest < 0x38800000u) {
    let shift = min(126u - (rest >> 23u), 25u);
    let value = (rest & 0x7fffffu) | 0x800000u;
    let low = value & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    half = value >> shift;
    if (low > tie || (low == tie && (half & 1u) == 1u)) { half += 1u; }
  }
  return half | ((bits >> 16u) & 0x8000u);
}
""",
    "to_bfloat": """\
fn to_bfloat(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0x7fc0u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
""",
    "multiply_high": """\
fn multiply_high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}
""",
    "exchange_shared": """\
fn exchange_shared(i: u32, old: u32, next: u32) -> vec2<u32> {
  let done = atomicCompareExchangeWeak(&shared_memory[i], old, next);
  return vec2<u32>(done.old_value, select(0u, 1u, done.exchanged));
}
""",
    "dot_mixed": """\
fn dot_mixed(a: u32, b: u32) -> i32 {
  return dot(unpack4xI8(a), vec4<i32>(unpack4xU8(b)));
}
""",
}
"""Functions that kernels call, by name."""


def used_helpers(lines: Iterable[str]) -> str:
    """Return the helpers that some lines call."""
    text = "\n".join(lines)
    return "".join(code for name, code in HELPERS.items() if f"{name}(" in text)


def type_of(dtype: DType) -> str:
    """Return the WGSL type of a machine value; integers are unsigned, operations choose the sign."""
    return {"boolean": "bool", "float": "f32"}.get(kind_of(dtype), "u32")


def literal(value: float, dtype: DType) -> str:
    """Return a number's spelling.

    Raises:
        UnsupportedError: If an integer does not fit the 32 bits that WGSL has.
    """
    kind = kind_of(dtype)
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "float":
        return _float(value)
    whole = int(value)
    if not -(1 << 31) <= whole < 1 << 32:
        raise UnsupportedError(
            f"WGSL integers have 32 bits; the constant {whole} of {dtype.name} does not fit"
        )
    return f"{whole & 0xFFFFFFFF}u"


def _float(value: float) -> str:
    single = np.float32(value)
    is_plain = math.isfinite(float(single)) and (single == 0 or abs(single) >= 2.0**-126)
    if not is_plain or (single == 0 and math.copysign(1, value) < 0):
        (bits,) = struct.unpack("<I", struct.pack("<f", single))
        return f"bitcast<f32>(0x{bits:08x}u)"
    text = f"{single}f"
    return f"({text})" if text.startswith("-") else text
