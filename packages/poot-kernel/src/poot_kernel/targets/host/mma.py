"""Products of tiles: which lanes of the operands meet in which instruction."""

from __future__ import annotations

from typing import cast

import numpy as np

from poot_core import UnsupportedError, f32
from poot_kernel.ir.core import Op
from poot_kernel.ir.types import TileType
from poot_kernel.targets.host.convert import convert
from poot_kernel.targets.host.emitter import Val
from poot_kernel.targets.host.lowering import Lowering
from poot_kernel.targets.host.products import dot_bytes, dot_pairs
from poot_kernel.targets.host.tiles import Coordinates, RegisterTile, Tile

__all__ = ["lower_mma"]


def _lanes(lowering: Lowering, columns: int) -> int:
    lanes = lowering.machine.lanes(32)
    while columns % lanes:
        lanes //= 2
    return lanes


def _left(row: int, k: int, group: int, lanes: int) -> Coordinates:
    """Coordinates of ``group`` values of k of one row, repeated for every lane."""
    one = np.stack([np.full(group, row), k + np.arange(group)], axis=1)
    return np.tile(one, (lanes, 1)).astype(np.int64)


def _right(k: int, column: int, group: int, lanes: int) -> Coordinates:
    """Coordinates of ``group`` values of k for each of the lanes' columns."""
    ks = np.tile(k + np.arange(group), lanes)
    columns = np.repeat(column + np.arange(lanes), group)
    return np.stack([ks, columns], axis=1).astype(np.int64)


def lower_mma(lowering: Lowering, op: Op) -> None:
    """Lower a product: columns lie in lanes, k ascends, every accumulator is one chain.

    Raises:
        UnsupportedError: For signatures of tensor cores.
    """
    a, b, acc = (cast("Tile", lowering.get(v)) for v in op.operands)
    (rows, depth), columns = a.type.shape, b.type.shape[1]
    lanes = _lanes(lowering, columns)
    group = _group(op, a.type, b.type)
    if depth % group:
        raise UnsupportedError(
            f"a product over k={depth} of {a.dtype.name} needs groups of {group}"
        )
    starts = range(0, columns, lanes)
    blocks = [
        np.stack([np.full(lanes, m), n + np.arange(lanes)], axis=1).astype(np.int64)
        for m in range(rows)
        for n in starts
    ]
    sums = [acc.get(lowering, block) for block in blocks]
    for k in range(0, depth, group):
        rights = [b.get(lowering, _right(k, n, group, lanes)) for n in starts]
        for m in range(rows):
            left = a.get(lowering, _left(m, k, group, lanes))
            for number, right in enumerate(rights):
                at = m * len(starts) + number
                sums[at] = _step(lowering, group, a, b, (left, right, sums[at]))
    found = op.result.type
    assert isinstance(found, TileType)
    lowering.set(op.result, RegisterTile(found, blocks, sums, lowering.scope))


def _group(op: Op, a: TileType, b: TileType) -> int:
    signature = op.attributes["signature"]
    integers = a.dtype.is_integer
    if signature == "native":
        signature = "exact" if integers else "fma_chain" if a.dtype is not b.dtype else "pair_chain"
        signature = "fma_chain" if a.dtype is f32 else signature
    if integers and signature == "exact":
        return 4
    if signature == "fma_chain" and not integers:
        return 1
    if signature == "pair_chain" and a.dtype is b.dtype and a.dtype.bits == 16:
        return 2
    raise UnsupportedError(
        f"the host has no product of signature {signature!r} for {a.dtype.name} x {b.dtype.name}; "
        "it has exact, fma_chain and pair_chain"
    )


def _step(lowering: Lowering, group: int, a: Tile, b: Tile, values: tuple[Val, Val, Val]) -> Val:
    e, (left, right, total) = lowering.emitter, values
    if group == 4:
        signed = a.dtype.kind == "int", b.dtype.kind == "int"
        return dot_bytes(e, lowering.machine, left, right, total, signed)
    if group == 2:
        return dot_pairs(e, lowering.machine, left, right, total, a.dtype)
    x, y = convert(e, left, f32), convert(e, right, f32)
    return e.overloaded("fma", y, x, total)
