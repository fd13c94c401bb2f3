"""Choosing next tokens where the logits are: what every sampler does, and the one in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING_SAMPLED", "NumpySampler", "Sampled", "Sampler"]

Int32 = NDArray[np.int32]
Uint32 = NDArray[np.uint32]
Float32 = NDArray[np.float32]


class Sampled(NamedTuple):
    """What a step sampled.

    Attributes:
        token_ids: (S,) int32.
        faults: (S,) int32, 1 where a logit was a NaN or the largest no finite number.
    """

    token_ids: Int32
    faults: Int32


NOTHING_SAMPLED = Sampled(np.zeros(0, np.int32), np.zeros(0, np.int32))


class Sampler(Protocol):
    """Samples rows of the last step; keeps last tokens and counts by slot."""

    def sample(self, params: Uint32, num_logits: int) -> None:
        """Start sampling (S, fields) rows of the last step's logits."""
        ...

    def sampled(self) -> Sampled:
        """Return what the last ``sample`` gave."""
        ...

    def set_counts(self, slot: int, entries: Uint32) -> None:
        """Set what penalties count of a slot to (E, 2) pairs of id and count."""
        ...

    def feed(self, feeds: Int32, num_tokens: int) -> None:
        """Put last tokens into a step's token ids, by (F, 2) pairs of place and slot."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...


class NumpySampler:
    """Implements ``Sampler`` by the NumPy meaning of its kernels.

    Args:
        logits: Returns the (L, vocab_size) logits of the last step, which are changed.
        token_ids: Returns the (T,) array that a step's tokens are read from.
        vocab_size: Width of a row.
        num_slots: Rows of the tables.
    """

    def __init__(
        self,
        logits: Callable[[], Float32],
        token_ids: Callable[[], Int32],
        vocab_size: int,
        num_slots: int,
    ) -> None:
        self._logits = logits
        self._token_ids = token_ids
        self._last: Int32 = np.zeros(num_slots, np.int32)
        self._vocab_size = vocab_size
        self._counts: Uint32 | None = None
        self._sampled = NOTHING_SAMPLED

    def sample(self, params: Uint32, num_logits: int) -> None:
        """Sample rows of the last step."""
        from poot_kernelgen import SAMPLE_FIELDS
        from poot_kernelgen import reference as ref

        self._sampled = Sampled(*ref.sample(self._logits(), params, self._counts))
        slots = params[:, SAMPLE_FIELDS.index("slot")]
        self._last[slots] = self._sampled.token_ids

    def sampled(self) -> Sampled:
        """Return what the last ``sample`` gave."""
        return self._sampled

    def set_counts(self, slot: int, entries: Uint32) -> None:
        """Set what penalties count of a slot."""
        if self._counts is None:
            self._counts = np.zeros((self._last.size, self._vocab_size), np.uint32)
        self._counts[slot] = 0
        self._counts[slot, entries[:, 0]] = entries[:, 1]

    def feed(self, feeds: Int32, num_tokens: int) -> None:
        """Put last tokens into a step's token ids."""
        self._token_ids()[feeds[:, 0]] = self._last[feeds[:, 1]]

    def close(self) -> None:
        """Do nothing: arrays go by themselves."""
