"""PTX text to a binary through ptxas, where the PyPI package or a toolkit has put one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from poot_core import CompileError

__all__ = ["Assembly", "assemble_ptx", "find_ptxas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A binary and what ptxas said of it.

    Attributes:
        cubin: The binary.
        registers: Registers of an invocation.
        spill_bytes: Bytes stored and loaded because registers ran out.
        seconds: How long ptxas took.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    seconds: float


def find_ptxas() -> Path | None:
    """Return ptxas from PATH, from CUDA_HOME's toolkit or from a PyPI package; None if absent."""
    found = shutil.which("ptxas")
    if found:
        return Path(found)
    for root in sys.path:
        for path in Path(root or ".").glob("nvidia/cu*/bin/ptxas"):
            if os.access(path, os.X_OK):
                return path
    return None


def assemble_ptx(text: str, *, arch: str = "sm_90a", ptxas: Path | None = None) -> Assembly:
    """Return the binary.

    Raises:
        CompileError: If ptxas is absent or refuses the text, which is then kept.
    """
    tool = ptxas or find_ptxas()
    if tool is None:
        raise CompileError("ptxas not found: install nvidia-cuda-nvcc or put ptxas on PATH")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        started = time.perf_counter()
        command = [str(tool), "-v", f"-arch={arch}", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        if done.returncode:
            kept = Path(tempfile.mkdtemp(prefix="poot-ptx-"), "kernel.ptx")
            kept.write_text(text)
            raise CompileError(f"ptxas refused the kernel (kept as {kept}): {done.stderr[:2000]}")
        log = done.stderr + done.stdout
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
        used = re.search(r"Used (\d+) registers", log)
        return Assembly(
            cubin=target.read_bytes(),
            registers=int(used[1]) if used else 0,
            spill_bytes=sum(spills),
            seconds=seconds,
        )
