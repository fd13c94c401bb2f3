"""API keys: read from settings and a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from poot_core import SettingsError

__all__ = ["ApiKeys"]


class ApiKeys:
    """The keys that open the server; none opens it to everybody.

    Args:
        keys: Texts of the keys.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    @classmethod
    def load(cls, keys: Iterable[str], path: str | None) -> ApiKeys:
        """Return the keys given and those of a file, one a line; ``#`` begins a comment line.

        Raises:
            SettingsError: If the file cannot be read or holds no key, or a key is empty.
        """
        found = list(keys)
        if any(not key.strip() for key in found):
            raise SettingsError("an API key is empty")
        if path is not None:
            try:
                lines = Path(path).read_text().splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"cannot read the API keys in {path}: {error}") from error
            listed = [line.strip() for line in lines if line.strip() and line[0] != "#"]
            if not listed:
                raise SettingsError(f"{path} holds no API key")
            found += listed
        return cls(found)

    def accepts(self, given: str) -> bool:
        """Return whether a key is one of them; takes the same time whichever it is."""
        digest = _digest(given)
        found = False
        for each in self._digests:
            found |= hmac.compare_digest(each, digest)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
