"""Collects what the model says of a prompt's own tokens, chunk by chunk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_llm._sampler import Logprobs, row_logprobs

__all__ = ["PromptScores"]

Float32 = NDArray[np.float32]


class PromptScores:
    """Logits or log-probabilities of the positions of one prompt.

    Args:
        prompt: (n,) ids.
        num_top: Most likely tokens to name at each position, or None to keep whole rows of logits.
    """

    def __init__(self, prompt: NDArray[np.int32], num_top: int | None) -> None:
        self._prompt = prompt
        self._num_top = num_top
        self._rows: list[Float32] = []
        self._logprobs: list[Logprobs | None] = [None]

    def add(self, logits: Float32) -> None:
        """Take the rows of logits that follow the next positions.

        Args:
            logits: (m, vocab_size), not kept.

        Raises:
            FloatingPointError: If log-probabilities are wanted and the logits are not finite.
        """
        if self._num_top is None:
            self._rows.append(logits.copy())
            return
        for row in logits:
            place = len(self._logprobs)
            if place < self._prompt.size:  # what follows the last position is no part of the prompt
                self._logprobs.append(row_logprobs(row, int(self._prompt[place]), self._num_top))

    def restart(self) -> None:
        """Forget everything: the prompt is computed anew."""
        self._rows.clear()
        del self._logprobs[1:]

    def logits(self) -> Float32:
        """Return (n, vocab_size) float32."""
        return np.concatenate(self._rows)

    def logprobs(self) -> list[Logprobs | None]:
        """Return one entry a token of the prompt, None for the first."""
        return self._logprobs
