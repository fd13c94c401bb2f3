"""How each stored type lies in a weight layout: steps of 32 k for 16 rows, in consumption order.

A group of ``ROWS`` weight rows is one sequential stream. Packed formats cut it into steps of 32 k:

    step    = [group scales] [group offsets] [codes]
    block   = step                                  (a scale per 32 or 16: d, m as f16, e8m0 as a byte)
    super   = [d f16] [dmin f16] step x 8           (256 k: scales and offsets are bytes)

Every field holds its 16 rows side by side. Codes of k = 4 j + c stand four to a 32-bit lane, lanes are
rows: 8 bits j = 0..7 in turn; 4 bits k and k + 16 in one byte; 5 and 6 bits add planes of high bits.
Dense types store k after k (bf16: pairs of k) for 16 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from poot_core import UnsupportedError
from poot_quant import FORMATS, QuantFormat, format_by_name

__all__ = ["ROWS", "STEP", "Codec", "codec_of", "dense_bytes", "is_dense", "takes_lifted"]

ROWS = 16
STEP = 32

ScaleKind = Literal["f16", "e8m0", "super"]

_DENSE = {"f32": 4, "f16": 2, "bf16": 2}
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# Formats whose group scales are d * integer * factor: (signed, factor); None: d alone.
_SUPER: dict[str, tuple[bool, float] | None] = {
    "Q2_K": (False, 1.0), "Q3_K": (True, 1.0), "Q4_K": (False, 1.0), "Q5_K": (False, 1.0),
    "Q6_K": (True, 1.0), "IQ4_XS": (True, 1.0), "IQ2_XXS": (False, 0.125),
    "IQ2_XS": (False, 0.125), "IQ2_S": (False, 0.125), "IQ3_XXS": (False, 0.25),
    "IQ3_S": (False, 1.0), "IQ1_S": (False, 0.125), "IQ1_M": (False, 0.125),
    "TQ1_0": None, "TQ2_0": None,
}  # fmt: skip
_CODE_BYTES = {2: 128, 4: 256, 5: 320, 6: 384, 8: 512}


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One packed format's layout.

    Attributes:
        format: The stored format.
        bits: Stored bits of a code: 2, 4, 5, 6 or 8.
        table: Values of the 16 codes, where a code is an index; else a code is value + zero.
        zero: What is subtracted from an unsigned code (or from a table value made unsigned).
        kind: Where scales come from.
        scale_bytes: Bytes of the group scales (and of the offsets) of one step.
        is_signed: Whether group scales of a superblock are signed bytes.
        factor: What the integer group scales are multiplied by; a power of two.
    """

    format: QuantFormat
    bits: int
    table: tuple[int, ...] | None
    zero: int
    kind: ScaleKind
    scale_bytes: int
    is_signed: bool = False
    factor: float = 1.0

    @property
    def group(self) -> int:
        """Elements that share a scale."""
        return self.format.group

    @property
    def groups(self) -> int:
        """Groups of a step."""
        return STEP // self.format.group

    @property
    def has_min(self) -> bool:
        """Whether groups have an offset."""
        return self.format.has_min

    @property
    def header_bytes(self) -> int:
        """Bytes in front of the steps of a superblock."""
        return (2 * ROWS) * (2 if self.has_min else 1) if self.kind == "super" else 0

    @property
    def offset_bytes(self) -> int:
        """Bytes of the offsets of a step."""
        return self.scale_bytes if self.has_min else 0

    @property
    def code_start(self) -> int:
        """Where the codes start in a step."""
        return self.scale_bytes + self.offset_bytes

    @property
    def step_bytes(self) -> int:
        """Bytes of one step of 16 rows."""
        return self.code_start + _CODE_BYTES[self.bits]

    @property
    def steps(self) -> int:
        """Steps that share a header; 1 without one."""
        return 8 if self.kind == "super" else 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one header and its steps."""
        return self.header_bytes + self.steps * self.step_bytes


def is_dense(source: str) -> bool:
    """Whether a stored type is a dtype rather than a packed format."""
    return source in _DENSE


def dense_bytes(source: str) -> int:
    """Return the bytes of one element of a dense type."""
    return _DENSE[source]


def takes_lifted(source: str) -> bool:
    """Return whether 8-bit products of a format take activations as u8 (``u8r``).

    Codes with a zero in their midst are signed then, at no cost, and groups of 16 want it anyway; where
    codes count up from an offset there is nothing to gain.
    """
    if is_dense(source):
        return False
    codec = codec_of(source)
    return codec.zero != 0 or codec.groups > 1


@cache
def codec_of(source: str) -> Codec:
    """Return the layout of a packed format.

    Raises:
        UnsupportedError: If there is none.
    """
    if source not in FORMATS:
        raise UnsupportedError(
            f"no weight layout for {source!r}; there are f32, f16, bf16 and {sorted(FORMATS)}"
        )
    found = format_by_name(source)
    kind: ScaleKind = "super" if source in _SUPER else "e8m0" if source == "MXFP4" else "f16"
    table = _table(found)
    zero = -min(table) if table else -found.code_min
    groups = STEP // found.group
    facts = _SUPER.get(source)
    scale_bytes = {"super": ROWS * groups, "e8m0": ROWS, "f16": 2 * ROWS * groups}[kind]
    if kind == "super" and facts is None:
        scale_bytes = 0
    signed, factor = facts or (False, 1.0)
    return Codec(
        format=found, bits=_stored_bits(found, table), table=table, zero=zero, kind=kind,
        scale_bytes=scale_bytes, is_signed=signed, factor=factor,
    )  # fmt: skip


def _table(found: QuantFormat) -> tuple[int, ...] | None:
    if found.name in {"MXFP4", "NVFP4"}:
        return _E2M1
    values = found.code_values
    if values is None or values == tuple(range(found.code_min, found.code_max + 1)):
        return None
    return values + (values[-1],) * (16 - len(values))


def _stored_bits(found: QuantFormat, table: tuple[int, ...] | None) -> int:
    if table is not None:
        return 4
    return {3: 4}.get(found.code_bits, found.code_bits)
