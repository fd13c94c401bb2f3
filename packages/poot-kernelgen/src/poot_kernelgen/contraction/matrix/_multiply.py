"""Products of bf16 rows and weights by tiles: groups of 16 k, a fresh sum every 1024, added in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poot_core import DeviceCaps, Target, bf16, dtype_by_name, f32
from poot_kernel import IRBuilder, KernelFunction, Value
from poot_kernelgen.contraction._epilogue import apply_nodes
from poot_kernelgen.requests import ContractionRequest

__all__ = ["FEATURE", "build_matrix", "suits_matrix"]

FEATURE = "mma-k16"
"""Feature of targets whose matrix instructions add groups of 16 k the same way at every tile shape."""

_SIGNATURES = {False: "k16_chunk1024", True: "k16"}
"""By whether a weight is wide: its rows alone give every multiprocessor work then, and a single chain is
the fastest for many rows."""

GROUP = 16  # weight rows of one half of a gated pair that stand together
DEPTH = 64  # k of a step: K is a multiple


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows of x, rows of w, and steps in flight at most."""

    rows: int
    columns: int
    stages: int


# One row or a few: each subgroup streams weights of its own; x waits beside them. Otherwise: a
# workgroup's tile, as large as registers hold twice (a chunk's sums and all chunks').
_TILES = {
    "one": _Tile(8, 16, 10),
    "few": _Tile(8, 16, 8),
    "some": _Tile(64, 64, 6),
    "many": _Tile(128, 64, 6),
}
_SMALL = {"many": _Tile(64, 128, 6)}  # where a workgroup's memory is under 128 KiB
_GATED = {"one": _Tile(8, 32, 4), "few": _Tile(8, 32, 4)}
_WIDE = _Tile(128, 64, 4)
# Steps in flight of one row, of a few, and of a few by gated pairs.
_STAGES_OF_ONE = {"few": 6, "many": 10, "all": 16}
_STAGES_OF_FEW = {"few": 5, "many": 8, "all": 8}
_STAGES_OF_PAIRS = {"few": 5, "many": 9, "all": 9}
_PADDED_ROW = 2 * DEPTH + 16  # bytes of a step's row in workgroup memory, at most


def suits_matrix(request: ContractionRequest, target: Target) -> bool:
    """Whether these kernels answer a request: bf16 on both sides, weights row by row."""
    weight = request.weight
    return (
        FEATURE in target.features
        and weight.order == "rows"
        and weight.source == "bf16"
        and request.activation == "bf16"
        and (weight.interleave == GROUP or not request.gated)
    )


