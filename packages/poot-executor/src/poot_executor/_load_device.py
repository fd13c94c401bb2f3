"""Laying weights out on a device, tensor by tensor, dropping the file's pages behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from poot_kernelgen import WeightLayout

__all__ = ["load_matrices", "load_small"]

_ALIGNMENT = 256  # what any driver asks of an address or a binding's offset
_POOL_BYTES = 256 << 20  # some drivers bind no more than this at once
Kernels = Mapping[tuple[int, str], tuple[KernelHandle, KernelRecord]]


def load_matrices(
    device: Device,
    program: Program,
    table: KernelTable,
    kernels: Kernels,
    weights: WeightSource,
) -> tuple[list[Buffer], list[BufferArgument]]:
    """Pack all matrices by compiled code, in the order in which a step reads them.

    Returns:
        The pools that hold them, and where each matrix lies.
    """
    layouts = list(dict.fromkeys(program.layouts))
    packers = dict(zip(layouts, table.packers, strict=True))
    pools, places = _allocate(device, table.matrix_bytes)
    sources = _Sources(device)
    for matrix, layout, place in zip(program.matrices, program.layouts, places, strict=True):
        kernel = kernels[packers[layout], "main"]
        words = sources.table(layout)
        _pack(device, matrix, layout.interleave, words, place, kernel, weights, sources)
    sources.close()
    return pools, places


class _Sources:
    """Stored rows as a device reads them: where they are, or copied to buffers that are used again."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: list[Buffer] = []
        self._tables: dict[WeightLayout, tuple[BufferArgument, ...]] = {}

    def table(self, layout: WeightLayout) -> tuple[BufferArgument, ...]:
        """Return the argument that a packing kernel takes for its table, if it takes one."""
        if layout.order == "lanes":
            return ()
        if layout not in self._tables:
            from poot_kernelgen import pack_table  # generators: a warm start of a host needs none

            words = pack_table(layout)
            self._tables[layout] = ()
            if words is not None:
                buffer = self._device.allocate(words.nbytes, f"table of {layout.source}")
                self._device.upload(buffer, words)
                self._tables[layout] = (BufferArgument(buffer),)
        return self._tables[layout]

    def place(self, number: int, rows: np.ndarray[Any, Any], label: str) -> Buffer:
        """Return a buffer that holds rows until the next matrix; ``number`` counts its parts."""
        buffer = self._device.import_host(rows, label)
        if buffer is not None:
            return buffer
        while len(self._buffers) <= number:
            self._buffers.append(self._device.allocate(_ALIGNMENT, "stored rows"))
        if self._buffers[number].nbytes < rows.nbytes:
            self._buffers[number].free()
            self._buffers[number] = self._device.allocate(rows.nbytes, "stored rows")
        self._device.upload(self._buffers[number], rows)
        return self._buffers[number]

    def close(self) -> None:
        """Give the buffers back."""
        for buffer in self._buffers:
            buffer.free()
        for arguments in self._tables.values():
            for argument in arguments:
                argument.buffer.free()


def _allocate(device: Device, sizes: Sequence[int]) -> tuple[list[Buffer], list[BufferArgument]]:
    """Return pools for matrices and the place of each: small ones share pages of a large pool."""
    groups: list[list[int]] = [[]]
    filled = 0
    for index, size in enumerate(sizes):
        if filled and filled + size > _POOL_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += _aligned(size)
    pools: list[Buffer] = []
    places: list[BufferArgument] = []
    for number, group in enumerate(groups):
        total = sum(_aligned(sizes[index]) for index in group)
        pool = device.allocate(max(total, _ALIGNMENT), f"weights {number}")
        pools.append(pool)
        offset = 0
        for index in group:
            places.append(BufferArgument(pool, offset))
            offset += _aligned(sizes[index])
    return pools, places


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _pack(
    device: Device,
    matrix: Matrix,
    interleave: int,
    table: tuple[BufferArgument, ...],
    target: BufferArgument,
    kernel: tuple[KernelHandle, KernelRecord],
    weights: WeightSource,
    sources: _Sources,
) -> None:
    """Pack the parts of one matrix: one after the other, or alternating for a gated pair."""
    handle, record = kernel
    launches: list[Launch] = []
    group = 0
    for number, part in enumerate(matrix.parts):
        rows = stored_rows(weights, matrix, part)
        first, step = (number, 2) if matrix.gated else (group, 1)
        group += -(-part.num_rows // interleave)
        arguments = [
            BufferArgument(sources.place(number, rows, part.name)),
            *table,
            target,
            *(ScalarArgument(value, i64) for value in (part.num_rows, matrix.k, first, step)),
        ]
        launches.append(kernel_launch(handle, record, arguments, part.name))
    device.run(device.prepare(launches), {})
    device.synchronize()
    for part in matrix.parts:
        weights.release(part.name)


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
        total += _aligned(array.nbytes)
    packed = np.zeros(max(total, _ALIGNMENT), np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        packed[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    buffer = device.allocate(packed.nbytes, "vectors")
    device.upload(buffer, packed)
    count = len(program.vectors)
    return buffer, (tuple(offsets[:count]), tuple(offsets[count:]))
