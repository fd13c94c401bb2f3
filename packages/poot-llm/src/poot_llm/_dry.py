"""DRY, "don't repeat yourself": tokens that would go on with a repetition weigh less.

After p-e-w's sampler (text-generation-webui, pull request 5677), with two bounds of its own: matches
are followed for 64 tokens beyond the allowed length, where the penalty has long outgrown any logit,
and a token whose text holds a breaker ends a match.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["dry_penalties"]

_LONGEST = 64
_MOST_PENALTY = 1e30  # inside float32


def dry_penalties(
    tokens: NDArray[np.int32],
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    search_range: int | None,
    breakers: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return tokens, each once, and what to take off their logits.

    Where the last n tokens stand further in front too, the token that followed them there would make
    the repetition longer; it loses ``multiplier * base ** (n - allowed_length)``, for the largest n.

    Args:
        tokens: (n,) prompt and answer so far.
        multiplier: Strength.
        base: Growth with each further token.
        allowed_length: Shorter repetitions are free.
        search_range: How many of the last tokens are searched; None searches all.
        breakers: (vocab_size,) tokens over which no repetition is seen, or None.

    >>> ids, penalties = dry_penalties(
    ...     np.array([1, 2, 3, 9, 1, 2], np.int32),
    ...     multiplier=1.0, base=2.0, allowed_length=2, search_range=None, breakers=None,
    ... )
    >>> ids.tolist(), penalties.tolist()
    ([3], [1.0])
    """
    if search_range is not None:
        tokens = tokens[max(0, tokens.size - search_range) :]
    last = tokens.size - 1
    places = np.flatnonzero(tokens[: max(last, 0)] == tokens[last:][:1])
    lengths = np.zeros(max(last, 0), np.int64)
    for length in range(1, allowed_length + _LONGEST + 1):
        # ``places``: where the last ``length`` tokens end a second time.
        if not places.size:
            break
        if breakers is not None and breakers[tokens[last - length + 1]]:
            break
        lengths[places] = length
        places = places[places >= length]
        if last < length:
            break
        places = places[tokens[places - length] == tokens[last - length]]
    repeated = np.flatnonzero(lengths >= allowed_length)
    ids, which = np.unique(tokens[repeated + 1], return_inverse=True)
    longest = np.zeros(ids.size, np.int64)
    np.maximum.at(longest, which, lengths[repeated])
    with np.errstate(over="ignore"):
        penalties = multiplier * np.power(base, (longest - allowed_length).astype(np.float64))
    return ids.astype(np.int64), np.minimum(penalties, _MOST_PENALTY).astype(np.float32)
