"""Hashes of prefixes: what a block of keys and values was computed from, and for whom.

A block's hash covers every token before it too, so equal hashes mean equal content. SHA-256, because
a prefix that an attacker could forge would give one client the answers of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["extend_hashes", "root_hash"]


def root_hash(
    *, adapter: str | None = None, media: Iterable[bytes] = (), cache_salt: str | None = None
) -> bytes:
    """Return the hash that a chain starts from: all that shapes keys and values beside the tokens.

    Args:
        adapter: Name and version of the adapter, or None.
        media: Digests of images and the like, in order.
        cache_salt: Prefixes are shared only within one salt.

    >>> root_hash() != root_hash(cache_salt="a") != root_hash(adapter="a")
    True
    """
    digest = hashlib.sha256(b"poot prefix")
    parts = [b"" if text is None else b"=" + text.encode() for text in (adapter, cache_salt)]
    for part in (*parts, *media):
        # Lengths in front, so that no two lists of parts read the same.
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def extend_hashes(
    hashes: list[bytes], root: bytes, tokens: NDArray[np.int32], block_size: int
) -> None:
    """Append the hashes of the full blocks of ``tokens`` that ``hashes`` does not have yet.

    Args:
        hashes: Those of the first blocks, in order.
        root: Where the chain starts.
        tokens: (n,) int32, from the first token on.
        block_size: Tokens of one block.
    """
    start = len(hashes) * block_size
    previous = hashes[-1] if hashes else root
    data = tokens[start:].tobytes()
    step = 4 * block_size
    for at in range(0, len(data) - step + 1, step):
        previous = hashlib.sha256(previous + data[at : at + step]).digest()
        hashes.append(previous)
