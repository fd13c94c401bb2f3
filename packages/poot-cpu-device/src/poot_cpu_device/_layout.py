"""Byte offsets of the records that Python and the compiled runtime share.

What several threads write lies on cache lines of its own; two lines apart, because processors fetch
lines in pairs.
"""

from __future__ import annotations

__all__ = [
    "BLOCK_BYTES",
    "LAUNCH_WORDS",
    "RESIZE_WORDS",
    "Launch",
    "Prepared",
    "Resize",
    "Team",
]

BLOCK_BYTES = 1024


class Team:
    """The control block of a thread team. A futex word is followed by its count of sleepers."""

    GENERATION = 0  # u32: which step the team works on; u32: threads asleep on it
    NEXT_TILE = 128  # i64: first tile of the launch that no thread has taken
    ARRIVED = 136  # u32: threads that wait at the barrier
    PHASE = 256  # u32: barriers passed; u32: threads asleep on it
    PREPARED = 384  # ptr: the step's sequence; from here on written between steps only
    THREADS = 392  # i64
    SCRATCH = 400  # ptr: private scratch of thread 0
    SCRATCH_STRIDE = 408  # i64: bytes from one thread's scratch to the next
    BARRIER_TICKS = 416  # i64: how long a barrier spins before it sleeps
    IDLE_TICKS = 424  # i64: how long a thread spins for the next step before it sleeps
    QUIT = 432  # i32: 1 ends the threads
    NAP = 440  # ptr: int usleep(unsigned), used where there is no futex


class Prepared:
    """A prepared sequence."""

    TABLE = 0  # ptr: launches
    NUM_LAUNCHES = 8
    RESIZES = 16  # ptr: launches whose grid depends on a symbol
    NUM_RESIZES = 24
    PATCHES = 32  # ptr: (argument slot's address, symbol's index) pairs
    NUM_PATCHES = 40
    VALUES = 48  # ptr: i64 symbol values; value 0 is 1
    STAMPS = 56  # ptr: num_launches + 1 tick stamps of thread 0, or null


class Launch:
    """Byte offsets in one launch, LAUNCH_WORDS * 8 bytes apart."""

    KERNEL = 0
    ARGUMENTS = 8
    TILES = 16
    GRAIN = 24


class Resize:
    """Byte offsets in one resize, RESIZE_WORDS * 8 bytes apart; three axes from AXES on."""

    LAUNCH = 0  # i64: index of the launch
    AXES = 8  # per axis: coefficient, symbol's index, divisor, address of its GridArgument or 0
    AXIS_BYTES = 32


LAUNCH_WORDS = 4
RESIZE_WORDS = 13
