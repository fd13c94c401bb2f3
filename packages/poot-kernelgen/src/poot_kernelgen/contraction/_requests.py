"""Which kernel answers a contraction, packing or gathering request."""

from __future__ import annotations

import hashlib

from poot_core import DeviceCaps, Target, UnsupportedError
from poot_kernel import KernelFunction, scratch_size
from poot_kernelgen._answers import gpu_answer
from poot_kernelgen._generate import GeneratedKernel, GridAxis
from poot_kernelgen.contraction import gpu
from poot_kernelgen.contraction._blocked import ROW_BLOCK, blocked_columns, build_blocked
from poot_kernelgen.contraction._codec import ROWS, is_dense
from poot_kernelgen.contraction._gather import build_gather
from poot_kernelgen.contraction._kernel import open_frame
from poot_kernelgen.contraction._pack import build_pack
from poot_kernelgen.contraction._streamed import build_streamed
from poot_kernelgen.contraction.matrix import build_matrix, suits_matrix
from poot_kernelgen.requests import EIGHT_BIT, ContractionRequest, GatherRequest, PackRequest

__all__ = ["generate_contraction", "generate_gather", "generate_pack"]


def _name(stem: str, request: object) -> str:
    digest = hashlib.sha256(repr(request).encode()).hexdigest()[:10]
    return f"{stem}_{digest}".lower()


def _kernel(
    function: KernelFunction, grid: tuple[GridAxis, ...], grain: int = 1
) -> tuple[GeneratedKernel, ...]:
    scratch = scratch_size(function).constant
    assert scratch is not None
    return (
        GeneratedKernel(
            name=function.name, function=function, grid=grid, grain=grain, scratch_bytes=scratch
        ),
    )


def generate_contraction(
    request: ContractionRequest, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel of a contraction for its number of rows.

    Raises:
        UnsupportedError: If the weight cannot be multiplied with this kind of activation.
    """
    if suits_matrix(request, target):
        name = _name(f"multiply_{request.regime}", (request, caps.shared_bytes))
        return (gpu_answer(build_matrix(request, name, caps)),)
    if caps.max_workgroup > 1:
        return gpu.generate_contraction(request, caps)
    source, activation = request.weight.source, request.activation
    if activation in EIGHT_BIT and is_dense(source):
        raise UnsupportedError(
            f"weights stored as {source} take f32 or bf16 activations, not {activation}"
        )
    if activation == "bf16" and source != "bf16":
        raise UnsupportedError(f"bf16 activations take bf16 weights, not {source}")
    name = _name(f"contract_{source}_{activation}_{request.regime}", request)
    first = 1 + {"i8": 3, "i8r": 5, "u8r": 5}.get(activation, 1) + len(request.epilogue.inputs) + 1
    rows, columns = first, first + 1
    if request.regime == "many" and not is_dense(source):
        width = blocked_columns(request.gated)
        grid = [f"ceildiv(N, {width})", f"ceildiv(M, {ROW_BLOCK})"]
        frame = open_frame(request, name, grid)
        build_blocked(frame)
        axes: tuple[GridAxis, ...] = (
            ("argument", columns, width),
            ("argument", rows, ROW_BLOCK),
        )
        return _kernel(frame.b.finish(), axes)
    grid = [f"ceildiv(N, {ROWS})"]
    axes = (("argument", columns, ROWS),)
    row_block = None
    if request.regime == "many":
        grid.append(f"ceildiv(M, {ROW_BLOCK})")
        axes = (*axes, ("argument", rows, ROW_BLOCK))
        row_block = ROW_BLOCK
    most = 16 if activation == "bf16" else 8
    tiles = {"one": (1,), "few": (4, 8), "some": (8,), "many": (most,)}[request.regime]
    frame = open_frame(request, name, grid)
    build_streamed(frame, tiles, row_block)
    return _kernel(frame.b.finish(), axes, grain=2 if request.regime == "one" else 1)


def generate_pack(
    request: PackRequest, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel that re-lays stored rows."""
    _ = target
    if caps.max_workgroup > 1:
        return gpu.generate_pack(request, caps)
    function = build_pack(request, _name(f"pack_{request.layout.source}", request))
    return _kernel(function, (("argument", 2, ROWS),), grain=2)


def generate_gather(
    request: GatherRequest, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the kernel that reads rows by number."""
    _ = target
    if caps.max_workgroup > 1:
        return gpu.generate_gather(request, caps)
    function = build_gather(request, _name(f"gather_{request.layout.source}", request))
    return _kernel(function, (("argument", 3, 1),), grain=4)
