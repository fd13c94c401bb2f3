"""Compilation as a service: requests, worker processes, the kernel cache, the object loader.

Nothing here imports llvmlite: the workers do, and a warm cache starts none.
"""

from poot_kernel.compile._cache import KernelCache, current_epoch
from poot_kernel.compile._host import host_arch, host_features, host_target
from poot_kernel.compile._identity import source_fingerprint
from poot_kernel.compile._loader import LoadedCode, load_objects
from poot_kernel.compile._package import KernelPackage, KernelSplit, PackagedMap
from poot_kernel.compile._request import CompiledObject, CompileKind, CompileRequest
from poot_kernel.compile._service import CompileService

__all__ = [
    "CompileKind",
    "CompileRequest",
    "CompileService",
    "CompiledObject",
    "KernelCache",
    "KernelPackage",
    "KernelSplit",
    "LoadedCode",
    "PackagedMap",
    "current_epoch",
    "host_arch",
    "host_features",
    "host_target",
    "load_objects",
    "source_fingerprint",
]
