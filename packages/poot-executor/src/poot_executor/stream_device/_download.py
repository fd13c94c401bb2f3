"""Results on their way to the host while later work runs: two pinned blocks that alternate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError
from poot_executor.stream_device._driver import StreamDriver
from poot_executor.stream_device._memory import NO_TIMING, PinnedMemory

__all__ = ["DownloadPair", "StreamDownload"]

Bytes = NDArray[np.uint8]
_LEAST_BYTES = 1 << 16


class _Slot:
    """One pinned block and the event that says when it is filled."""

    def __init__(self, driver: StreamDriver) -> None:
        self.block: PinnedMemory | None = None
        self.event: Any = driver.call(driver.dialect.create_event, NO_TIMING)
        self.use = 0  # how often it was filled


class StreamDownload:
    """Implements ``PendingBytes``."""

    def __init__(self, pair: DownloadPair, slot: _Slot, spans: Sequence[tuple[int, int]]) -> None:
        self._pair, self._slot, self._spans = pair, slot, spans
        self._use = slot.use

    def wait(self) -> tuple[Bytes, ...]:
        """Return a copy of each piece.

        Raises:
            DeviceError: If two later ones were started, a kernel failed, or the device is closed.
        """
        slot = self._slot
        if slot.use != self._use:
            raise DeviceError("two later downloads were started; these bytes are gone")
        if not self._spans:
            return ()
        self._pair.wait(slot)
        assert slot.block is not None, "it was filled"
        data = slot.block.data
        return tuple(data[start : start + nbytes].copy() for start, nbytes in self._spans)


class DownloadPair:
    """Copies to the host that are queued like launches, two under way at most.

    Args:
        driver: The driver.
        stream: Where copies are queued.
        enter: Makes the machine current in the thread that asks.
    """

    def __init__(self, driver: StreamDriver, stream: Any, enter: Callable[[], None]) -> None:
        self._driver, self._stream, self._enter = driver, stream, enter
        self._slots: list[_Slot] = []
        self._turn = 0

    def start(self, pieces: Sequence[tuple[int, int]]) -> StreamDownload:
        """Queue copies of (address, bytes) and return what waits for them."""
        driver, names = self._driver, self._driver.dialect
        if not self._slots:
            self._slots = [_Slot(driver), _Slot(driver)]
        slot = self._slots[self._turn]
        self._turn = 1 - self._turn
        slot.use += 1
        spans: list[tuple[int, int]] = []
        total = 0
        for _, nbytes in pieces:
            spans.append((total, nbytes))
            total += -(-nbytes // 64) * 64
        if total:
            block = self._block(slot, total)
            for (address, nbytes), (start, _) in zip(pieces, spans, strict=True):
                if nbytes:
                    driver.call(
                        names.copy_out, block.address + start, address, nbytes, self._stream
                    )
            driver.call(names.record, slot.event, self._stream)
        return StreamDownload(self, slot, spans)

    def wait(self, slot: _Slot) -> None:
        """Wait until a slot is filled, from whatever thread."""
        self._enter()
        self._driver.call(self._driver.dialect.await_event, slot.event)

    def _block(self, slot: _Slot, nbytes: int) -> PinnedMemory:
        if slot.block is None or slot.block.data.nbytes < nbytes:
            if slot.block is not None:
                self._driver.call(self._driver.dialect.await_event, slot.event)
                slot.block.release()
            size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
            slot.block = PinnedMemory(self._driver, size)
        return slot.block

    def close(self) -> None:
        """Give the blocks back; the stream must be idle."""
        for slot in self._slots:
            self._driver.call(self._driver.dialect.destroy_event, slot.event)
            if slot.block is not None:
                slot.block.release()
        self._slots = []
