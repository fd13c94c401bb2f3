"""The block manager: who holds which blocks of the KV pool, and which contents may be used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

__all__ = ["BlockManager"]


class BlockManager:
    """Hands out blocks of a paged KV pool (PagedAttention, arXiv:2309.06180) and shares full ones.

    A block is held by any number of sequences. One whose content is complete may be given a hash; when
    nobody holds it any more it keeps its content until the pool needs it, least recently used first.
    The block freed last is handed out first and a fresh pool from block 0 on, so that an idle engine
    touches few pages of its pool.

    >>> manager = BlockManager(4)
    >>> manager.allocate(3), manager.allocate(2), manager.num_free
    ([0, 1, 2], None, 1)
    >>> manager.name(0, b"hash"), manager.free([2, 1, 0]), manager.num_free, manager.num_cached
    (None, None, 4, 1)
    >>> manager.match([b"hash", b"other"])
    [0]
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        # Blocks with content that nobody holds; the least recently used first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, those with content that may be used again among them."""
        return len(self._empty) + len(self._idle)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and whose content may be used again."""
        return len(self._idle)

    def allocate(self, count: int) -> list[int] | None:
        """Return ``count`` blocks, or None (and change nothing) where fewer are free."""
        if count > self.num_free:
            return None
        blocks: list[int] = []
        for _ in range(count):
            block = self._empty.pop() if self._empty else self._evict()
            assert not self._holders[block], f"block {block} is handed out twice"
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold the first of ``hashes``, as many as there are; takes none."""
        blocks: list[int] = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_idle_among(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks nobody holds."""
        return sum(not self._holders[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Hold further blocks that ``match`` gave."""
        for block in blocks:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1

    def name(self, block: int, content: bytes) -> None:
        """Say what a block holds; where another holds the same, that one stays the one to share."""
        if self._hash_of[block] is None and content not in self._block_of:
            self._hash_of[block] = content
            self._block_of[content] = block

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back, those to be reused first last."""
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} is freed twice"
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._hash_of[block] is None:
                self._empty.append(block)
            else:
                self._idle[block] = None

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        content = self._hash_of[block]
        assert content is not None, "an idle block has content"
        del self._block_of[content]
        self._hash_of[block] = None
        return block
