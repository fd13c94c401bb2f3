"""Remembers which requests were under way when an engine crashed, so that none crashes it for ever."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from poot_core import RequestError
from poot_llm import SamplingParams

__all__ = ["Blame"]

_MOST_CRASHES = 2
_MOST_REMEMBERED = 4096
_ENCODER = msgspec.msgpack.Encoder(order="sorted")


class Blame:
    """Counts crashes by the content of the requests that were under way."""

    def __init__(self) -> None:
        self._crashes: OrderedDict[bytes, int] = OrderedDict()

    def check(self, prompt: bytes, params: SamplingParams) -> bytes:
        """Return the fingerprint of a request.

        Raises:
            RequestError: With status 422 if it was under way at two crashes.
            OverflowError: If a number does not fit into 64 bits.
        """
        digest = hashlib.sha256(_ENCODER.encode(params))
        digest.update(prompt)
        fingerprint = digest.digest()
        if self._crashes.get(fingerprint, 0) >= _MOST_CRASHES:
            error = RequestError(
                f"this request was under way when the engine crashed {_MOST_CRASHES} times, so it is "
                "not run again; change it, or restart the server",
                status=422,
            )
            error.code = "request_crashes_engine"
            raise error
        return fingerprint

    def add(self, fingerprints: Iterable[bytes]) -> None:
        """Count a crash with these requests under way."""
        for fingerprint in fingerprints:
            self._crashes[fingerprint] = self._crashes.pop(fingerprint, 0) + 1
        while len(self._crashes) > _MOST_REMEMBERED:
            self._crashes.popitem(last=False)

    def clear(self, fingerprint: bytes) -> None:
        """Forget a request that ended well."""
        self._crashes.pop(fingerprint, None)
