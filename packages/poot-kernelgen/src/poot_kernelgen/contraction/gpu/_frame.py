"""What all contraction kernels for GPUs share: parameters, the epilogue, storing results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_core import bf16, dtype_by_name, f32
from poot_kernel import IRBuilder, Value
from poot_kernelgen.contraction._codec import ROWS, STEP
from poot_kernelgen.contraction._epilogue import apply_to_values
from poot_kernelgen.requests import ContractionRequest

__all__ = ["Frame", "open_frame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A contraction kernel under construction.

    Attributes:
        b: Its builder.
        request: What it answers.
        weight: Raw packed weight.
        x: Activation arrays, in the request's order; 8-bit codes as bytes.
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

    @property
    def in_bytes(self) -> bool:
        """Whether activations are rounded to 8 bits."""
        return self.request.activation in {"i8", "i8r"}

    @property
    def halves(self) -> int:
        """Weight rows of one result."""
        return 2 if self.request.gated else 1

    def weight_row(self, column: Value, half: int) -> Value:
        """Return the weight row of a result: halves of a gated pair alternate by 16 rows."""
        b = self.b
        if not self.request.gated:
            return column
        group, rest = b.shr(column, 4), b.and_(column, ROWS - 1)
        return b.add(b.add(b.shl(group, 5), half * ROWS), rest)

    def store(self, sums: Sequence[Value], row: Value, column: Value, mask: Value) -> None:
        """Apply the epilogue to one result's sums and store it where the mask holds."""
        b = self.b
        with b.if_(mask) as branch, branch.then():
            values = list(sums)
            for kind, array in zip(self.request.epilogue.inputs, self.inputs, strict=True):
                values.append(b.load(array, column if kind == "column" else [row, column]))
            result = apply_to_values(b, self.request.epilogue, values)
            dtype = dtype_by_name(self.request.result_dtype)
            b.store(self.y, [row, column], b.convert(result, dtype) if dtype is not f32 else result)


def open_frame(request: ContractionRequest, name: str, grid: Sequence[str], threads: int) -> Frame:
    """Declare the parameters of a contraction kernel in the request's order."""
    b = IRBuilder(name, level="lane", grid=grid, workgroup_size=threads)
    weight = b.raw("weight")
    if request.activation in {"i8", "i8r"}:
        blocks = f"K // {STEP}"
        # Codes are read as words: they are declared as bytes.
        x = (
            b.raw("x"),
            b.array("x_scales", f32, ["M", blocks]),
            b.array("x_sums", f32, ["M", blocks]),
        )
        if request.activation == "i8r":
            x += (b.raw("x_lost"), b.array("x_lost_scales", f32, ["M", blocks]))
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
    return Frame(b=b, request=request, weight=weight, x=x, inputs=inputs, y=y, m=m, n=n, k=k)
