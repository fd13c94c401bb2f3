"""A kernel that reads memory as fast as it can: the ceiling that others are measured by."""

from __future__ import annotations

from typing import Any

import numpy as np

from poot_core import i64, u32
from poot_executor._device import BufferArgument, Device, GridDim, Launch, ScalarArgument
from poot_kernel import IRBuilder, KernelFunction, compile_kernels
from poot_kernel.compile import CompileService

__all__ = ["probe_launch", "read_kernel"]

_THREADS = 256
_TURN_BYTES = _THREADS * 64
_WAVES = 16  # workgroups of a multiprocessor


def read_kernel() -> KernelFunction:
    """Return a kernel of which each workgroup reads ``C`` times 64 bytes and keeps their xor."""
    b = IRBuilder("read", level="lane", grid=["G"], workgroup_size=_THREADS)
    b.scalar("G")
    chunks = b.scalar("C")
    source = b.raw("w", alignment=128)
    target = b.array("y", u32, ["G"], access="w")
    start = b.mul(b.workgroup_id(), chunks)
    with b.foreach(start, b.add(start, chunks), [b.constant(0, u32)]) as loop:
        words = [
            b.load(source, b.add(b.mul(loop.index, 64), 16 * i), count=4, dtype=u32, alignment=16)
            for i in range(4)
        ]
        found = loop.carried[0]
        for word in words:
            found = b.xor(found, b.vector_reduce(word, "xor"))
        loop.yield_(found)
    b.store(target, b.workgroup_id(), b.workgroup_reduce(loop.result, "xor"))
    return b.finish()


def probe_launch(device: Device, service: CompileService, nbytes: int) -> tuple[Launch, int]:
    """Return a launch that reads random data, and how many bytes."""
    groups = device.caps.num_workers * _WAVES
    turns = max(1, -(-nbytes // (groups * _TURN_BYTES)))
    size = groups * turns * _TURN_BYTES
    source = device.allocate(size, "read probe")
    block: Any = np.random.default_rng(0).integers(0, 1 << 32, 1 << 24, np.uint32)
    for start in range(0, size, block.nbytes):
        part = block.view(np.uint8)[: min(block.nbytes, size - start)]
        device.upload(source, part, start)
    target = device.allocate(4 * groups, "read probe result")
    (kernels,) = device.load(compile_kernels([read_kernel()], device.target, service, device.caps))
    launch = Launch(
        kernel=kernels["read"],
        arguments=(
            ScalarArgument(groups, i64),
            ScalarArgument(turns * _THREADS, i64),
            BufferArgument(source),
            BufferArgument(target),
        ),
        grid=(GridDim(coefficient=groups),),
        label="read",
    )
    return launch, size
