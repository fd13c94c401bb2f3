"""Arrays in GGUF metadata, read lazily: a vocabulary is scanned once and decoded on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from poot_load._mapping import Cursor, MappedFile
from poot_load._refusal import refusal

__all__ = ["StringArray", "scan_strings"]


class StringArray(Sequence[str]):
    """Strings that lie in a file, each after its 64-bit length; decoded when asked for."""

    def __init__(
        self, file: MappedFile, field: str, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        # The map itself, not the file: strings stay readable after the file is closed.
        self._buffer = file.buffer
        self._bytes = file.bytes
        self._path = file.path
        self._field = field
        self._starts = starts
        self._lengths = lengths

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._decode(self.encoded(index), index)

    def __iter__(self) -> Iterator[str]:
        data = self._buffer
        starts, ends = self._starts.tolist(), (self._starts + self._lengths).tolist()
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            yield self._decode(data[start:end], index)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each string."""
        return self._lengths

    def to_list(self) -> list[str]:
        """Return all strings, decoded in one go."""
        if not len(self):
            return []
        # Each length's first byte becomes a separator and its other bytes go; the text between is
        # decoded and split by two calls, which is several times faster than string by string.
        region = self.region().copy()
        heads = self._starts - 8 - (int(self._starts[0]) - 8)
        keep = np.ones(len(region), dtype=np.bool_)
        for byte in range(1, 8):
            keep[heads + byte] = False
        region[heads] = 0
        try:
            out = region[keep].tobytes().decode().split("\0")[1:]
        except UnicodeDecodeError:
            return list(self)  # names the string that is at fault
        return out if len(out) == len(self) else list(self)  # a string holds a NUL itself

    def encoded(self, index: int) -> bytes:
        """Return the bytes of one string.

        Raises:
            IndexError: If there is no such string.
        """
        start = int(self._starts[index])
        return self._buffer[start : start + int(self._lengths[index])]

    def region(self) -> NDArray[np.uint8]:
        """Return the bytes of the whole array, lengths included: a view, for hashing."""
        if not len(self):
            return self._bytes[:0]
        stop = int(self._starts[-1] + self._lengths[-1])
        return self._bytes[int(self._starts[0]) - 8 : stop]

    def _decode(self, data: bytes, index: int) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            field = f"{self._field}[{index}]"
            raise refusal(self._path, field, data, f"UTF-8 ({error.reason})") from None


_SEGMENT = 4096


def scan_strings(file: MappedFile, cursor: Cursor, field: str, count: int) -> StringArray:
    """Find ``count`` strings at the cursor and move it past them.

    The chain of lengths must be walked one by one. Nearly all strings are shorter than 256 bytes, so
    a segment's walk looks at one byte of each length and checks the other seven afterwards, all at
    once; from the first string that is longer, or does not fit, on it goes on with care.

    Raises:
        CheckpointError: If a string does not fit into the file.
    """
    parts: list[NDArray[np.int64]] = []
    done = 0
    while done < count:
        heads = _walk_short(file, cursor, min(_SEGMENT, count - done))
        parts.append(heads + 8)
        done += len(heads)
        if done < count:
            name = f"{field}[{done}]"
            size = cursor.count(f"length of {name}", 1)
            parts.append(np.array([cursor.need(size, name)], dtype=np.int64))
            done += 1
    parts.append(np.array([cursor.offset + 8], dtype=np.int64))
    starts = np.concatenate(parts)
    return StringArray(file, field, starts[:-1], np.diff(starts) - 8)


def _walk_short(file: MappedFile, cursor: Cursor, count: int) -> NDArray[np.int64]:
    """Return where up to ``count`` strings of less than 256 bytes begin, and move past them."""
    buffer, stop = file.buffer, cursor.stop
    position = cursor.offset
    heads: list[int] = []
    append = heads.append
    try:
        for _ in range(count):
            append(position)
            position += 8 + buffer[position]
    except IndexError:
        position = stop + 1
    heads.append(position)
    ends = np.array(heads, dtype=np.int64)
    at = ends[:-1][ends[1:] <= stop]  # ascending, so these are the first ones
    high = np.zeros(len(at), dtype=np.uint8)
    for byte in range(1, 8):
        high |= file.bytes[at + byte]
    good = int(np.flatnonzero(high)[0]) if high.any() else len(at)
    cursor.offset = int(ends[good])
    return at[:good]
