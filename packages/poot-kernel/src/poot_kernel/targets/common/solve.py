"""Layouts of tile values, solved before lowering: products seed them, other operations spread them.

A value that meets a map or a reduction needs to know who holds what; where a target's accumulators
are opaque, only those get a layout and the others stay opaque.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from poot_kernel.ir.core import KernelFunction, Op, Value
from poot_kernel.ir.types import TileType
from poot_kernel.targets.common.fragments import Bit, Fragment, log2
from poot_kernel.targets.common.lowering import Lowering

__all__ = ["reduces_columns", "solve_layouts"]


def solve_layouts(kernel: KernelFunction, low: Lowering) -> dict[Value, Fragment]:
    """Return the layout of every tile value that a product or a map of a product's result ties."""
    ties = [*_ties(kernel)]
    layouts: dict[Value, Fragment] = {}
    products = [op for op in kernel.body.walk() if op.opcode == "mma"]
    for op in products:
        seed = low.products.accumulator(low, op)
        if seed is not None:
            layouts.setdefault(op.result, seed)
            layouts.setdefault(op.operands[2], seed)
        _spread_all(layouts, ties)
    if any(low.products.accumulator(low, op) is None for op in products):
        for op in kernel.body.walk():
            if op.opcode in ("map", "reduce"):
                _seed_opaque(low, op, layouts)
        _spread_all(layouts, ties)
    for op in products:
        for index in range(2):
            value = op.operands[index]
            if value.definition is None or value.definition.opcode not in _COMPUTED:
                continue
            seed = low.products.operand(low, op, index)
            if seed is not None:
                layouts.setdefault(value, seed)
    _spread_all(layouts, ties)
    return layouts


_COMPUTED = ("map", "tile_convert", "transpose", "slice", "interleave")


def reduces_columns(kernel: KernelFunction) -> bool:
    """Whether rows must stay inside of one subgroup because something is reduced along them."""
    return any(op.opcode == "reduce" and op.attributes["axis"] == 1 for op in kernel.body.walk())


def _seed_opaque(low: Lowering, op: Op, layouts: dict[Value, Fragment]) -> None:
    """Give a layout to accumulators that maps touch."""
    for value in (*op.operands, *op.results):
        found = value.type
        assert isinstance(found, TileType)
        if found.space == "accumulator" and len(found.shape) == 2:
            layouts.setdefault(value, low.default_layout(found.shape))


@dataclass(frozen=True, slots=True)
class _Tie:
    """``b`` has ``a``'s layout: restricted to its extents, a part or the whole, or permuted."""

    a: Value
    b: Value
    is_part: bool = False
    order: tuple[int, ...] = ()


def _ties(kernel: KernelFunction) -> list[_Tie]:
    found: list[_Tie] = []
    for group in _kept(kernel):
        found += _all_pairs(group)
    for op in kernel.body.walk():
        if op.opcode in ("map", "tile_convert", "tile_move", "broadcast"):
            found += _all_pairs((*op.operands, *op.results))
        elif op.opcode in ("slice", "interleave"):
            for value in op.operands:
                found += [_Tie(value, op.result, True), _Tie(op.result, value, True)]
        elif op.opcode == "transpose":
            order = cast("tuple[int, ...]", op.attributes["permutation"])
            back = tuple(order.index(axis) for axis in range(len(order)))
            found.append(_Tie(op.operands[0], op.result, order=order))
            found.append(_Tie(op.result, op.operands[0], order=back))
        elif op.opcode == "reduce":
            found.append(_Tie(op.operands[0], op.result))
        elif op.opcode == "mma":
            found += _all_pairs((op.operands[2], op.result))
        elif op.opcode in ("for", "pipeline"):
            body, initial = op.regions[-1], op.operands[3:]
            arguments = body.arguments[1 : 1 + len(initial)]
            yielded = body.terminator.operands
            for group in zip(initial, arguments, yielded, op.results, strict=True):
                found += _all_pairs(group)
    return [t for t in found if _is_tile(t.a) and _is_tile(t.b)]


def _kept(kernel: KernelFunction) -> list[tuple[Value, ...]]:
    """Return what is stored to, and copied from, each block of workgroup memory.

    With one layout each invocation reads what it has written itself.
    """
    found: dict[Value, list[Value]] = {}
    for op in kernel.body.walk():
        if op.opcode not in ("store_tile", "copy"):
            continue
        definition = op.operands[0].definition
        if definition is not None and definition.opcode == "shared_alloc":
            value = op.operands[1] if op.opcode == "store_tile" else op.result
            found.setdefault(op.operands[0], []).append(value)
    return [tuple(dict.fromkeys(values)) for values in found.values()]


def _all_pairs(values: tuple[Value, ...]) -> list[_Tie]:
    return [_Tie(a, b) for a in values for b in values if a is not b]


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, TileType)


def _spread_all(layouts: dict[Value, Fragment], ties: list[_Tie]) -> None:
    changed = True
    while changed:
        changed = False
        for tie in ties:
            known = layouts.get(tie.a)
            if known is None or tie.b in layouts:
                continue
            derived = _derived(known, tie)
            if derived is not None:
                layouts[tie.b] = derived
                changed = True


def _derived(known: Fragment, tie: _Tie) -> Fragment | None:
    assert isinstance(tie.b.type, TileType)
    shape = tie.b.type.shape
    if len(shape) != len(known.shape) or any(e & (e - 1) for e in shape):
        return None
    if tie.order:
        axes = range(len(shape))
        names = {
            Bit(axis, 1 << i): Bit(tie.order.index(axis), 1 << i)
            for axis in axes
            for i in range(log2(known.shape[axis]))
        }
        return known.renamed(shape, names)
    pairs = list(zip(shape, known.shape, strict=True))
    if not tie.is_part:
        return known.restricted(shape) if all(x in (1, y) for x, y in pairs) else None
    if all(x <= y for x, y in pairs):
        return known.narrowed(shape)
    return known.widened(shape) if all(x >= y for x, y in pairs) else None
