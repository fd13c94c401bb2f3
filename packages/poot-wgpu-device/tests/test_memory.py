from __future__ import annotations

import numpy as np
import pytest

from poot_core import DeviceError, OutOfMemoryError, ShapeError
from poot_wgpu_device import _memory
from poot_wgpu_device._gpu import GpuError

RNG = np.random.default_rng(3)
pytestmark = pytest.mark.device


def test_memory_is_zeroed_and_keeps_what_is_written(device):
    buffer = device.allocate(1003, "odd")
    assert buffer.nbytes == 1003
    assert not device.download(buffer).any()
    data = RNG.integers(1, 256, 1003).astype(np.uint8)
    device.upload(buffer, data)
    np.testing.assert_array_equal(device.download(buffer), data)


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64])
def test_pieces_of_words_leave_their_neighbours(device, offset, size):
    before = RNG.integers(0, 256, 80).astype(np.uint8)
    piece = RNG.integers(0, 256, size).astype(np.uint8)
    buffer = device.allocate(80, "pieces")
    device.upload(buffer, before)
    device.upload(buffer, piece, offset)
    wanted = before.copy()
    wanted[offset : offset + size] = piece
    np.testing.assert_array_equal(device.download(buffer), wanted)
    np.testing.assert_array_equal(device.download(buffer, offset, size), piece)


def test_more_than_the_staging_memory_comes_back(device):
    data = RNG.integers(0, 256, (40 << 20) + 12).astype(np.uint8)
    buffer = device.allocate(data.nbytes, "much")
    device.upload(buffer, data)
    np.testing.assert_array_equal(device.download(buffer), data)
    buffer.free()


def test_long_uploads_are_queued_piece_by_piece(device, monkeypatch):
    monkeypatch.setattr(_memory, "_CHUNK_BYTES", 4096)
    data = RNG.integers(0, 256, 50003).astype(np.uint8)
    buffer = device.allocate(data.nbytes, "pieces")
    device.upload(buffer, data)
    np.testing.assert_array_equal(device.download(buffer), data)


def test_a_refused_buffer_is_an_error_of_its_kind(device, monkeypatch):
    for is_memory, kind in ((True, OutOfMemoryError), (False, DeviceError)):

        def refuse(*_arguments, is_memory=is_memory):
            raise GpuError("the driver says no", is_memory=is_memory)

        monkeypatch.setattr(device._gpu, "buffer", refuse)
        with pytest.raises(kind, match="the driver says no"):
            device.allocate(64, "x")


def test_the_upload_may_be_changed_at_once(device):
    buffer = device.allocate(4096, "x")
    data = RNG.integers(0, 256, 4096).astype(np.uint8)
    wanted = data.copy()
    device.upload(buffer, data)
    data[:] = 0
    np.testing.assert_array_equal(device.download(buffer), wanted)


def test_the_host_sees_no_device_memory(device):
    assert device.view(device.allocate(16, "x")) is None
    assert device.import_host(np.zeros(4), "x") is None


def test_bytes_outside_of_a_buffer_are_refused(device):
    buffer = device.allocate(64, "small")
    with pytest.raises(ShapeError, match=r"bytes 60\.\.68 lie outside buffer 'small' of 64 bytes"):
        device.upload(buffer, np.zeros(8, np.uint8), 60)
    with pytest.raises(ShapeError, match="outside buffer 'small'"):
        device.download(buffer, -1, 4)
    with pytest.raises(ShapeError, match="C-contiguous"):
        device.upload(buffer, np.zeros((4, 4), np.float32).T[1:])


def test_more_memory_than_there_is_is_refused_and_the_device_goes_on(device):
    with pytest.raises(
        OutOfMemoryError, match="buffer 'all' needs 1125899906842624 bytes"
    ) as caught:
        device.allocate(1 << 50, "all")
    assert caught.value.bytes_asked == 1 << 50
    assert caught.value.bytes_free < 1 << 50
    assert "use a smaller context" in caught.value.message
    buffer = device.allocate(64, "after")
    device.upload(buffer, np.arange(64, dtype=np.uint8))
    assert device.download(buffer)[63] == 63


def test_a_freed_buffer_is_refused(device):
    buffer = device.allocate(64, "gone")
    held = device._memory.held_bytes
    buffer.free()
    buffer.free()
    assert device._memory.held_bytes == held - 256
    with pytest.raises(DeviceError, match="buffer 'gone' was freed"):
        device.download(buffer)


def test_downloads_wait_for_their_own_place_in_the_queue_and_alternate(device):
    sizes = [(0, 1003), (5, 2), (64, 0)]
    pending, wanted = [], []
    buffer = device.allocate(1003, "odd")
    for _ in range(2):
        data = RNG.integers(1, 256, 1003).astype(np.uint8)
        device.upload(buffer, data)
        pending.append(device.start_download([(buffer, *size) for size in sizes]))
        wanted.append([data[start : start + count] for start, count in sizes])
    device.upload(buffer, np.zeros(1003, np.uint8))  # later work: the copies came before it
    for one, pieces in zip(pending, wanted, strict=True):
        for got, piece in zip(one.wait(), pieces, strict=True):
            np.testing.assert_array_equal(got, piece)
    first, second, third = [device.start_download([(buffer, 0, 4)]) for _ in range(3)]
    with pytest.raises(DeviceError, match="two later downloads were started"):
        first.wait()
    assert not third.wait()[0].any()
    assert not second.wait()[0].any()
    assert device.start_download([]).wait() == ()
    with pytest.raises(ShapeError, match="lie outside"):
        device.start_download([(buffer, 1000, 8)])
