"""Maps of bitwise operations on bytes, four elements at a time in a word."""

from __future__ import annotations

from poot_core import u8, u32
from poot_kernel.ir.core import Op, Value
from poot_kernel.targets.common.fragments import Fragment
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.tiles import FragmentTile, Tile

__all__ = ["map_words"]

_EVERY_BYTE = 0x01010101
_BITWISE = ("and", "or", "xor", "shl", "shr", "constant", "yield")


def map_words(low: Lowering, op: Op, tiles: list[Tile], layout: Fragment) -> FragmentTile | None:
    """Return the map's result by whole words; None if its body or its operands do not allow it."""
    (body,) = op.regions
    names = [inner.opcode for inner in body.operations]
    if len(op.results) != 1 or any(name not in _BITWISE for name in names):
        return None
    if any(t.dtype is not u8 or t.shape != layout.shape for t in tiles):
        return None
    if any(
        x.definition is None and x not in body.arguments
        for i in body.operations
        for x in i.operands
    ):
        return None
    held = [tile.fragment(low, layout) for tile in tiles]
    order = held[0].layout
    if any(not t.words or t.layout != order for t in held):
        return None
    results: list[Register] = []
    for words in zip(*(t.words for t in held), strict=True):
        env: dict[Value, Register | int] = dict(zip(body.arguments, words, strict=True))
        for inner in body.operations[:-1]:
            found = _word(low, inner, env)
            if found is None:
                return None
            env[inner.result] = found
        result = env[body.terminator.operands[0]]
        if isinstance(result, int):
            return None
        results.append(result)
    return FragmentTile(order, u8, [], results)


def _word(low: Lowering, op: Op, env: dict[Value, Register | int]) -> Register | int | None:
    if op.opcode == "constant":
        literal = op.attributes["value"]
        return literal if isinstance(literal, int) else None
    a, b = (env.get(v) for v in op.operands)
    ops = low.arithmetic
    if not isinstance(a, Register) or b is None:
        return None
    if op.opcode in ("and", "or", "xor"):
        other = low.machine.constant(b * _EVERY_BYTE, u32) if isinstance(b, int) else b
        return low.machine.binary(op.opcode, a, other)
    if not isinstance(b, int):
        return None
    kept = 0xFF >> b if op.opcode == "shr" else 0xFF << b & 0xFF
    return ops.integer("and", ops.integer(op.opcode, a, b), kept * _EVERY_BYTE)
