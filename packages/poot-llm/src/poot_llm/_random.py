"""A counter-based random generator: the same key and counter give the same number everywhere.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). It keeps no
state, so a token's random number does not depend on what else runs or ran, and a device can draw the
same one.
"""

from __future__ import annotations

__all__ = ["philox4x32", "random_bits", "uniform"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of one block.

    Args:
        counter: Four 32-bit words.
        key: Two 32-bit words.

    >>> [hex(word) for word in philox4x32((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    k, m = key
    for _ in range(_ROUNDS):
        left = _MULTIPLIERS[0] * a
        right = _MULTIPLIERS[1] * c
        a, b, c, d = (right >> 32) ^ b ^ k, right & _MASK, (left >> 32) ^ d ^ m, left & _MASK
        k = (k + _WEYL[0]) & _MASK
        m = (m + _WEYL[1]) & _MASK
    return a, b, c, d


def random_bits(seed: int, choice: int, position: int, *, purpose: int = 0) -> int:
    """Return 64 random bits.

    Args:
        seed: Key of the request, taken modulo 2**64.
        choice: Which answer of the request this is.
        position: Position in the sequence of the token to draw.
        purpose: 0 draws the token; further numbers of one position have purposes of their own.

    >>> random_bits(7, 0, 12) == random_bits(7, 0, 12) != random_bits(7, 0, 13)
    True
    """
    high, low, _, _ = philox4x32(
        (position & _MASK, choice & _MASK, purpose, 0), (seed & _MASK, (seed >> 32) & _MASK)
    )
    return high << 32 | low


def uniform(seed: int, choice: int, position: int, *, purpose: int = 0) -> float:
    """Return a number in [0, 1) with 53 random bits, the upper ones of ``random_bits``."""
    return (random_bits(seed, choice, position, purpose=purpose) >> 11) / 2.0**53
