"""A real GPU: kernels against the interpreter, graphs, faults that really happen."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from poot_core import OutOfMemoryError, f32, i64
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument, SymbolArgument
from poot_kernel import compile_kernels
from poot_kernel.interpreter import interpret

pytestmark = pytest.mark.device

RNG = np.random.default_rng(8)


@pytest.fixture(scope="session")
def gpu_kernels(gpu, request):
    kernels = sys.modules["ptx_kernels"].ALL
    objects = compile_kernels(kernels, gpu.target, gpu.service, gpu.caps)
    return {k.name: k for k in kernels}, {
        name: kernel for one in gpu.load(objects) for name, kernel in one.items()
    }


def test_kernels_give_the_interpreters_bits(gpu, gpu_kernels):
    functions, kernels = gpu_kernels
    x = RNG.standard_normal(1000).astype(np.float32)
    buffer = gpu.allocate(x.nbytes, "x")
    gpu.upload(buffer, x)
    launch = Launch(
        kernel=kernels["scale"],
        arguments=(SymbolArgument("T"), ScalarArgument(1.7, f32), BufferArgument(buffer)),
        grid=(GridDim(symbol="T", divisor=64),),
    )
    step = gpu.prepare([launch] * 5)
    for count in (1, 999, 0, 64):
        gpu.run(step, {"T": count})
        for _ in range(5):
            interpret(functions["scale"], [count, np.float32(1.7), x])
    assert (gpu.download(buffer).view(np.float32) == x).all()


def test_replay_equals_eager_and_is_cheap(gpu, gpu_kernels):
    _, kernels = gpu_kernels
    x = RNG.standard_normal(4096).astype(np.float32)
    found = []
    for captured in (False, True):
        buffer = gpu.allocate(x.nbytes, "x")
        gpu.upload(buffer, x)
        launch = Launch(
            kernel=kernels["scale"],
            arguments=(SymbolArgument("T"), ScalarArgument(1.01, f32), BufferArgument(buffer)),
            grid=(GridDim(symbol="T", divisor=64),),
        )
        step = gpu.prepare([launch] * 100)
        if captured:
            assert gpu.capture(step, {"T": 4096})
        began = time.perf_counter()
        gpu.run(step, {"T": 4096})
        print("captured" if captured else "eager", (time.perf_counter() - began) * 1e6, "us")
        found.append(gpu.download(buffer))
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(("signature", "wide"), [("k16_chunk1024", 64), ("k16", 64)])
def test_products_have_the_same_bits_for_every_number_of_rows(gpu, own_kernels, signature, wide):
    if "mma-k16" not in gpu.target.features:
        pytest.skip("the GPU has no matrix instructions for groups of 16 k")
    most, columns, depth = 300, 208, 4864
    tiles = {1: (8, 16, 6), 8: (8, 32, 4), 64: (64, 64, 4), 300: (128, wide, 4)}
    import ml_dtypes

    x = RNG.standard_normal((most, depth)).astype(ml_dtypes.bfloat16)
    w = RNG.standard_normal((columns, depth)).astype(ml_dtypes.bfloat16)
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    x_buffer, w_buffer = gpu.allocate(x.nbytes, "x"), gpu.allocate(w.nbytes, "w")
    gpu.upload(x_buffer, x.view(np.uint8))
    gpu.upload(w_buffer, w.view(np.uint8))
    found = {}
    for rows, (height, width, stages) in tiles.items():
        function = own_kernels.product.specialise(
            TM=height, TN=width, STAGES=stages, SIGNATURE=signature
        )
        (loaded,) = gpu.load(compile_kernels([function], gpu.target, gpu.service, gpu.caps))
        y = gpu.allocate(4 * most * columns, "y")
        gpu.upload(y, np.full((most, columns), np.nan, np.float32))
        launches = [
            Launch(
                kernel=loaded[function.name],
                arguments=(
                    *(ScalarArgument(n, i64) for n in (min(rows, most - at), columns, depth)),
                    BufferArgument(x_buffer, 2 * depth * at),
                    BufferArgument(w_buffer),
                    BufferArgument(y, 4 * columns * at),
                ),
                grid=(GridDim(),),
            )
            for at in range(0, most, rows)
        ]
        gpu.run(gpu.prepare(launches), {})
        found[rows] = gpu.download(y).view(np.float32).reshape(most, columns)
    assert np.abs(found[300] - wanted).max() < 2e-5 * np.abs(wanted).max()
    for rows, values in found.items():
        assert (values.view(np.uint32) == found[300].view(np.uint32)).all(), rows


def test_memory_runs_out_with_figures(gpu):
    with pytest.raises(OutOfMemoryError) as caught:
        gpu.allocate(1 << 44, "too much")
    assert 0 < caught.value.bytes_free < 1 << 44


def test_reads_are_fast(gpu):
    found = gpu.read_bandwidth_gb_s(4 << 30)
    print(f"read {found:.0f} GB/s")
    assert found > 0


_CRASH = """
import numpy as np
from poot_core import DeviceError, PootError, Settings, f32, i64
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel import IRBuilder, compile_kernels
from poot_ptx_device import open_device

b = IRBuilder("wild", level="lane", grid=["n"], workgroup_size=32)
n = b.scalar("n")
x = b.array("x", f32, ["n"], access="w")
b.store(x, b.mul(b.query("local_id"), 1 << 36), b.constant(1.0, f32))
with open_device(Settings()) as device:
    (kernels,) = device.load(
        compile_kernels([b.finish()], device.target, device.service, device.caps)
    )
    buffer = device.allocate(128, "x")
    launch = Launch(
        kernel=kernels["wild"],
        arguments=(ScalarArgument(1, i64), BufferArgument(buffer)),
        grid=(GridDim(),),
    )
    step = device.prepare([launch])
    device.run(step, {})
    for turn in range(3):
        try:
            device.download(buffer)
        except DeviceError as error:
            print("lost" in error.message)
print("alive")
"""


def test_a_device_that_is_lost_leaves_the_process_alive(gpu):
    done = subprocess.run([sys.executable, "-c", _CRASH], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True", "alive"], done.stderr


def test_the_example_prints_its_comment(gpu):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)
    assert done.stdout == "1400.0\n", done.stderr
