"""What sampling needs of a vocabulary before a request starts: a compiled constraint, DRY's breakers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poot_core import RequestError
from poot_llm._sampling_params import SamplingParams
from poot_llm._vocabulary import Vocabulary

if TYPE_CHECKING:
    from poot_llm._grammar import Matcher

__all__ = ["Preparation", "needs_preparation"]


def needs_preparation(params: SamplingParams) -> bool:
    """Return whether a request needs more than its parameters, which may take long to make."""
    return params.constraint is not None or params.dry_multiplier > 0.0


@dataclass(slots=True, kw_only=True)
class Preparation:
    """What was made of one request's parameters; serves one sequence.

    Attributes:
        matcher: Follows the constraint, or None without one.
        dry_breakers: (vocab_size,) tokens that hold a breaker, or None without DRY.
    """

    matcher: Matcher | None = None
    dry_breakers: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, params: SamplingParams, vocabulary: Vocabulary | None) -> Preparation:
        """Return what a request needs.

        Raises:
            RequestError: If the constraint does not compile within its limits, or the texts of tokens
                are needed and there is no vocabulary.
        """
        made = cls()
        if not needs_preparation(params):
            return made
        if vocabulary is None:
            raise RequestError(
                "this model has no tokenizer files, and constraints and DRY need the texts of its "
                "tokens",
                field="constraint" if params.constraint is not None else "dry_multiplier",
            )
        if params.constraint is not None:
            made.matcher = vocabulary.compile(params.constraint)
        if params.dry_multiplier > 0.0:
            made.dry_breakers = vocabulary.tokens_with(params.dry_sequence_breakers)
        return made
