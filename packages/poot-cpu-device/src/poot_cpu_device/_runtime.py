"""The compiled runtime, loaded: what Python calls of it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from poot_core import Target
from poot_cpu_device._runtime_ir import ENTRIES, runtime_ir
from poot_kernel.compile import CompileRequest, CompileService, LoadedCode, load_objects

__all__ = ["Runtime", "load_runtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Entry points; calls release the interpreter lock.

    Attributes:
        step: ``step(team, prepared)`` runs a sequence.
        worker: ``worker(team, index)`` serves steps until the team quits.
        quit: ``quit(team)`` ends the workers.
        ticks: Reads the clock of the stamps.
        read_address: Address of the kernel that only reads.
        code: Keeps the code mapped.
    """

    step: Callable[[int, int], None]
    worker: Callable[[int, int], None]
    quit: Callable[[int], None]
    ticks: Callable[[], int]
    read_address: int
    code: LoadedCode


def load_runtime(service: CompileService, target: Target) -> Runtime:
    """Return the runtime for ``target``, compiled on a cache miss.

    Raises:
        CompileError: If it cannot be compiled or loaded.
    """
    request = CompileRequest(
        kind="llvm-host-object",
        ir=runtime_ir(target, sys.platform),
        target=target,
        entries=ENTRIES,
    )
    (compiled,) = service.compile([request])
    code = load_objects([compiled.data], target.arch)
    at = code.symbols[0]
    pointer, i64 = ctypes.c_void_p, ctypes.c_int64
    return Runtime(
        step=cast(
            "Callable[[int, int], None]", ctypes.CFUNCTYPE(None, pointer, pointer)(at["poot_step"])
        ),
        worker=cast(
            "Callable[[int, int], None]", ctypes.CFUNCTYPE(None, pointer, i64)(at["poot_worker"])
        ),
        quit=cast("Callable[[int], None]", ctypes.CFUNCTYPE(None, pointer)(at["poot_quit"])),
        ticks=cast("Callable[[], int]", ctypes.CFUNCTYPE(i64)(at["poot_ticks"])),
        read_address=at["poot_read"],
        code=code,
    )