def build_matrix(request: ContractionRequest, name: str, caps: DeviceCaps) -> KernelFunction:
    """Return the kernel of a contraction; K is a multiple of 64."""
    tile = _TILES[request.regime]
    if caps.shared_bytes < 128 << 10:
        tile = _SMALL.get(request.regime, tile)
    if request.is_wide and request.regime == "many" and caps.shared_bytes > 128 << 10:
        tile = _WIDE
    if request.gated:
        tile = _GATED.get(request.regime, tile)
    if request.regime == "one":
        tile = replace(tile, stages=_STAGES_OF_ONE[request.flight])
    elif request.regime == "few":
        stages = _STAGES_OF_PAIRS if request.gated else _STAGES_OF_FEW
        tile = replace(tile, stages=stages[request.flight])
    # A single row is repeated for the instruction, which takes eight.
    held = 1 if request.regime == "one" else tile.rows
    stages = _stages(tile, held, caps, gated=request.gated)
    wide = tile.columns // 2 if request.gated else tile.columns
    grid = [f"ceildiv(N, {wide})", f"ceildiv(M, {tile.rows})"]
    b = IRBuilder(name, level="tile", grid=grid)
    weight_rows = f"ceildiv(N, {GROUP}) * {2 * GROUP if request.gated else GROUP}"
    weight = b.array("weight", bf16, [weight_rows, "K"], alignment=16)
    x = b.array("x", bf16, ["M", "K"], alignment=16)
    inputs = [
        b.array(f"epilogue{i}", f32, ["N"] if kind == "column" else ["M", "N"], alignment=16)
        for i, kind in enumerate(request.epilogue.inputs)
    ]
    dtype = dtype_by_name(request.result_dtype)
    y = b.array("y", dtype, ["M", "N"], strides=["y_stride", 1], access="w", alignment=16)
    b.scalar("M")
    b.scalar("N")
    k_end = b.scalar("K")
    b.scalar("y_stride")
    depth = b.assume_multiple(k_end, DEPTH)
    row = b.mul(b.workgroup_id(1), tile.rows)
    first = b.mul(b.workgroup_id(0), tile.columns)
    sums = b.tile_zeros((tile.rows, tile.columns), f32)
    with b.pipeline(0, depth, DEPTH, [sums], stages=stages) as pipe:
        with pipe.load() as k:
            left = b.copy(x, [row, k], (held, DEPTH), bounds="masked")
            # Rows beyond the last group are nobody's: tiles of more than a group are masked.
            whole = tile.columns == (2 * GROUP if request.gated else GROUP)
            right = b.copy(
                weight, [first, k], (tile.columns, DEPTH), bounds="full" if whole else "masked"
            )
            pipe.yield_(left, right)
        with pipe.compute() as (left, right):
            (carried,) = pipe.carried
            if held < tile.rows:
                left = b.broadcast(left, (tile.rows, DEPTH))
            pipe.yield_(
                b.mma(left, b.transpose(right), carried, signature=_SIGNATURES[request.is_wide])
            )
    frame = _Results(b, request, inputs, y, row, b.mul(b.workgroup_id(0), wide))
    frame.finish(pipe.result, tile)
    return b.finish()


def _stages(tile: _Tile, held: int, caps: DeviceCaps, *, gated: bool) -> int:
    """Return the steps in flight: as many as a workgroup's memory holds.

    Halves of a gated pair may have to change hands through it at the end.
    """
    step = (held + tile.columns) * _PADDED_ROW
    halves = tile.rows * (4 * tile.columns + 16) if gated else 0
    return max(2, min(tile.stages, (caps.shared_bytes - halves) // step))


@dataclass(frozen=True, slots=True)
class _Results:
    """Where sums go."""

    b: IRBuilder
    request: ContractionRequest
    inputs: list[Value]
    y: Value
    row: Value
    column: Value

    def finish(self, sums: Value, tile: _Tile) -> None:
        """Apply the epilogue and store; halves of a gated pair alternate by groups of columns."""
        if not self.request.gated:
            self._piece([sums], tile.rows, tile.columns, 0)
            return
        for number in range(tile.columns // (2 * GROUP)):
            halves = [
                self.b.slice(sums, (0, (2 * number + half) * GROUP), (tile.rows, GROUP))
                for half in range(2)
            ]
            self._piece(halves, tile.rows, GROUP, number * GROUP)

    def _piece(self, sums: list[Value], rows: int, columns: int, offset: int) -> None:
        b = self.b
        column = b.add(self.column, offset) if offset else self.column
        tiles = list(sums)
        for kind, array in zip(self.request.epilogue.inputs, self.inputs, strict=True):
            if kind == "column":
                vector = b.copy(array, column, (columns,), bounds="masked")
                tiles.append(b.reshape(vector, (1, columns)))
            else:
                found = b.copy(array, [self.row, column], (rows, columns), bounds="masked")
                tiles.append(found)
        result = apply_nodes(b, self.request.epilogue, tiles)
        dtype = dtype_by_name(self.request.result_dtype)
        if dtype is not f32:
            result = b.tile_convert(result, dtype)
        b.store_tile(self.y, result, [self.row, column], bounds="masked")
