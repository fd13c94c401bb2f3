"""What the GPU benchmarks share: a device, random memory on it, kernels, and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poot_core import Settings, f32, i64, u32
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel import IRBuilder, KernelFunction, compile_kernels
from poot_ptx_device import PtxDevice, open_device

__all__ = ["Bench", "fill_kernel"]


def fill_kernel() -> KernelFunction:
    """Return a kernel that fills memory with bf16 numbers of both signs between 1/16 and 1/8."""
    b = IRBuilder("fill", level="lane", grid=["ceildiv(n, 65536)"], workgroup_size=256)
    n, seed = b.scalar("n"), b.scalar("seed")
    out = b.array("out", u32, ["n"], access="w")
    start = b.mul(b.workgroup_id(), 65536)
    with b.foreach(start, b.minimum(b.add(start, 65536), n)) as loop:
        x = b.convert(b.add(b.mul(loop.index, 2654435761), b.mul(seed, 97)), u32)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = b.mul(b.xor(x, b.shr(x, b.constant(shift, u32))), b.constant(factor, u32))
        x = b.xor(x, b.shr(x, b.constant(16, u32)))
        x = b.or_(b.and_(x, b.constant(0x807F807F, u32)), b.constant(0x3D803D80, u32))
        b.store(out, loop.index, x)
    return b.finish()


class Bench:
    """One opened device."""

    def __init__(self, index: int = 0) -> None:
        self.device: PtxDevice = open_device(Settings(), index=index)
        self._fill = self.kernels([fill_kernel()])["fill"]
        self._seed = 0

    def kernels(self, functions: Sequence[KernelFunction]) -> dict[str, Any]:
        """Return loaded kernels by name."""
        device = self.device
        objects = compile_kernels(functions, device.target, device.service, device.caps)
        return {name: k for one in device.load(objects) for name, k in one.items()}

    def random(self, nbytes: int, label: str = "random") -> Any:
        """Return device memory full of random bf16 numbers."""
        buffer = self.device.allocate(-(-nbytes // 4) * 4, label)
        self._seed += 1
        self.device.run(self.device.prepare([
            self.launch(self._fill, nbytes // 4, self._seed, buffer)
        ]), {})  # fmt: skip
        return buffer

    def array(self, data: np.ndarray, label: str = "array") -> Any:
        """Return device memory with an array's bytes."""
        buffer = self.device.allocate(data.nbytes, label)
        self.device.upload(buffer, np.ascontiguousarray(data).view(np.uint8))
        return buffer

    def launch(self, kernel: Any, *arguments: Any, label: str = "") -> Launch:
        """Return a launch; integers are i64, floats f32, (buffer, offset) places."""
        found: list[Any] = []
        for value in arguments:
            if isinstance(value, int):
                found.append(ScalarArgument(value, i64))
            elif isinstance(value, float):
                found.append(ScalarArgument(value, f32))
            elif isinstance(value, tuple):
                found.append(BufferArgument(*value))
            else:
                found.append(BufferArgument(value))
        return Launch(kernel=kernel, arguments=tuple(found), grid=(GridDim(),), label=label)

    def seconds(self, launches: Sequence[Launch], repeat: int = 15) -> float:
        """Return the median seconds of a replayed sequence."""
        step = self.device.prepare(launches)
        self.device.capture(step, {})
        return self.device.time_replay(step, {}, repeat=repeat)
