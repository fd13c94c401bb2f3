"""The table of formats: one row each. To add a format, write its unpacker and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from poot_core import UnsupportedError
from poot_quant import _codebook, _grid, _simple, _superblock
from poot_quant._format import Field, QuantFormat, Role, Unpacker

__all__ = ["FORMATS", "format_by_ggml_type", "format_by_name"]

Layout = tuple[tuple[str, Role, int], ...]
Codes = range | tuple[int, ...]

_SCALE, _MIN, _GROUPS = Role.SCALE, Role.MIN, Role.GROUP_SCALES
_CODES, _HIGH, _SIGNS, _GRID = Role.CODES, Role.HIGH_BITS, Role.SIGNS, Role.GRID_INDEX

_IQ2_VALUES = (-43, -25, -8, 8, 25, 43)
_IQ3_XXS_VALUES = (-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62)
_IQ3_S_VALUES = tuple(range(-15, 16, 2))
_IQ1_VALUES = (-9, -7, -1, 1, 7, 9)
_E2M1_VALUES = tuple(sorted(set(_codebook.E2M1_DOUBLED)))


def _row(
    name: str,
    ggml_type: int,
    elements: int,
    group: int,
    codes: Codes,
    layout: Layout,
    unpacker: Unpacker,
) -> QuantFormat:
    fields: list[Field] = []
    offset = 0
    for field_name, role, num_bytes in layout:
        fields.append(Field(field_name, role, offset, num_bytes))
        offset += num_bytes
    return QuantFormat(
        name=name,
        ggml_type=ggml_type,
        block_elements=elements,
        block_bytes=offset,
        group=group,
        fields=tuple(fields),
        code_min=min(codes),
        code_max=max(codes),
        code_values=tuple(codes) if len(codes) <= 16 else None,
        has_min=any(field.role is Role.MIN for field in fields),
        unpacker=unpacker,
    )


_ROWS = (
    _row("Q4_0", 2, 32, 32, range(-8, 8),
         (("d", _SCALE, 2), ("qs", _CODES, 16)), _simple.unpack_four_bit),
    _row("Q4_1", 3, 32, 32, range(16),
         (("d", _SCALE, 2), ("m", _MIN, 2), ("qs", _CODES, 16)), _simple.unpack_four_bit),
    _row("Q5_0", 6, 32, 32, range(-16, 16),
         (("d", _SCALE, 2), ("qh", _HIGH, 4), ("qs", _CODES, 16)), _simple.unpack_four_bit),
    _row("Q5_1", 7, 32, 32, range(32),
         (("d", _SCALE, 2), ("m", _MIN, 2), ("qh", _HIGH, 4), ("qs", _CODES, 16)),
         _simple.unpack_four_bit),
    _row("Q8_0", 8, 32, 32, range(-128, 128),
         (("d", _SCALE, 2), ("qs", _CODES, 32)), _simple.unpack_q8_0),
    _row("Q2_K", 10, 256, 16, range(4),
         (("scales", _GROUPS, 16), ("qs", _CODES, 64), ("d", _SCALE, 2), ("dmin", _MIN, 2)),
         _superblock.unpack_q2_k),
    _row("Q3_K", 11, 256, 16, range(-4, 4),
         (("hmask", _HIGH, 32), ("qs", _CODES, 64), ("scales", _GROUPS, 12), ("d", _SCALE, 2)),
         _superblock.unpack_q3_k),
    _row("Q4_K", 12, 256, 32, range(16),
         (("d", _SCALE, 2), ("dmin", _MIN, 2), ("scales", _GROUPS, 12), ("qs", _CODES, 128)),
         _superblock.unpack_q4_k),
    _row("Q5_K", 13, 256, 32, range(32),
         (("d", _SCALE, 2), ("dmin", _MIN, 2), ("scales", _GROUPS, 12), ("qh", _HIGH, 32),
          ("qs", _CODES, 128)), _superblock.unpack_q5_k),
    _row("Q6_K", 14, 256, 16, range(-32, 32),
         (("ql", _CODES, 128), ("qh", _HIGH, 64), ("scales", _GROUPS, 16), ("d", _SCALE, 2)),
         _superblock.unpack_q6_k),
    _row("IQ2_XXS", 16, 256, 32, _IQ2_VALUES,
         (("d", _SCALE, 2), ("qs", _GRID, 64)), _grid.unpack_iq2_xxs),
    _row("IQ2_XS", 17, 256, 16, _IQ2_VALUES,
         (("d", _SCALE, 2), ("qs", _GRID, 64), ("scales", _GROUPS, 8)), _grid.unpack_iq2_xs),
    _row("IQ3_XXS", 18, 256, 32, _IQ3_XXS_VALUES,
         (("d", _SCALE, 2), ("qs", _GRID, 64), ("control", _SIGNS, 32)), _grid.unpack_iq3_xxs),
    _row("IQ1_S", 19, 256, 32, _IQ1_VALUES,
         (("d", _SCALE, 2), ("qs", _GRID, 32), ("qh", _HIGH, 16)), _grid.unpack_iq1_s),
    _row("IQ4_NL", 20, 32, 32, _codebook.IQ4_VALUES,
         (("d", _SCALE, 2), ("qs", _CODES, 16)), _codebook.unpack_iq4_nl),
    _row("IQ3_S", 21, 256, 32, _IQ3_S_VALUES,
         (("d", _SCALE, 2), ("qs", _GRID, 64), ("qh", _HIGH, 8), ("signs", _SIGNS, 32),
          ("scales", _GROUPS, 4)), _grid.unpack_iq3_s),
    _row("IQ2_S", 22, 256, 16, _IQ2_VALUES,
         (("d", _SCALE, 2), ("qs", _GRID, 32), ("signs", _SIGNS, 32), ("qh", _HIGH, 8),
          ("scales", _GROUPS, 8)), _grid.unpack_iq2_s),
    _row("IQ4_XS", 23, 256, 32, _codebook.IQ4_VALUES,
         (("d", _SCALE, 2), ("scales_h", _GROUPS, 2), ("scales_l", _GROUPS, 4),
          ("qs", _CODES, 128)), _codebook.unpack_iq4_xs),
    _row("IQ1_M", 29, 256, 16, _IQ1_VALUES,
         (("qs", _GRID, 32), ("qh", _HIGH, 16), ("scales", _GROUPS, 8)), _grid.unpack_iq1_m),
    _row("TQ1_0", 34, 256, 32, (-1, 0, 1),
         (("qs", _CODES, 48), ("qh", _CODES, 4), ("d", _SCALE, 2)), _codebook.unpack_tq1_0),
    _row("TQ2_0", 35, 256, 32, (-1, 0, 1, 2),
         (("qs", _CODES, 64), ("d", _SCALE, 2)), _codebook.unpack_tq2_0),
    _row("MXFP4", 39, 32, 32, _E2M1_VALUES,
         (("e", _SCALE, 1), ("qs", _CODES, 16)), _codebook.unpack_mxfp4),
    _row("NVFP4", 40, 64, 16, _E2M1_VALUES,
         (("d", _SCALE, 4), ("qs", _CODES, 32)), _codebook.unpack_nvfp4),
)  # fmt: skip

FORMATS: Mapping[str, QuantFormat] = MappingProxyType({row.name: row for row in _ROWS})
"""Every packed format, by name."""

_BY_TYPE = {row.ggml_type: row for row in _ROWS}


def format_by_name(name: str) -> QuantFormat:
    """Return the format called ``name``.

    Raises:
        UnsupportedError: If there is none.

    >>> format_by_name("Q4_K").group
    32
    """
    if (found := FORMATS.get(name)) is None:
        raise UnsupportedError(f"no packed format is called {name!r}; known are {sorted(FORMATS)}")
    return found


def format_by_ggml_type(number: int) -> QuantFormat:
    """Return the format with this type number in GGUF files.

    Raises:
        UnsupportedError: If there is none.

    >>> format_by_ggml_type(12)
    Q4_K
    """
    if (found := _BY_TYPE.get(number)) is None:
        raise UnsupportedError(
            f"ggml type {number} is no packed format of poot; known are "
            f"{ {kind: row.name for kind, row in _BY_TYPE.items()} }"
        )
    return found
