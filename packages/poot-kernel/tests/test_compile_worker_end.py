"""A worker whose parent dies ends too, even while LLVM is busy and reads no pipe."""

import os
import signal
import subprocess
import sys
import time

import pytest

PARENT = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", "import threading, os, time;"
     "from poot_kernel.compile._worker import _end_with;"
     "threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start();"
     "time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_busy_worker_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{child}"):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.1)
