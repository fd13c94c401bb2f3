"""Fields of bodies that no endpoint knows: they are ignored, and the log names each one once."""

from __future__ import annotations

import logging
from functools import cache

import msgspec

__all__ = ["UnknownFields"]

_LOG = logging.getLogger("poot_serve")
_MOST_NAMES = 256
_LONGEST_NAME = 64


class UnknownFields:
    """Tells once of each field that clients send and that has no effect.

    Clients send what other servers know, so that refusing would break them; silence would hide a
    misspelt name. Names are the clients' own, so their number and length are bounded; values are not
    looked at.
    """

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()

    def note(self, data: bytes, kind: type[msgspec.Struct]) -> None:
        """Log the unknown fields of a body's top level that no body brought before.

        Args:
            data: The body, which decodes as ``kind``.
            kind: Type of the body.
        """
        if len(self._named) >= _MOST_NAMES:
            return
        given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        for name in given.keys() - _fields(kind):
            key = kind.__name__, name[:_LONGEST_NAME]
            if key in self._named or len(self._named) >= _MOST_NAMES:
                continue
            self._named.add(key)
            _LOG.warning(
                "a request has a field that is not known here and has no effect",
                extra={"facts": {"field": key[1], "body": key[0]}},
            )


@cache
def _fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))
