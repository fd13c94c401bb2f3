"""Byte offsets of the records that Python and the compiled runtime share.

What changes at different times lies on different cache lines, two apart because processors fetch lines
in pairs.
"""

from __future__ import annotations

__all__ = [
    "BLOCK_BYTES",
    "CLOSED",
    "LAUNCH_WORDS",
    "MOST_CLAIMS",
    "RESIZE_WORDS",
    "Launch",
    "Prepared",
    "Resize",
    "Team",
]

BLOCK_BYTES = 1024
CLOSED = 0xFFFFFFFF  # the lower half of a claim while there is no open launch
MOST_CLAIMS = 8  # parts of a launch that threads take tiles of


class Team:
    """The control block of a thread team.

    The first line describes the open launch: whoever waits for it gets all of it with one transfer.
    """

    CLAIM = 0  # u32: first tile of part 0 that no thread has taken; u32: serial of the launch
    SERIAL = 4  # the upper half of CLAIM, what waiting threads watch and sleep on
    KERNEL = 8  # ptr
    ARGUMENTS = 16  # ptr
    TILES = 24  # i64, less than CLOSED
    GRAIN = 32  # i64
    DONE = 40  # i64: tiles that are finished
    SLEEPING = 48  # i32: 1 if a thread may be asleep
    FURTHER_CLAIMS = 56  # the same words as CLAIM for the other parts, MOST_CLAIMS - 1 of them
    PREPARED = 128  # ptr: the step's sequence
    NEXT_LAUNCH = 136  # i64: index of the launch after the open one
    ACTIVE = 144  # i32: 1 while a step runs
    THREADS = 256  # i64; from here on written between steps only
    SCRATCH = 264  # ptr: private scratch of thread 0
    SCRATCH_STRIDE = 272  # i64: bytes from one thread's scratch to the next
    STEP_TICKS = 280  # i64: how long a thread spins within a step before it sleeps
    IDLE_TICKS = 288  # i64: how long it spins for the next step
    QUIT = 296  # i32: 1 ends the threads
    NAP = 304  # ptr: int usleep(unsigned), used where there is no futex


class Prepared:
    """A prepared sequence."""

    TABLE = 0  # ptr: launches
    NUM_LAUNCHES = 8
    RESIZES = 16  # ptr: launches whose grid depends on a symbol
    NUM_RESIZES = 24
    PATCHES = 32  # ptr: (argument slot's address, symbol's index) pairs
    NUM_PATCHES = 40
    VALUES = 48  # ptr: i64 symbol values; value 0 is 1
    STAMPS = 56  # ptr: when each launch began (ticks) and when the last ended, or null


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
