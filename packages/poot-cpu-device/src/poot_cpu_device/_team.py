"""The thread team: long-lived threads that live in compiled code and share each step."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np

from poot_core import DeviceError
from poot_cpu_device._layout import BLOCK_BYTES, Team
from poot_cpu_device._memory import Bytes, allocate_bytes
from poot_cpu_device._runtime import Runtime

__all__ = ["ThreadTeam"]

_STEP_SPIN_S = 20e-6  # a futex round trip costs about as much
_IDLE_SPIN_S = 50e-6  # a driver's work between two steps
_CALIBRATION_S = 2e-3
_SCRATCH_GAP_BYTES = 4096 + 128  # threads' scratch must not share cache sets or fetched line pairs

_teams: weakref.WeakSet[ThreadTeam] = weakref.WeakSet()
_first_reading: tuple[float, int] | None = None  # seconds, ticks


class ThreadTeam:
    """Runs prepared sequences on ``num_threads`` threads, the caller's being the first.

    The others start with the first step, sleep between steps, and end with ``close``, with the
    process, and in the child of a fork (which starts its own when it runs a step).
    """

    def __init__(self, runtime: Runtime, num_threads: int) -> None:
        self._runtime = runtime
        self.num_threads = num_threads
        self._ticks_per_second = _tick_rate(runtime)
        self._scratch = allocate_bytes(0, "scratch")
        self._scratch_bytes = -1
        self._closed = False
        self._reset()
        self.reserve_scratch(0)
        _teams.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._block: Bytes = allocate_bytes(BLOCK_BYTES, "team")
        self._address = int(self._block.ctypes.data)
        rate = self._ticks_per_second
        self._write(Team.THREADS, self.num_threads)
        self._write(Team.STEP_TICKS, int(_STEP_SPIN_S * rate))
        self._write(Team.IDLE_TICKS, int(_IDLE_SPIN_S * rate))
        self._write(Team.SCRATCH, int(self._scratch.ctypes.data))
        self._write(Team.SCRATCH_STRIDE, self._stride())
        if sys.platform not in {"linux", "win32"}:
            nap = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
            self._write(Team.NAP, nap or 0)

    def _write(self, offset: int, value: int) -> None:
        self._block[offset : offset + 8].view(np.int64)[0] = value

    def _stride(self) -> int:
        return -(-max(self._scratch_bytes, 64) // 64) * 64 + _SCRATCH_GAP_BYTES

    def reserve_scratch(self, nbytes: int) -> None:
        """Make each thread's scratch at least ``nbytes`` long; contents are lost."""
        if nbytes <= self._scratch_bytes:
            return
        with self._lock:
            self._scratch_bytes = nbytes
            self._scratch = allocate_bytes(self._stride() * self.num_threads, "scratch")
            self._write(Team.SCRATCH, int(self._scratch.ctypes.data))
            self._write(Team.SCRATCH_STRIDE, self._stride())

    def step(self, prepared_address: int) -> None:
        """Run one prepared sequence and return when it is done."""
        with self._lock:
            if len(self._threads) != self.num_threads - 1:
                self._start()
            self._runtime.step(self._address, prepared_address)

    def seconds(self, ticks: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
        """Return durations in seconds of durations in stamp ticks."""
        return ticks / _tick_rate(self._runtime)

    def close(self) -> None:
        """End the threads and wait for them; closing twice is allowed."""
        with self._lock:
            self._closed = True
            if self._threads:
                self._runtime.quit(self._address)
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _start(self) -> None:
        if self._closed:
            raise DeviceError("the host device is closed")
        for index in range(1 + len(self._threads), self.num_threads):
            # Daemons: the interpreter must not wait for them before its exit handlers run.
            thread = threading.Thread(
                target=self._runtime.worker,
                args=(self._address, index),
                name=f"poot-cpu-{index}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)

    def after_fork(self) -> None:
        """Forget the parent's threads."""
        self._reset()

    def __del__(self) -> None:
        if getattr(self, "_threads", None):
            self.close()


def _tick_rate(runtime: Runtime) -> float:
    """Return stamp ticks per second, over all the time since this was first asked."""
    global _first_reading
    if _first_reading is None:
        _first_reading = (time.perf_counter(), runtime.ticks())
    start, first = _first_reading
    while (elapsed := time.perf_counter() - start) < _CALIBRATION_S:
        pass
    return (runtime.ticks() - first) / elapsed


def _close_all() -> None:
    for team in list(_teams):
        team.close()


def _after_fork_in_child() -> None:
    for team in list(_teams):
        team.after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
