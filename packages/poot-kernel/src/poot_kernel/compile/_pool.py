"""Compile workers: child processes that hold LLVM, started when first needed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from poot_core import CompileError
from poot_kernel.compile._identity import site_directory

__all__ = ["Worker", "WorkerDied"]

_PROGRAM = Path(__file__).with_name("_worker.py")
_DEADLINE_SECONDS = 300.0  # a module that takes longer has run away


class WorkerDied(Exception):
    """A worker ended before it answered; the text says how."""


class Worker:
    """One child process; answers one job at a time."""

    def __init__(self) -> None:
        """Start the process; it imports LLVM when its first job arrives."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), _llvmlite_site()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def call(self, job: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the answer to one job.

        Raises:
            WorkerDied: If the process ended or ran past the deadline (it is ended then).
        """
        header = json.dumps(job).encode()
        deadline = time.monotonic() + _DEADLINE_SECONDS
        try:
            self._write(struct.pack("<II", len(header), len(body)) + header + body)
            header_bytes, body_bytes = struct.unpack("<II", self._read(8, deadline))
            answer = cast("dict[str, Any]", json.loads(self._read(header_bytes, deadline)))
            return answer, self._read(body_bytes, deadline)
        except TimeoutError:
            self.close()
            raise WorkerDied(f"no answer within {_DEADLINE_SECONDS:.0f} s") from None
        except (OSError, EOFError):
            raise WorkerDied(self._last_words()) from None

    def close(self) -> None:
        """End the process and wait for it."""
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if process.poll() is None:
            process.kill()
        process.wait()
        self._errors.close()

    def abandon(self) -> None:
        """Close this process's copies of the pipes only: after a fork the worker is the parent's."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.returncode = 0  # not our child: nothing to wait for
        self._errors.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._input, view) :]

    def _read(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self._output], [], [], wait)[0]:
                raise TimeoutError
            part = os.read(self._output, length - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _last_words(self) -> str:
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode(errors="replace").strip()
        return f"the compile worker ended with {how}" + (f": {said}" if said else "")


def _llvmlite_site() -> str:
    site = site_directory("llvmlite")
    if site is None:
        raise CompileError("llvmlite is not installed; poot-kernel needs it to compile kernels")
    return str(site)
