"""Buffers: alignment, copies, views, lifetimes, refusals."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from poot_core import DeviceError, OutOfMemoryError, ShapeError
from poot_cpu_device._memory import allocate_bytes
from poot_executor import BufferArgument, GridDim, Launch


@pytest.fixture
def device(open_with):
    return open_with(1)[0]


@pytest.mark.parametrize("nbytes", [0, 1, 63, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 17])
def test_memory_is_zeroed_and_aligned(device, nbytes: int) -> None:
    buffer = device.allocate(nbytes, "b")
    view = device.view(buffer)
    assert view.nbytes == buffer.nbytes == nbytes
    assert not view.any()
    assert view.ctypes.data % (2 << 20 if nbytes >= 2 << 20 else 64) == 0
    view[...] = 7
    assert (device.download(buffer) == 7).all()


def test_what_goes_up_comes_down(device) -> None:
    buffer = device.allocate(100, "b")
    data = np.random.default_rng(3).integers(-9, 9, 12, np.int32)
    device.upload(buffer, data, offset=20)
    np.testing.assert_array_equal(device.download(buffer, 20, 48).view(np.int32), data)
    assert not device.download(buffer, 68).any()
    device.upload(buffer, data.reshape(3, 4))
    np.testing.assert_array_equal(device.download(buffer, 0, 48).view(np.int32), data)


def test_downloads_are_copies_and_views_are_not(device) -> None:
    buffer = device.allocate(4, "b")
    copy, view = device.download(buffer), device.view(buffer)
    device.upload(buffer, np.array([1, 2, 3, 4], np.uint8))
    assert copy.tolist() == [0, 0, 0, 0]
    assert view.tolist() == [1, 2, 3, 4]


def test_a_host_array_is_used_in_place(device) -> None:
    array = np.random.default_rng(4).standard_normal(9).astype(np.float32)
    buffer = device.import_host(array, "array")
    array[3] = 42.5
    assert device.download(buffer).view(np.float32)[3] == 42.5


def test_spans_outside_a_buffer_are_refused(device) -> None:
    buffer = device.allocate(10, "ten")
    with pytest.raises(ShapeError, match="outside buffer 'ten' of 10 bytes"):
        device.upload(buffer, np.zeros(4, np.uint8), offset=7)
    with pytest.raises(ShapeError, match="outside"):
        device.download(buffer, 8, 3)
    with pytest.raises(ShapeError, match="outside"):
        device.download(buffer, 11)
    with pytest.raises(ShapeError, match="C-contiguous"):
        device.upload(buffer, np.zeros((4, 4), np.uint8)[:, :2])


def test_too_much_memory_is_refused_with_both_figures(device) -> None:
    for nbytes in (1 << 46, 1 << 62, 1 << 80):
        with pytest.raises(OutOfMemoryError, match=f"'huge' needs {nbytes} bytes") as caught:
            device.allocate(nbytes, "huge")
        assert caught.value.bytes_asked == nbytes
        assert 0 < caught.value.bytes_free < nbytes


def test_a_freed_buffer_is_refused_and_its_views_live_on(device) -> None:
    buffer = device.allocate(1 << 20, "gone")
    view = device.view(buffer)
    view[5] = 9
    buffer.free()
    buffer.free()
    gc.collect()
    assert view[5] == 9
    with pytest.raises(DeviceError, match="'gone' was freed"):
        device.view(buffer)


def test_a_prepared_sequence_keeps_its_buffers_and_code(open_with) -> None:
    device, kernels = open_with(2)
    counts = device.allocate(8 * 64, "counts")
    view = device.view(counts).view(np.int64)
    step = device.prepare(
        [Launch(kernel=kernels["count"], arguments=(BufferArgument(counts),), grid=(GridDim(64),))]
    )
    counts.free()
    del counts, kernels
    gc.collect()
    device.run(step, {})
    assert (view == 1).all()


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="of -1 bytes"):
        allocate_bytes(-1, "b")
