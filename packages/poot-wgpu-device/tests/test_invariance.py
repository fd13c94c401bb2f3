"""What a row gives does not depend on how many rows are computed with it, bit for bit."""

from __future__ import annotations

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
    reference,
)
from poot_quant import FORMATS, random_blocks

pytestmark = pytest.mark.device
COLUMNS, DEPTH, MOST = 24, 1280, 300
COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 128, 129, 257, 299)


@pytest.fixture
def launch(device):
    """Return a function that answers a request with arrays, buffers and sizes as arguments."""

    def run(request, *arguments):
        (kernel,) = generate(request, device.target, device.caps)
        objects = compile_kernels([kernel.function], device.target, device.service, device.caps)
        handle = device.load(objects)[0][kernel.name]
        given = []
        for argument in arguments:
            if isinstance(argument, int):
                given.append(ScalarArgument(argument, i64))
                continue
            if isinstance(argument, np.ndarray):
                data, argument = argument, device.allocate(argument.nbytes, "argument")
                device.upload(argument, np.ascontiguousarray(data))
            given.append(BufferArgument(argument))
        step = Launch(kernel=handle, arguments=tuple(given), grid=(GridDim(),))
        device.run(device.prepare([step]), {})

    return run


def stored_weight(source):
    rng = np.random.default_rng(21)
    if source in FORMATS:
        return random_blocks(FORMATS[source], (COLUMNS, DEPTH), rng, scale=0.4)
    values = rng.standard_normal((COLUMNS, DEPTH)).astype(np.float32)
    return (values.astype(ml_dtypes.bfloat16) if source == "bf16" else values).view(np.uint8)


def rows_of(kind):
    """Return rows as the reference takes them, and the arrays that a kernel takes."""
    x = np.random.default_rng(22).standard_normal((MOST, DEPTH)).astype(np.float32)
    x[:, 11] *= 25  # an outlier channel
    if kind == "f32":
        return x, [x]
    found = reference.quantise_activation(x, outlier=4.0)
    return found, list(found[:5])


def regime_of(count):
    bounds = {"one": 1, "few": 8, "some": 64, "many": MOST}
    return next(name for name, most in bounds.items() if count <= most)


@pytest.mark.parametrize(
    ("source", "kind"),
    [("f32", "f32"), ("bf16", "f32"), ("Q4_1", "f32"), ("Q8_0", "i8r"), ("Q4_K", "i8r")],
)
def test_products_of_any_number_of_rows(device, launch, source, kind):
    layout = WeightLayout(source=source, order="rows")
    raw = stored_weight(source)
    weight = device.allocate(packed_bytes(layout, COLUMNS, DEPTH), "weight")
    launch(PackRequest(layout=layout), raw, weight, COLUMNS, DEPTH, 0, 1)
    rows, arrays = rows_of(kind)
    result = device.allocate(4 * MOST * COLUMNS, "result")

    def product(count):
        request = ContractionRequest(weight=layout, activation=kind, regime=regime_of(count))
        device.upload(result, np.full(MOST * COLUMNS, np.nan, np.float32))
        launch(request, weight, *arrays, result, count, COLUMNS, DEPTH, COLUMNS)
        return device.download(result).view(np.float32).reshape(MOST, COLUMNS)

    whole = product(MOST)
    logical = reference.LogicalWeight.from_stored(source, raw, COLUMNS, DEPTH)
    request = ContractionRequest(weight=layout, activation=kind, regime="many")
    wanted = reference.contract(request, logical, rows)
    # f32 sums of 1280 products: some sqrt(1280) roundings of 2**-24.
    assert np.abs(whole - wanted).max() < 1e-4 * np.abs(wanted).max()
    for count in COUNTS:
        found = product(count)
        np.testing.assert_array_equal(found[:count].view(np.uint32), whole[:count].view(np.uint32))
        assert np.isnan(found[count:]).all(), f"{count} rows: others are written"
