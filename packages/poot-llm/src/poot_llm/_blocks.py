"""The block manager: which blocks of the KV pool are free."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockManager"]


class BlockManager:
    """Hands out blocks of a paged KV pool (PagedAttention, arXiv:2309.06180).

    The block freed last is handed out first and a fresh pool from block 0 on, so that an idle engine
    touches few pages of its pool.

    >>> manager = BlockManager(4)
    >>> manager.allocate(3), manager.allocate(2), manager.num_free
    ([0, 1, 2], None, 1)
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_used = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Return ``count`` blocks, or None (and change nothing) where fewer are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            assert not self._is_used[block], f"block {block} is handed out twice"
            self._is_used[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Take blocks back."""
        for block in blocks:
            assert self._is_used[block], f"block {block} is freed twice"
            self._is_used[block] = 0
            self._free.append(block)
