"""One repeat of one cell: start the process, sample its memory, read its figures."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.load import run_clients, wait_until_ready
from benchmarks.harness.manifest import Cell
from benchmarks.harness.memory import MemorySampler
from benchmarks.harness.record import Record
from benchmarks.harness.runners import NotOffered, Plan, Runner

__all__ = ["measure"]

LIMIT_S = 1800.0
# Works 30 ms of every 100 on the core that it is bound to.
NEIGHBOUR = """
import time
while True:
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        pass
    time.sleep(0.07)
"""


def measure(cell: Cell, runner: Runner, model: Path, repeat: int) -> Record:
    """Return the record of one repeat; a failure of the engine is in the record.

    Raises:
        NotOffered: If the engine cannot run the cell here.
    """
    plan = runner.plan(cell, model, free_port())
    started = datetime.now(UTC).isoformat(timespec="seconds")
    clock = time.perf_counter()
    failure: str | None = None
    metrics: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as empty, busy_neighbour(cell):
        environment = {**os.environ, **plan.environment}
        if cell.scenario.empty_cache:
            environment |= {"POOT_KERNEL_CACHE_DIR": empty, "XDG_CACHE_HOME": empty}
        try:
            metrics = KINDS[cell.scenario.kind](cell, plan, environment)
        except NotOffered:
            raise
        except (OSError, ValueError, KeyError, TimeoutError, ExceptionGroup) as error:
            # The first line and no paths: records are committed.
            failure = str(error).replace(str(model.parent), "MODELS").splitlines()[0][:300]
    return Record(
        model=cell.model.name,
        engine=cell.engine.name,
        scenario=cell.scenario.name,
        repeat=repeat,
        started=started,
        wall_s=round(time.perf_counter() - clock, 3),
        metrics={} if failure else metrics,
        failure=failure,
    )


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bound(cell: Cell, command: list[str]) -> list[str]:
    """Return a command bound to the scenario's cores."""
    cores = cell.scenario.cores
    if cores is None:
        return command
    return ["taskset", "-c", ",".join(map(str, cores)), *command]


@contextlib.contextmanager
def busy_neighbour(cell: Cell) -> Iterator[None]:
    """Keep the last core busy 30% of the time, where the scenario asks for it."""
    if not cell.scenario.neighbour:
        yield
        return
    core = str(max(os.sched_getaffinity(0)))
    process = subprocess.Popen(["taskset", "-c", core, sys.executable, "-c", NEIGHBOUR])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


class Started:
    """A process whose output is read; stderr goes to a file, so that it can never fill a pipe."""

    def __init__(self, cell: Cell, command: list[str], environment: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `finish`)
        self.process = subprocess.Popen(
            bound(cell, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self.pid = self.process.pid

    def first(self) -> str:
        """Wait for the first character of output; empty if there is none."""
        assert self.process.stdout is not None
        return self.process.stdout.read(1)

    def finish(self) -> str:
        """Return the rest of the output.

        Raises:
            ValueError: If the process fails.
            TimeoutError: If it takes too long.
        """
        with self._errors:
            try:
                out, _ = self.process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired as error:
                self.process.kill()
                self.process.communicate()
                raise TimeoutError(f"it took more than {LIMIT_S:g} s") from error
            self._errors.seek(0)
            lines = [line for line in self._errors.read().splitlines() if line.strip()]
        if self.process.returncode:
            said = lines[-1] if lines else "it said nothing"
            raise ValueError(f"ended with {self.process.returncode}: {said}")
        return out


def with_memory(metrics: dict[str, float], sampler: MemorySampler) -> dict[str, float]:
    """Return metrics with the peak that was sampled from outside."""
    if sampler.peak_bytes is None:
        return metrics
    return {**metrics, "peak_memory_bytes": float(sampler.peak_bytes)}


def measure_bench(cell: Cell, plan: Plan, environment: dict[str, str]) -> dict[str, float]:
    """Run a program that measures itself and prints figures."""
    started = Started(cell, plan.command, environment)
    with MemorySampler(started.pid) as sampler:
        out = started.finish()
    return with_memory(plan.parse(out), sampler)


def measure_start(cell: Cell, plan: Plan, environment: dict[str, str]) -> dict[str, float]:
    """Measure from the start of a process to its first byte of output."""
    begin = time.perf_counter()
    started = Started(cell, plan.command, environment)
    with MemorySampler(started.pid) as sampler:
        first = started.first()
        elapsed = time.perf_counter() - begin
        started.finish()
    if not first:
        raise ValueError("it printed nothing")
    return with_memory({"first_token_s": elapsed}, sampler)


def measure_serve(cell: Cell, plan: Plan, environment: dict[str, str]) -> dict[str, float]:
    """Start a server and put load on it."""
    scenario = cell.scenario
    process = subprocess.Popen(
        bound(cell, plan.command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        with MemorySampler(process.pid) as sampler:
            wait_until_ready(plan.url, lambda: process.poll() is None)
            metrics = run_clients(
                plan.url,
                clients=scenario.clients,
                requests=scenario.requests,
                tokens=scenario.decode,
            )
        return with_memory(metrics, sampler)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


KINDS = {"bench": measure_bench, "start": measure_start, "serve": measure_serve}
