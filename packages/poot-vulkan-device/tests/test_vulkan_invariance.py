"""A row's result has the same bits among 1 to 300 rows, in every regime and by replay."""

import ml_dtypes
import numpy as np
import pytest

from poot_core import i64
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel import compile_kernels
from poot_kernelgen import (
    ContractionRequest,
    PackRequest,
    WeightLayout,
    generate,
    packed_bytes,
)
from poot_kernelgen import reference as ref
from poot_quant import FORMATS, random_blocks

pytestmark = pytest.mark.device("vulkan")
N, K, MOST = 40, 1536, 300
ROWS = (*range(1, 18), 33, 63, 64, 65, 127, 128, 129, 255, 300)


class Runner:
    """Launches one request's kernel on a device."""

    def __init__(self, device) -> None:
        self.device = device

    def __call__(self, request, arguments) -> None:
        (kernel,) = generate(request, self.device.target, self.device.caps)
        (compiled,) = compile_kernels(
            [kernel.function], self.device.target, self.device.service, self.device.caps
        )
        handle = self.device.load([compiled])[0][kernel.name]
        names = [parameter.name for parameter in kernel.function.parameters]
        numbers = {n: a for n, a in zip(names, arguments, strict=True) if isinstance(a, int)}
        grid = tuple(GridDim(coefficient=size.evaluate(numbers)) for size in kernel.function.grid)
        given = tuple(
            ScalarArgument(a, i64) if isinstance(a, int) else BufferArgument(a) for a in arguments
        )
        launch = Launch(kernel=handle, arguments=given, grid=grid)
        self.device.run(self.device.prepare([launch]), {})

    def buffer(self, array: np.ndarray):
        found = self.device.allocate(array.nbytes, "argument")
        self.device.upload(found, np.ascontiguousarray(array))
        return found


def stored(source: str) -> np.ndarray:
    rng = np.random.default_rng(6)
    if source in FORMATS:
        return random_blocks(FORMATS[source], (N, K), rng, scale=0.5)
    dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[source]
    return rng.standard_normal((N, K)).astype(dtype).view(np.uint8).reshape(N, -1)


def activations(kind: str) -> tuple[object, list[np.ndarray]]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((MOST, K)).astype(np.float32)
    x[:, 5] *= 30
    if kind == "f32":
        return x, [x]
    found = ref.quantise_activation(x, outlier=4.0)
    return found, list(found[:5])


@pytest.mark.parametrize(
    ("source", "kind"),
    [("f32", "f32"), ("bf16", "f32"), ("Q8_0", "i8r"), ("Q4_K", "i8r"), ("Q6_K", "i8r"),
     ("Q4_1", "f32")],
)  # fmt: skip
def test_products(device, source: str, kind: str) -> None:
    run = Runner(device)
    layout = WeightLayout(source=source, order="rows")
    raw = stored(source)
    packed = device.allocate(packed_bytes(layout, N, K), "weight")
    run(PackRequest(layout=layout), [run.buffer(raw), packed, N, K, 0, 1])
    x, arrays = activations(kind)
    inputs = [run.buffer(array) for array in arrays]
    y = device.allocate(4 * MOST * N, "y")

    def result(m: int) -> np.ndarray:
        regime = "one" if m == 1 else "few" if m <= 8 else "some" if m <= 64 else "many"
        request = ContractionRequest(weight=layout, activation=kind, regime=regime)
        device.upload(y, np.full(MOST * N, np.nan, np.float32))
        run(request, [packed, *inputs, y, m, N, K, N])
        return device.download(y).view(np.float32).reshape(MOST, N)

    whole = result(MOST)
    weight = ref.LogicalWeight.from_stored(source, raw, N, K)
    request = ContractionRequest(weight=layout, activation=kind, regime="many")
    expected = ref.contract(request, weight, x)
    # Sums of 1536 products in f32: about sqrt(1536) roundings of 2**-24 of their magnitudes.
    assert np.abs(whole - expected).max() < 1e-4 * np.abs(expected).max()
    for m in ROWS:
        found = result(m)
        np.testing.assert_array_equal(found[:m].view(np.uint32), whole[:m].view(np.uint32))
        assert np.isnan(found[m:]).all(), "rows beyond M are written"
