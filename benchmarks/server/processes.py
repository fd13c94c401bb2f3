"""Servers as processes: started, waited for, ended; poot's and llama.cpp's."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Server", "child_of", "cpu_s", "llama_command", "poot_command", "running"]

READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers.

    Attributes:
        process: Its process.
        port: Where it listens.
        ready_s: Seconds from its start until ``/health`` said 200.
    """

    process: subprocess.Popen[bytes]
    port: int
    ready_s: float


def poot_command(model: Path | None, max_sequences: int, *options: str) -> list[str]:
    """Return the command of poot's server, but for the port; no model is the packaged one."""
    command = [sys.executable, "-m", "poot_serve.cli", *([str(model)] if model else [])]
    return [*command, "--max-sequences", str(max_sequences), *options]


def llama_command(binary: str, model: Path, slots: int, slot_tokens: int) -> list[str]:
    """Return the command of llama.cpp's server, but for the port; its prompt cache is on by default."""
    threads = str(len(os.sched_getaffinity(0)))
    command = [binary, "-m", str(model), "-t", threads, "-tb", threads]
    return [*command, "-np", str(slots), "-c", str(slots * slot_tokens)]


@contextlib.contextmanager
def running(command: Sequence[str], ready_s: float = READY_S) -> Iterator[Server]:
    """Start a server, wait until it is ready (for at most so many seconds), and end it afterwards.

    Raises:
        RuntimeError: If it ends, or is not ready in time; the end of its log is in the message.
    """
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        try:
            while not _is_ready(port):
                if process.poll() is not None or time.perf_counter() - start > ready_s:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} is not ready: {log.read()[-2000:].decode()}")
                time.sleep(0.01)
            yield Server(process, port, time.perf_counter() - start)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def child_of(process_id: int) -> int:
    """Return the one child of a process: the engine of a server (Linux)."""
    found = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    if len(found) != 1:
        raise RuntimeError(f"process {process_id} has {len(found)} children, and one was expected")
    return int(found[0])


def cpu_s(process_id: int) -> float:
    """Return the CPU seconds of a process so far, all threads that live, to the nanosecond (Linux)."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
