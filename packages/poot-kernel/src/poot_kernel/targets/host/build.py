"""Compiling batches of kernels through the compile service."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from poot_core import Settings, Target
from poot_kernel.compile import CompiledObject, CompileRequest, CompileService
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.hashing import structural_hash
from poot_kernel.targets.host.entry import lower_host

__all__ = ["compile_kernels"]


@functools.cache
def _generator() -> str:
    """Return a digest of this generator's sources: what makes cached objects stale."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compile_kernels(
    functions: Sequence[KernelFunction], target: Target, service: CompileService | Settings
) -> list[CompiledObject]:
    """Return the kernels' objects, each with one entry of the kernel's name.

    Kernels in the cache are neither lowered nor compiled, and start no worker.

    Args:
        functions: Verified kernels.
        target: A host target.
        service: Service to use, or settings to open one for this batch.

    Raises:
        UnsupportedError: If a kernel cannot run on the target.
        CompileError: If LLVM refuses a module.
    """
    if isinstance(service, Settings):
        with CompileService(service) as opened:
            return compile_kernels(functions, target, opened)
    requests = [
        CompileRequest(
            kind="llvm-host-object",
            ir=functools.partial(lower_host, function, target),
            target=target,
            entries=(function.name,),
            # Tile kernels come out as the instructions that are meant: the expensive passes of
            # higher levels find nothing, double the time, and one has been seen not to end.
            opt_level=1 if function.level == "tile" else 3,
            identity=f"{structural_hash(function)} {_generator()}",
        )
        for function in functions
    ]
    return service.compile(requests)
