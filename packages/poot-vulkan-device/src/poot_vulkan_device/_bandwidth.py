"""What the memory gives: a kernel that reads everything once, timed by the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poot_core import i64, u32
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel import IRBuilder, KernelFunction, compile_kernels

if TYPE_CHECKING:
    from poot_vulkan_device._device import VulkanDevice

__all__ = ["read_bandwidth_gb_s"]

_GROUPS = 4096
_THREADS = 256


def read_bandwidth_gb_s(device: VulkanDevice, nbytes: int, *, repeat: int) -> float:
    """Return how fast a kernel reads ``nbytes`` of random data (median of ``repeat``), GB/s."""
    quads = max(1, nbytes // 16)
    source = device.allocate(16 * quads, "bytes to read")
    sums = device.allocate(4 * _GROUPS, "sums")
    try:
        block = np.random.default_rng(0).integers(0, 256, min(16 * quads, 1 << 24), np.uint8)
        for start in range(0, 16 * quads, block.nbytes):
            device.upload(source, block[: 16 * quads - start], start)
        (compiled,) = compile_kernels([_kernel()], device.target, device.service, device.caps)
        kernel = device.load([compiled])[0][compiled.entries[0]]
        arguments = (BufferArgument(source), BufferArgument(sums), ScalarArgument(quads, i64))
        launch = Launch(kernel=kernel, arguments=arguments, grid=(GridDim(coefficient=_GROUPS),))
        seconds = device.time_sequence(device.prepare([launch]), {}, repeat=repeat)
        return 16 * quads / float(seconds[0]) / 1e9
    finally:
        source.free()
        sums.free()


def _kernel() -> KernelFunction:
    b = IRBuilder("read_all", level="lane", grid=[_GROUPS], workgroup_size=_THREADS)
    words = b.array("words", u32, [None], alignment=16)
    sums = b.array("sums", u32, [_GROUPS], access="w")
    quads = b.scalar("quads")
    group = b.workgroup_id()
    share = b.floordiv(b.add(quads, _GROUPS - 1), _GROUPS)
    start = b.mul(group, share)
    end = b.minimum(b.add(start, share), quads)
    zero = b.constant(0, u32)
    with b.foreach(start, end, [zero]) as loop:
        found = b.load(words, b.mul(loop.index, 4), count=4, alignment=16)
        loop.yield_(b.xor(loop.carried[0], b.vector_reduce(found, "xor")))
    b.store(sums, group, b.workgroup_reduce(loop.result, "xor"))
    return b.finish()
