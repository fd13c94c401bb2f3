"""The table of running sequences: one row each, in arrays, so that a step costs no object a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_executor import EngineOptions
from poot_kernelgen import SAMPLE_FIELDS

__all__ = ["RowTable"]

Int32 = NDArray[np.int32]


class RowTable:
    """State of running sequences that a step reads and writes.

    A row belongs to one sequence from its admission until it ends or is put back.

    Attributes:
        tokens: (max_sequences, context_tokens) prompt and answer.
        tables: (max_sequences, max_blocks_per_row) KV blocks in order of position, then zeros.
        num_blocks: (max_sequences,) blocks that are set in ``tables``.
        computed: (max_sequences,) tokens whose keys and values stand in the pool.
        length: (max_sequences,) tokens that are known.
        last: (max_sequences,) the last of them.
        limit: (max_sequences,) length at which the sequence ends.
        request_ids: (max_sequences,) whose row it is.
        obeys_eos: (max_sequences,) whether the model's own end tokens end it.
        needs_care: (max_sequences,) whether its tokens are chosen or looked at one by one.
        is_sampled: (max_sequences,) whether the engine's sampler chooses its tokens.
        words: (max_sequences, fields) what the engine's sampler knows of such a row.
        version: Changes whenever ``tables`` does.
    """

    def __init__(self, options: EngineOptions) -> None:
        count = options.max_sequences
        # Not touched before it is used, so that a long context costs no memory.
        self.tokens: Int32 = np.empty((count, options.context_tokens), np.int32)
        self.tables: Int32 = np.zeros((count, options.max_blocks_per_row), np.int32)
        self.num_blocks: Int32 = np.zeros(count, np.int32)
        self.computed: Int32 = np.zeros(count, np.int32)
        self.length: Int32 = np.zeros(count, np.int32)
        self.last: Int32 = np.zeros(count, np.int32)
        self.limit: Int32 = np.zeros(count, np.int32)
        self.request_ids: NDArray[np.int64] = np.zeros(count, np.int64)
        self.obeys_eos: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.needs_care: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.is_sampled: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.words: NDArray[np.uint32] = np.zeros((count, len(SAMPLE_FIELDS)), np.uint32)
        self.version = 0
        self._free = list(range(count - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Rows that belong to nobody."""
        return len(self._free)

    def take(self) -> int:
        """Return a free row."""
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Free a row."""
        self.tables[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = 0
        self.version += 1
        self._free.append(row)

    def append_blocks(self, row: int, blocks: list[int]) -> None:
        """Add blocks to a row."""
        count = int(self.num_blocks[row])
        self.tables[row, count : count + len(blocks)] = blocks
        self.num_blocks[row] = count + len(blocks)
        self.version += 1

    def blocks(self, row: int) -> list[int]:
        """Return the blocks of a row, in order of position."""
        return self.tables[row, : self.num_blocks[row]].tolist()
