"""A worker whose parent dies ends too, even while LLVM is busy and reads no pipe."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, threading, time
from poot_kernel.compile._worker import _end_with
parent = os.getppid()
threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
print(os.getpid(), flush=True)  # only now may the parent die: the watch knows whose end to wait for
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}])
time.sleep(60)
"""


def runs(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever inherits it may be slow to collect it


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_busy_worker_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert runs(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while runs(child):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.1)
