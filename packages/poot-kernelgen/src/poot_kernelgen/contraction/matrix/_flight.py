"""How much of a weight a kernel for few rows asks for ahead."""

from __future__ import annotations

from poot_kernelgen.requests import Flight

__all__ = ["flight_of"]

_WHOLE_WEIGHTS = 5 << 20  # elements of a weight that multiprocessors hold in their rings
_CROWDED_ROWS = 2 * 132 * 16  # of a weight: more workgroups than two for each multiprocessor
_CHUNK, _LONG = 1024, 8192  # k that one warp of a workgroup streams, and that eight do
_WIDE_ROWS = 16384  # a single chain: one warp a workgroup
_MOST_WIDE_ROWS = 4 * 132 * 32


def flight_of(rows: int, depth: int) -> Flight:
    """Return how much of a weight of (rows, depth) a kernel for few rows has on its way at once.

    A small weight is fetched whole before earlier kernels end. Of a larger one rings are as long as lets
    every workgroup run at once.

    >>> flight_of(2048, 2048), flight_of(4096, 4096), flight_of(4096, 14336), flight_of(6144, 4096)
    ('all', 'many', 'few', 'few')
    """
    if rows * depth <= _WHOLE_WEIGHTS:
        return "all"
    if rows >= _WIDE_ROWS:
        return "few" if rows > _MOST_WIDE_ROWS else "many"
    is_crowded = rows > _CROWDED_ROWS and depth > _CHUNK
    return "few" if is_crowded or depth > _LONG else "many"
