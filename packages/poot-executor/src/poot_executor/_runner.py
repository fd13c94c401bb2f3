"""What runs a program's launches: a device, or the NumPy meaning of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from poot_executor._ladder import Recordings
from poot_executor._program import Program, ProgramLaunch
from poot_executor._sampling import Sampled, Sampler

__all__ = ["SLOTS", "Runner", "StepKey", "regime_of", "selected_launches", "step_slots"]

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

SLOTS: tuple[tuple[str, str], ...] = (
    ("token_ids", "T"),
    ("positions", "T"),
    ("rows", "T"),
    ("sequence_lengths", "R"),
    ("block_tables", "R"),
    ("slot_mapping", "T"),
    ("logit_positions", "L"),
    ("token_types", "T"),
)
"""Slots of a step and the symbol that their rows count."""


class StepKey(NamedTuple):
    """What chooses the variants of a step's launches.

    Attributes:
        tokens: Regime of T.
        logits: Regime of L.
        is_decode: Whether each row has one token.
        merges: For each attention class whether some token has several splits.
    """

    tokens: int
    logits: int
    is_decode: bool
    merges: tuple[bool, ...]


def regime_of(rows: int) -> int:
    """Return the index of a regime: 1; 2 to 8; 9 to 64; more.

    >>> [regime_of(n) for n in (1, 2, 8, 9, 64, 65)]
    [0, 1, 1, 2, 2, 3]
    """
    return 0 if rows <= 1 else 1 if rows <= 8 else 2 if rows <= 64 else 3


def selected_launches(program: Program, key: StepKey) -> list[tuple[ProgramLaunch, int]]:
    """Return the launches of a step and the request that each runs, an index."""
    chosen: list[tuple[ProgramLaunch, int]] = []
    for launch in program.launches:
        if launch.role == "merge":
            stride = next(o.value for o in launch.operands if o.kind == "partial_stride")
            assert isinstance(stride, int)
            if not key.merges[stride]:
                continue
        variant = 0
        if launch.select == "regime":
            variant = key.tokens if launch.symbol == "T" else key.logits
        elif launch.select == "query_tile":
            variant = 0 if key.is_decode else 1
        chosen.append((launch, launch.variants[variant]))
    return chosen


def step_slots(
    max_tokens: int, max_logits: int, max_sequences: int, max_blocks: int
) -> dict[str, tuple[int, ...]]:
    """Return the shape of the largest array of each slot."""
    rows = {"T": max_tokens, "L": max_logits, "R": max_sequences}
    shapes: dict[str, tuple[int, ...]] = {name: (rows[symbol],) for name, symbol in SLOTS}
    shapes["block_tables"] = (max_sequences, max_blocks)
    return shapes


class Runner(Protocol):
    """Memory and launches of one program."""

    @property
    def slots(self) -> Mapping[str, Int32]:
        """Host arrays that the next ``run`` reads, each of the largest size of its slot."""
        ...

    @property
    def work(self) -> Sequence[Int32]:
        """For each attention class the host array of its work list, (capacity, 4)."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as laid out."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes of the pools."""
        ...

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediates and of a step's inputs."""
        ...

    @property
    def sampler_bytes(self) -> int:
        """Bytes that sampling takes once every kind of it was asked for."""
        ...

    @property
    def may_capture(self) -> bool:
        """Whether recording a step may be of use: a device says so when it is asked."""
        ...

    @property
    def recordings(self) -> Recordings:
        """What recording steps has cost so far."""
        ...

    def capture(self, key: StepKey, sizes: Mapping[str, int]) -> bool:
        """Record a step while idle; False if that is of no use."""
        ...

    def begin(self) -> None:
        """Wait until the arrays of ``slots`` and ``work`` may be written again."""
        ...

    @property
    def sampler(self) -> Sampler:
        """What samples the last step's logits."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether steps are queued and ``start_results`` may be asked."""
        ...

    def start_results(
        self, num_tokens: int, num_sampled: int
    ) -> Callable[[], tuple[Sampled, Int32]]:
        """Return what waits for the last step: its samples, and the (T,) flags of its tokens."""
        ...

    def run(self, key: StepKey, sizes: Mapping[str, int], feeds: Int32 | None = None) -> None:
        """Run one step; ``feeds`` are (F, 2) pairs of a place of its tokens and a sampler's slot."""
        ...

    def logits(self, rows: int) -> Float32:
        """Return (rows, vocab_size) logits, or an encoder's rows, of the last step, a view."""
        ...

    def greedy(self, rows: int) -> Int32:
        """Return (rows,) ids of the largest logits of the last step."""
        ...

    def take_faults(self, symbol: str, rows: int) -> Int32 | None:
        """Return the flags of the first rows and clear them; None if none is set."""
        ...

    def time(self, key: StepKey, sizes: Mapping[str, int], *, repeat: int) -> NDArray[np.float64]:
        """Run a step ``repeat`` times and return (num_launches,) median seconds."""
        ...

    def read_bandwidth_gb_s(self, nbytes: int) -> float:
        """Return how fast kernels read ``nbytes``, GB/s."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...
