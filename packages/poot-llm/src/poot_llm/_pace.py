"""How many prompt tokens share a step with decoding, so that running streams do not stutter."""

from __future__ import annotations

__all__ = ["Pace"]

_LONGEST_STEP = 1.8
"""Length of a step with a prompt in it, in steps without: streams then see gaps of about this.
Three times would be too long; the rest is room for steps that take longer than was foreseen."""
_LEAST_TOKENS = 8
_FIRST_TOKENS = 32
_MOST_UNCHECKED = 64
"""Steps with prompts after which one without says anew what a step of decoding alone takes."""
_LONGEST_OPENING_S = 1.0
"""Time that prompts may take before streams that have just begun get their second token."""
_WEIGHT = 0.2
_OUTLIER = 4.0


class Pace:
    """Learns from the steps that ran what a prompt token costs.

    What a request gets does not depend on how its prompt was cut, so neither on these times.

    Args:
        max_prefill_tokens: A fixed number in place of a learnt one.
    """

    def __init__(self, max_prefill_tokens: int | None = None) -> None:
        self._fixed = max_prefill_tokens
        # Seconds of a step of decoding alone, by the bits of its number of rows.
        self._decode_s: dict[int, float] = {}
        self._token_s: float | None = None
        self._prompt_token_s: float | None = None  # in steps of prompts alone
        self._unchecked = 0

    def allowance(self, num_decodes: int) -> int:
        """Return how many prompt tokens may share a step with so many rows that decode.

        It is 0 where nobody knows what such a step takes without any: the next one will tell.

        >>> pace = Pace()
        >>> pace.observe(4, 0, 0.006)
        >>> pace.observe(4, 100, 0.026)
        >>> pace.allowance(4)
        24
        """
        if self._fixed is not None:
            return self._fixed
        decode_s = self._decode_s.get(num_decodes.bit_length())
        if decode_s is None or self._unchecked >= _MOST_UNCHECKED:
            return 0
        if self._token_s is None:
            return _FIRST_TOKENS
        return max(_LEAST_TOKENS, round((_LONGEST_STEP - 1) * decode_s / self._token_s))

    def opening(self, waited_s: float) -> int:
        """Return how many prompt tokens may go before streams that have just begun, in place of them.

        Requests that come together begin together then, in large steps, and decode together afterwards.

        Args:
            waited_s: Time that the first of these streams has waited for its second token.

        >>> pace = Pace()
        >>> pace.observe(0, 500, 0.25)
        >>> pace.opening(0.1), pace.opening(1.1)
        (1800, 0)
        """
        if self._fixed is not None or not self._prompt_token_s:
            return 0
        return max(0, int((_LONGEST_OPENING_S - waited_s) / self._prompt_token_s))

    @property
    def knows_prompts(self) -> bool:
        """Whether it knows what a prompt costs; before, a step of prompts should be observed first."""
        return self._fixed is not None or self._prompt_token_s is not None

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Take note of a step.

        Args:
            num_decodes: Rows of one token.
            num_prompt_tokens: Further tokens.
            seconds: What the device took.
        """
        if self._fixed is not None:
            return
        if not num_decodes:
            if num_prompt_tokens >= _LEAST_TOKENS:
                cost = seconds / num_prompt_tokens
                self._prompt_token_s = _mix(self._prompt_token_s, cost)
            return
        bucket = num_decodes.bit_length()
        if not num_prompt_tokens:
            self._decode_s[bucket] = _mix(self._decode_s.get(bucket), seconds)
            self._unchecked = 0
            return
        self._unchecked += 1
        decode_s = self._decode_s.get(bucket)
        if decode_s is not None and num_prompt_tokens >= _LEAST_TOKENS:
            cost = max(seconds - decode_s, 0.05 * seconds) / num_prompt_tokens
            self._token_s = _mix(self._token_s, cost)


def _mix(old: float | None, new: float) -> float:
    if old is None:
        return new
    return old + _WEIGHT * (min(new, _OUTLIER * old) - old)
