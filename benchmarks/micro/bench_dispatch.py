"""Dispatch of a tiny kernel on wgpu: one launch with its wait, and a hundred in one step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from poot_core import Settings, f32, i64
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel import IRBuilder, KernelFunction, compile_kernels
from poot_test_util import require_device

ELEMENTS = 4096


def increment() -> KernelFunction:
    """Return y[i] += 1 for i below n."""
    b = IRBuilder("increment", level="lane", grid=["ceildiv(n, 64)"], workgroup_size=64)
    y, n = b.array("y", f32, ["n"], access="rw"), b.scalar("n")
    index = b.add(b.mul(b.workgroup_id(), 64), b.convert(b.query("local_id"), i64))
    with b.if_(b.compare("lt", index, n)) as branch, branch.then():
        b.store(y, index, b.add(b.load(y, index), b.constant(1.0, f32)))
    return b.finish()


@pytest.fixture(scope="module")
def device() -> Iterator[object]:
    """Return the wgpu device; skip where there is none."""
    require_device("wgpu")
    from poot_wgpu_device import open_device

    with open_device(Settings.from_environment()) as found:
        yield found


@pytest.mark.parametrize("launches", [1, 100])
def test_wgpu_dispatch(benchmark, device, launches: int) -> None:
    """Run a prepared step and wait for it."""
    objects = compile_kernels([increment()], device.target, device.service, device.caps)
    (loaded,) = device.load(objects)
    buffer = device.allocate(4 * ELEMENTS, "y")
    device.upload(buffer, np.zeros(ELEMENTS, np.float32))
    launch = Launch(
        kernel=loaded["increment"],
        arguments=(BufferArgument(buffer), ScalarArgument(ELEMENTS, i64)),
        grid=(GridDim(ELEMENTS, None, 64),),
        label="increment",
    )
    sequence = device.prepare([launch] * launches)
    device.run(sequence, {})
    before = device.download(buffer).view(np.float32)[0]
    benchmark(lambda: device.run(sequence, {}))
    after = device.download(buffer).view(np.float32)
    assert after.min() == after.max() > before
