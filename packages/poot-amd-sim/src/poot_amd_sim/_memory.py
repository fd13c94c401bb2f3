"""Simulated device memory with bounds, and word access to any byte array."""

from __future__ import annotations

from bisect import insort
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_amd_sim._errors import SimulationFault

__all__ = ["Memory", "read_items", "write_items"]

Bytes = NDArray[np.uint8]
Addresses = NDArray[np.uint64]

_GRANULE = 256


class Memory:
    """One address space. Every buffer has a gap behind it; touching anything else is a fault.

    Attributes:
        capacity: Bytes that can be allocated in all.
    """

    def __init__(self, capacity: int = 1 << 28, base: int = 0x7E4000000000) -> None:
        self.capacity, self.base = capacity, base
        self.bytes: Bytes = np.zeros(2 * capacity + (1 << 20), np.uint8)  # pages come when touched
        self._blocks: list[tuple[int, int, str]] = []  # offset, size, label; by offset
        self.used = 0
        self._index()

    @property
    def free_bytes(self) -> int:
        """Bytes left."""
        return self.capacity - self.used

    def allocate(self, nbytes: int, label: str = "") -> int | None:
        """Return the address of a new block, or None if there is no room."""
        if nbytes > self.free_bytes:
            return None
        room = -(-max(nbytes, 1) // _GRANULE) * _GRANULE + _GRANULE
        place = _GRANULE
        for offset, size, _ in self._blocks:
            if offset - place >= room:
                break
            place = offset + -(-max(size, 1) // _GRANULE) * _GRANULE + _GRANULE
        if place + room > len(self.bytes):
            return None
        self.bytes[place : place + nbytes] = 0xCD  # as undefined as the real thing
        insort(self._blocks, (place, nbytes, label))
        self.used += nbytes
        self._index()
        return self.base + place

    def release(self, address: int) -> bool:
        """Forget a block; False if there is none at the address."""
        for block in self._blocks:
            if block[0] == address - self.base:
                self._blocks.remove(block)
                self.used -= block[1]
                self._index()
                return True
        return False

    def block(self, address: int, nbytes: int) -> Bytes | None:
        """Return a view of bytes within one block, or None."""
        for offset, size, _ in self._blocks:
            start = address - self.base
            if offset <= start and start + nbytes <= offset + size:
                return self.bytes[start : start + nbytes]
        return None

    def _index(self) -> None:
        self._starts = np.array([self.base + b[0] for b in self._blocks] or [0], np.uint64)
        self._ends = np.array([self.base + b[0] + b[1] for b in self._blocks] or [0], np.uint64)

    def offsets(self, addresses: Addresses, nbytes: int, text: str) -> NDArray[np.intp]:
        """Return addresses as offsets into ``bytes``.

        Raises:
            SimulationFault: If any access leaves its buffer.
        """
        if addresses.size == 0:
            return addresses.astype(np.intp)
        edges = np.array([addresses.min(), addresses.max()])
        found = np.searchsorted(self._starts, edges, side="right") - 1
        if found[0] != found[1] or found[0] < 0 or edges[1] + nbytes > self._ends[found[1]]:
            found = np.searchsorted(self._starts, addresses, side="right") - 1
            good = (found >= 0) & (addresses + np.uint64(nbytes) <= self._ends[found])
            if not good.all():
                bad = int(addresses[~good][0])
                raise SimulationFault(
                    f"{text}: {nbytes} bytes at {bad:#x} lie in no buffer{self._near(bad)}",
                    kind="bounds",
                )
        return (addresses - np.uint64(self.base)).astype(np.intp)

    def _near(self, address: int) -> str:
        below = [b for b in self._blocks if self.base + b[0] <= address]
        if not below:
            return ""
        offset, size, label = below[-1]
        return f"; {address - self.base - offset} bytes into {label!r} of {size} bytes"


_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def read_items(data: Bytes, offsets: NDArray[np.intp], size: int) -> NDArray[Any]:
    """Return the little-endian item of 1, 2 or 4 bytes at each offset."""
    unit = _UNITS[size]
    if size == 1 or not (offsets & (size - 1)).any():
        return data.view(unit)[offsets // size if size > 1 else offsets]
    return data[offsets[..., None] + np.arange(size)].view(unit)[..., 0]


def write_items(data: Bytes, offsets: NDArray[np.intp], values: NDArray[Any], size: int) -> None:
    """Write an item at each offset; of equal offsets the last one stays."""
    unit = _UNITS[size]
    values = values.astype(unit)
    if size == 1 or not (offsets & (size - 1)).any():
        data.view(unit)[offsets // size if size > 1 else offsets] = values
        return
    data[offsets[..., None] + np.arange(size)] = values[..., None].view(np.uint8)
