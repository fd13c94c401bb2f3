"""Prepared sequences: launches with all addresses settled, and their graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poot_core import DeviceError
from poot_executor._device import Launch
from poot_executor.stream_device._launch import PreparedLaunch, symbols_of

__all__ = ["StreamSequence"]


class StreamSequence:
    """Launches of one sequence; holds their memory and code alive.

    Args:
        launches: In order.
        prepare: Returns a launch, prepared, from it and its number.
        submit: Queues a prepared launch.

    Attributes:
        symbols: Symbols that a step gives values for.
        labels: One for each launch.
        graphs: Executable graphs by the symbols' values.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        prepare: Callable[[Launch, int], PreparedLaunch],
        submit: Callable[[PreparedLaunch], None],
    ) -> None:
        self.labels = tuple(launch.label or launch.kernel.entry for launch in launches)
        self.symbols = symbols_of(launches)
        self.graphs: dict[tuple[int, ...], Any] = {}
        self._submit = submit
        self._bound: tuple[int, ...] | None = None
        self._launches = [prepare(launch, number) for number, launch in enumerate(launches)]

    def key(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the symbols' values.

        Raises:
            DeviceError: If a symbol has no value or a negative one.
        """
        try:
            found = tuple([sizes[name] for name in self.symbols])
        except KeyError as error:
            raise DeviceError(f"symbol {error} has no value in this step, got {sizes}") from None
        if found and min(found) < 0:
            raise DeviceError(f"a symbol has a negative value in this step: {sizes}")
        return found

    def bind(self, key: tuple[int, ...]) -> None:
        """Write what follows from the symbols' values into the arguments."""
        if key == self._bound:
            return
        is_first, self._bound = self._bound is None, None  # a launch may refuse its grid
        values = dict(zip(self.symbols, key, strict=True))
        for launch in self._launches:
            if launch.is_open or is_first:
                launch.bind(values)
        self._bound = key

    def launch(self, number: int) -> None:
        """Queue one launch; nothing if its grid is empty."""
        launch = self._launches[number]
        if 0 not in launch.grid:
            self._submit(launch)

    def launch_all(self) -> None:
        """Queue all launches."""
        for launch in self._launches:
            if 0 not in launch.grid:
                self._submit(launch)
