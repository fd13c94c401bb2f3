"""Executable graphs of sequences: capture, replay, and how many are kept."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from poot_core import DeviceError
from poot_executor.stream_device._driver import StreamDriver
from poot_executor.stream_device._sequence import StreamSequence

__all__ = ["GraphTable"]

_MAX_GRAPHS = 128  # of one sequence; the oldest goes first


class GraphTable:
    """The executable graphs of one device.

    Args:
        driver: The driver.
        stream: What is captured, and where graphs run.
    """

    def __init__(self, driver: StreamDriver, stream: Any) -> None:
        self._driver, self._stream = driver, stream
        self._alive: list[Any] = []

    def capture(self, sequence: StreamSequence, key: tuple[int, ...]) -> None:
        """Record the sequence for these symbol values, unless it is recorded already.

        Raises:
            DeviceError: If the driver refuses; nothing of the half-made graph stays behind.
        """
        if key in sequence.graphs:
            return
        sequence.bind(key)
        if len(sequence.graphs) >= _MAX_GRAPHS:
            self._drop(sequence.graphs.pop(next(iter(sequence.graphs))))
        sequence.graphs[key] = executable = self._instantiate(self._record(sequence))
        self._alive.append(executable)

    def _record(self, sequence: StreamSequence) -> Any:
        driver, names = self._driver, self._driver.dialect
        driver.call(names.begin_capture, self._stream, driver.capture_mode)
        try:
            sequence.launch_all()
        except BaseException:
            # A capture ends in any case, or the stream takes no other work; what it had recorded is
            # a graph of ours. A driver that has dropped it says so.
            with suppress(DeviceError):
                driver.call(names.destroy_graph, driver.call(names.end_capture, self._stream))
            raise
        return driver.call(names.end_capture, self._stream)

    def _instantiate(self, graph: Any) -> Any:
        driver, names = self._driver, self._driver.dialect
        try:
            executable = driver.call(names.instantiate, graph, 0)
        finally:
            with suppress(DeviceError):
                driver.call(names.destroy_graph, graph)
        try:
            driver.call(names.upload_graph, executable, self._stream)
        except DeviceError:
            with suppress(DeviceError):
                driver.call(names.destroy_executable, executable)
            raise
        return executable

    def replay(self, executable: Any) -> None:
        """Queue a graph."""
        self._driver.call(self._driver.dialect.launch_graph, executable, self._stream)

    def _drop(self, executable: Any) -> None:
        self._driver.call(self._driver.dialect.synchronize, self._stream)  # it may still run
        self._alive.remove(executable)
        self._driver.call(self._driver.dialect.destroy_executable, executable)

    def close(self) -> None:
        """Give all graphs back; the stream must be idle."""
        alive, self._alive = self._alive, []
        for executable in alive:
            self._driver.call(self._driver.dialect.destroy_executable, executable)
