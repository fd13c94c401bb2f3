"""A device whose kernels are the NumPy meaning of requests: proves plans and the engine's plumbing.

A compiled object is the request itself in bytes. A matrix is laid out as its stored rows, in groups
of ``interleave``; groups of the halves of a gated pair alternate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceCaps, DeviceError, Target
from poot_executor._codec import decode, encode
from poot_executor._device import (
    Argument,
    Buffer,
    BufferArgument,
    KernelHandle,
    Launch,
    PreparedSequence,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor._kernel_table import KernelRecord, KernelTable
from poot_executor._load_host import row_bytes
from poot_executor._program import Program
from poot_executor._reference_kernels import Memory, run_request
from poot_kernel.compile import CompiledObject
from poot_kernelgen import PackRequest, Request

__all__ = ["ReferenceDevice", "reference_table"]

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class _Buffer:
    """Host memory, and matrices that were decoded from it by where they start."""

    data: Bytes
    label: str
    decoded: dict[int, dict[Any, Any]] = field(default_factory=dict[int, dict[Any, Any]])

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def free(self) -> None:
        self.data = self.data[:0]


@dataclass(frozen=True, slots=True)
class _Handle:
    entry: str
    request: Request
    role: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    launches: tuple[Launch, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        given = [a for launch in self.launches for a in launch.arguments]
        return tuple(dict.fromkeys(a.symbol for a in given if isinstance(a, SymbolArgument)))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(launch.label for launch in self.launches)


class ReferenceDevice:
    """Implements ``Device`` in NumPy.

    Args:
        target: What programs are planned for.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.caps = DeviceCaps(
            name="NumPy, planned kernels",
            vector_bytes=4,
            subgroup_size=1,
            num_workers=1,
            shared_bytes=1 << 20,
            memory_bytes=0,
        )

    def allocate(self, nbytes: int, label: str) -> Buffer:
        """Return memory; intermediates hold nonsense, so that a read before a write shows."""
        if label == "intermediates":
            return _Buffer(np.random.default_rng(7).integers(0, 255, nbytes, np.uint8), label)
        return _Buffer(np.zeros(nbytes, np.uint8), label)

    def import_host(self, array: NDArray[Any], label: str) -> Buffer | None:
        """Return a buffer over the array."""
        return _Buffer(array.reshape(-1).view(np.uint8), label)

    def upload(self, buffer: Buffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy an array into the buffer."""
        source = data.reshape(-1).view(np.uint8)
        _data(buffer)[offset : offset + source.nbytes] = source

    def download(self, buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> Bytes:
        """Return a copy of the buffer's bytes."""
        end = None if nbytes is None else offset + nbytes
        return _data(buffer)[offset:end].copy()

    def start_download(self, pieces: Sequence[tuple[Buffer, int, int]]) -> None:
        """Return None: work is done when it was handed over."""
        del pieces

    def view(self, buffer: Buffer) -> Bytes | None:
        """Return the buffer's bytes."""
        return _data(buffer)

    def load(self, objects: Sequence[CompiledObject]) -> tuple[Mapping[str, KernelHandle], ...]:
        """Return the handle of each request."""
        loaded: list[Mapping[str, KernelHandle]] = []
        for compiled in objects:
            request, role = decode(compiled.data)
            (entry,) = compiled.entries
            loaded.append({entry: _Handle(entry, request, role)})
        return tuple(loaded)

    def prepare(self, launches: Sequence[Launch]) -> PreparedSequence:
        """Return the launches."""
        return _Sequence(tuple(launches))

    def capture(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> bool:
        """Return False: nothing is recorded."""
        return False

    def run(self, prepared: PreparedSequence, sizes: Mapping[str, int]) -> None:
        """Run the launches one after the other."""
        assert isinstance(prepared, _Sequence)
        for launch in prepared.launches:
            assert isinstance(launch.kernel, _Handle)
            values = [_value(argument, sizes) for argument in launch.arguments]
            run_request(launch.kernel.request, launch.kernel.role, values)

    def synchronize(self) -> None:
        """Do nothing: ``run`` waits."""

    def time_sequence(
        self, prepared: PreparedSequence, sizes: Mapping[str, int], *, repeat: int = 5
    ) -> NDArray[np.float64]:
        """Refuse: times of NumPy say nothing about kernels."""
        raise DeviceError("the reference device does not time kernels; open the engine on another")

    def read_bandwidth_gb_s(self, nbytes: int, *, repeat: int = 5) -> float:
        """Refuse: there is no machine to measure."""
        raise DeviceError("the reference device has no bandwidth; open the engine on another")

    def close(self) -> None:
        """Do nothing: memory goes with its buffers."""


def _data(buffer: Buffer) -> Bytes:
    assert isinstance(buffer, _Buffer)
    return buffer.data


def _value(argument: Argument, sizes: Mapping[str, int]) -> Memory | int | float:
    if isinstance(argument, BufferArgument):
        assert isinstance(argument.buffer, _Buffer)
        decoded = argument.buffer.decoded.setdefault(argument.offset, {})
        return Memory(argument.buffer.data[argument.offset :], decoded)
    if isinstance(argument, SymbolArgument):
        return sizes[argument.symbol]
    assert isinstance(argument, ScalarArgument)
    return argument.value


def reference_table(program: Program) -> KernelTable:
    """Return the kernels of a program for a ``ReferenceDevice``."""
    layouts = list(dict.fromkeys(program.layouts))
    requests: list[Request] = [*program.requests]
    packers = tuple(range(len(requests), len(requests) + len(layouts)))
    requests += [PackRequest(layout=layout) for layout in layouts]
    operands = {
        (variant, launch.role): len(launch.operands)
        for launch in (*program.launches, *program.greedy)
        for variant in launch.variants
    }
    operands.update({(packer, "main"): 6 for packer in packers})
    records = tuple(
        KernelRecord(
            request=request,
            role=role,
            object_index=number,
            entry=f"kernel{request}.{role}",
            parameters=tuple(f"p{i}" for i in range(count)),
            grid=("1",),
        )
        for number, ((request, role), count) in enumerate(operands.items())
    )
    return KernelTable(
        kernels=records,
        entries=tuple((record.entry,) for record in records),
        objects=tuple(encode((requests[r.request], r.role)) for r in records),
        kinds=("llvm-host-object",) * len(records),
        packers=packers,
        matrix_bytes=tuple(
            -(-m.n // layout.interleave) * layout.interleave * row_bytes(m.source, m.k)
            for m, layout in zip(program.matrices, program.layouts, strict=True)
        ),
    )
