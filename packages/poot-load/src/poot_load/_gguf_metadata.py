"""Typed access to a GGUF's metadata that remembers what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poot_load._refusal import refusal

__all__ = ["Metadata"]

_ABSENT = object()


class Metadata:
    """A family's view of the metadata: keys under its prefix, each checked for its type.

    ``refuse_leftovers`` refuses the keys that nobody asked for: they may change what the model means.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str) -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._seen: set[str] = set()

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a count or size; a per-layer array must hold one value only.

        Raises:
            CheckpointError: If it is absent without a default, negative or no integer.
        """
        value = self._uniform(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
            raise refusal(self.path, self._name(key), repr(value), "an integer 0..2147483647")
        return value

    def size(self, key: str, default: int | None = None, *, most: int = (1 << 31) - 1) -> int:
        """Return a size that is at least one.

        Raises:
            CheckpointError: If it is absent without a default, or not in 1..most.
        """
        value = self.integer(key, default)
        if not 1 <= value <= most:
            raise refusal(self.path, self._name(key), repr(value), f"1..{most}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return a count or size, or None if the key is absent."""
        return self.integer(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            CheckpointError: If it is absent without a default, or no finite number.
        """
        value = self._uniform(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise refusal(self.path, self._name(key), repr(value), "a finite number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None if the key is absent."""
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a bool.

        Raises:
            CheckpointError: If it is something else.
        """
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise refusal(self.path, self._name(key), repr(value), "a bool")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string.

        Raises:
            CheckpointError: If it is absent without a default, or no string.
        """
        value = self._get(key, _ABSENT if default is None else default)
        if not isinstance(value, str):
            raise refusal(self.path, self._name(key), repr(value), "a string")
        return value

    def flags(self, key: str, count: int) -> list[bool] | None:
        """Return one bool per layer, or None if the key is absent.

        Raises:
            CheckpointError: If they are no bools or not as many as there are layers.
        """
        if not self.has(key):
            return None
        value = self._get(key, _ABSENT)
        if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or len(value) != count:
            raise refusal(self.path, self._name(key), repr(value), f"an array of {count} bools")
        return [bool(item) for item in value]

    def scalar(self, key: str) -> int | float | bool | str | None:
        """Return the value if it is no array, else None; also None if the key is absent."""
        value = self._values.get(self._name(key))
        return value if isinstance(value, int | float | str) else None

    def has(self, key: str) -> bool:
        """Return whether the key is there."""
        return self._name(key) in self._values

    def expect(self, key: str, *allowed: Any) -> None:
        """Refuse the key if it is there and holds none of the allowed values."""
        value = self._uniform(key, allowed[0])
        if not isinstance(value, int | float | str) or value not in allowed:
            raise refusal(self.path, self._name(key), repr(value), " or ".join(map(repr, allowed)))

    def refuse_leftovers(self) -> None:
        """Refuse keys under the prefix that nobody asked for.

        Raises:
            CheckpointError: If there is one.
        """
        for name in self._values:
            if name.startswith(self._prefix) and name not in self._seen:
                known = ", ".join(sorted(key.removeprefix(self._prefix) for key in self._seen))
                allowed = f"a key that poot knows for this architecture: {known}"
                raise refusal(self.path, "metadata key", repr(name), allowed)

    def _name(self, key: str) -> str:
        return self._prefix + key

    def _get(self, key: str, default: Any) -> Any:
        name = self._name(key)
        self._seen.add(name)
        value = self._values.get(name, default)
        if value is _ABSENT or value is None:
            raise refusal(self.path, "metadata", f"without {name!r}", "a file that has it")
        return value

    def _uniform(self, key: str, default: Any) -> Any:
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            return value[0].item()
        return value
