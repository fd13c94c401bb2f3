"""The parts that all contraction kernels share: parameters, rows, epilogue, result."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import bf16, dtype_by_name, f32, i8, i64, u8
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction._codec import ROWS, STEP
from poot_kernelgen.contraction._epilogue import apply_nodes
from poot_kernelgen.contraction._shapes import shape_of
from poot_kernelgen.requests import EIGHT_BIT, WITH_RESIDUAL, ContractionRequest

__all__ = ["Frame", "open_frame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A contraction kernel under construction.

    Attributes:
        b: Its builder.
        request: What it answers.
        weight: Raw packed weight.
        x: Activation arrays: (M, K), or codes, scales and scaled sums, residual codes and scales.
        inputs: Epilogue arrays.
        y: The result, (M, N).
        m: Rows.
        n: Results of a row.
        k: Length of the sums.
    """

    b: IRBuilder
    request: ContractionRequest
    weight: Value
    x: tuple[Value, ...]
    inputs: tuple[Value, ...]
    y: Value
    m: Value
    n: Value
    k: Value

    def rows(self, start: Value, count: int) -> Value:
        """Return the numbers of ``count`` rows from a start; those beyond M repeat the last one."""
        b = self.b
        last = b.sub(self.m, 1)
        return b.map(lambda i: b.minimum(b.add(i, start), last), b.tile_iota((count,), 0, i64))

    def activation(self, number: int, rows: Value, column: Value, width: int) -> Value:
        """Return a (rows, width) tile of activation array ``number``."""
        return self.b.copy_rows(self.x[number], rows, column, (width,))

    @property
    def in_bytes(self) -> bool:
        """Whether activations are rounded to 8 bits."""
        return self.request.activation in EIGHT_BIT

    @property
    def has_residual(self) -> bool:
        """Whether some blocks keep what rounding lost."""
        return self.request.activation in WITH_RESIDUAL

    @property
    def is_lifted(self) -> bool:
        """Whether 8-bit activations come as u8, 128 more than they are."""
        return self.request.activation == "u8r"

    def step_activations(self, rows: Value, step: Value, column: Value) -> list[Value]:
        """Return the tiles of the activation arrays for a step of 32 k, without residuals."""
        tiles = [self.activation(0, rows, column, STEP)]
        if self.in_bytes:
            tiles += [self.activation(number, rows, step, 1) for number in (1, 2)]
        return tiles

    def step_residuals(self, rows: Value, step: Value, column: Value) -> list[Value]:
        """Return the tiles of the residuals, if there are any: codes and scales."""
        if not self.has_residual:
            return []
        return [self.activation(3, rows, column, STEP), self.activation(4, rows, step, 1)]

    def finish(self, sums: list[Value], row: Value, column: Value) -> None:
        """Apply the epilogue to (rows, columns) accumulators and store the result at (row, column).

        What lies outside of the result is neither read nor written.
        """
        b = self.b
        shape = shape_of(sums[0])
        tiles = list(sums)
        for kind, array in zip(self.request.epilogue.inputs, self.inputs, strict=True):
            if kind == "column":
                vector = b.copy(array, column, (shape[1],), bounds="masked")
                tiles.append(b.reshape(vector, (1, shape[1])))
            else:
                tiles.append(b.copy(array, [row, column], shape, bounds="masked"))
        result = apply_nodes(b, self.request.epilogue, tiles)
        dtype = dtype_by_name(self.request.result_dtype)
        if dtype is not f32:
            result = b.tile_convert(result, dtype)
        b.store_tile(self.y, result, [row, column], bounds="masked")


def open_frame(request: ContractionRequest, name: str, grid: list[str]) -> Frame:
    """Declare the parameters of a contraction kernel in the request's order."""
    b = IRBuilder(name, level="tile", grid=grid)
    weight = b.raw("weight")
    if request.activation in EIGHT_BIT:
        code = u8 if request.activation == "u8r" else i8
        blocks = f"K // {STEP}"
        x = (
            b.array("x", code, ["M", "K"]),
            b.array("x_scales", f32, ["M", blocks]),
            b.array("x_sums", f32, ["M", blocks]),
        )
        if request.activation != "i8":
            x += (b.array("x_lost", code, ["M", "K"]), b.array("x_lost_scales", f32, ["M", blocks]))
    else:
        x = (b.array("x", bf16 if request.activation == "bf16" else f32, ["M", "K"]),)
    inputs = tuple(
        b.array(f"epilogue{number}", f32, ["N"] if kind == "column" else ["M", "N"])
        for number, kind in enumerate(request.epilogue.inputs)
    )
    dtype = dtype_by_name(request.result_dtype)
    y = b.array("y", dtype, ["M", "N"], strides=["y_stride", 1], access="w")
    m, n, k = b.scalar("M"), b.scalar("N"), b.scalar("K")
    b.scalar("y_stride")
    assert ROWS % 4 == 0
    return Frame(b=b, request=request, weight=weight, x=x, inputs=inputs, y=y, m=m, n=n, k=k)
