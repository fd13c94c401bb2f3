"""Laying weights out on a device, tensor by tensor, dropping the file's pages behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from poot_core import dtype_by_name, i64
from poot_executor._device import (
    Buffer,
    BufferArgument,
    Device,
    KernelHandle,
    Launch,
    ScalarArgument,
)
from poot_executor._engine import WeightSource
from poot_executor._kernel_table import KernelRecord, KernelTable
from poot_executor._launch_shape import kernel_launch
from poot_executor._load_host import load_vector, stored_rows
from poot_executor._program import Program
from poot_executor._weights import Matrix

__all__ = ["load_matrices", "load_small"]

_ALIGNMENT = 64
Kernels = Mapping[tuple[int, str], tuple[KernelHandle, KernelRecord]]


def load_matrices(
    device: Device,
    program: Program,
    table: KernelTable,
    kernels: Kernels,
    weights: WeightSource,
) -> list[Buffer]:
    """Return the buffer of each matrix, packed by compiled code."""
    layouts = list(dict.fromkeys(program.layouts))
    packers = dict(zip(layouts, table.packers, strict=True))
    buffers: list[Buffer] = []
    for matrix, layout, nbytes in zip(
        program.matrices, program.layouts, table.matrix_bytes, strict=True
    ):
        handle, record = kernels[packers[layout], "main"]
        buffer = device.allocate(nbytes, str(matrix))
        _pack(device, matrix, layout.interleave, buffer, (handle, record), weights)
        buffers.append(buffer)
    return buffers


def _pack(
    device: Device,
    matrix: Matrix,
    interleave: int,
    target: Buffer,
    kernel: tuple[KernelHandle, KernelRecord],
    weights: WeightSource,
) -> None:
    """Pack the parts of one matrix: one after the other, or alternating for a gated pair."""
    handle, record = kernel
    launches: list[Launch] = []
    group = 0
    for number, part in enumerate(matrix.parts):
        rows = stored_rows(weights, matrix, part)
        first, step = (number, 2) if matrix.gated else (group, 1)
        values = (part.num_rows, matrix.k, first, step)
        group += -(-part.num_rows // interleave)
        arguments = [
            BufferArgument(_source(device, rows, part.name)),
            BufferArgument(target),
            *(ScalarArgument(value, i64) for value in values),
        ]
        launches.append(kernel_launch(handle, record, arguments, part.name))
    device.run(device.prepare(launches), {})
    device.synchronize()
    for part in matrix.parts:
        weights.release(part.name)


def _source(device: Device, rows: np.ndarray[Any, Any], label: str) -> Buffer:
    buffer = device.import_host(rows, label)
    if buffer is None:
        buffer = device.allocate(rows.nbytes, label)
        device.upload(buffer, rows)
    return buffer


def load_small(
    device: Device, program: Program, weights: WeightSource
) -> tuple[Buffer, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return one buffer with all vectors and constants, and where each of them starts."""
    arrays = [load_vector(weights, vector) for vector in program.vectors]
    arrays += [
        np.frombuffer(constant.data, dtype_by_name(constant.dtype).numpy)
        for constant in program.constants
    ]
    offsets: list[int] = []
    total = 0
    for array in arrays:
        offsets.append(total)
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = np.zeros(max(total, _ALIGNMENT), np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        packed[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    buffer = device.allocate(packed.nbytes, "vectors")
    device.upload(buffer, packed)
    count = len(program.vectors)
    return buffer, (tuple(offsets[:count]), tuple(offsets[count:]))
