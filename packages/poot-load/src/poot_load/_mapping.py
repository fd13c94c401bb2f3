"""A read-only memory-mapped file, with a cursor that never reads past a bound."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poot_load._refusal import refusal

__all__ = ["Cursor", "MappedFile"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class MappedFile:
    """A file mapped for reading; its views stay valid until the last of them is gone.

    NOTE: a file that another program truncates while it is mapped faults on access (SIGBUS), as with
    any memory map; replace checkpoints by renaming, never in place.
    """

    def __init__(self, path: Path) -> None:
        """Map the file.

        Raises:
            CheckpointError: If it is absent, unreadable, empty or no regular file.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise refusal(path, "file", "absent", "an existing file") from None
        except ValueError:
            raise refusal(path, "file size", 0, "at least one byte") from None
        except OSError as error:
            raise refusal(path, "file", error.strerror or "unreadable", "a readable file") from None
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.buffer, dtype=np.uint8)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.bytes)

    @property
    def buffer(self) -> mmap.mmap:
        """The map itself: indexing gives integers, slicing copies."""
        assert self._map is not None, "the file is closed"
        return self._map

    def release(self, start: int, stop: int) -> None:
        """Let the kernel drop the pages of a byte range; reading them again loads them again."""
        if stop <= start or self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = start - start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, stop - first)

    def close(self) -> None:
        """Let go of the map; it is unmapped when the last view of it goes."""
        self.bytes = np.empty(0, dtype=np.uint8)
        self._map = None


class Cursor:
    """Reads little-endian fields from a map, checking each against the bytes that remain."""

    def __init__(self, file: MappedFile, offset: int = 0, stop: int | None = None) -> None:
        self._buffer = file.buffer
        self.path = file.path
        self.offset = offset
        self.stop = file.size if stop is None else stop

    @property
    def remaining(self) -> int:
        """Bytes up to the bound."""
        return self.stop - self.offset

    def need(self, num_bytes: int, field: str) -> int:
        """Check that ``num_bytes`` remain and return where they begin, moving past them.

        Raises:
            CheckpointError: If fewer remain.
        """
        if num_bytes > self.stop - self.offset:
            raise refusal(
                self.path,
                field,
                f"{num_bytes} bytes at offset {self.offset}",
                f"at most the {self.remaining} bytes that remain",
            )
        start = self.offset
        self.offset = start + num_bytes
        return start

    def u32(self, field: str) -> int:
        """Return an unsigned 32-bit integer."""
        return _U32.unpack_from(self._buffer, self.need(4, field))[0]

    def u64(self, field: str) -> int:
        """Return an unsigned 64-bit integer."""
        return _U64.unpack_from(self._buffer, self.need(8, field))[0]

    def count(self, field: str, each: int, most: int | None = None) -> int:
        """Return a 64-bit count of things that take at least ``each`` bytes.

        Raises:
            CheckpointError: If that many cannot fit into what remains, or are more than ``most``.
        """
        found = self.u64(field)
        fit = self.remaining // each
        limit = fit if most is None else min(fit, most)
        if found > limit:
            raise refusal(self.path, field, found, f"0..{limit}")
        return found

    def text(self, field: str, longest: int | None = None) -> str:
        """Return a string: a 64-bit length and that many bytes of UTF-8.

        Raises:
            CheckpointError: If it is too long or no UTF-8.
        """
        size = self.count(f"length of {field}", 1, longest)
        start = self.need(size, field)
        data = self._buffer[start : start + size]
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise refusal(self.path, field, data, f"UTF-8 ({error.reason})") from None
