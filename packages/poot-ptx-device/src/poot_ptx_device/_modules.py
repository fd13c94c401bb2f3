"""Kernels in the driver: PTX is linked into a cubin once, cached on disk, and loaded."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from poot_core import CompileError, Target
from poot_executor.stream_device import DriverError, StreamDriver, StreamKernel, refused_kernel
from poot_kernel.compile import KernelCache, KernelPackage
from poot_ptx_device._machine import MachineFacts

__all__ = ["ModuleLoader"]

_LOG_BYTES = 16384
_STATIC_SHARED = 48 * 1024  # a kernel that wants more has to say so
_MOVES_REGISTERS = b"setmaxnreg"
_NO_LINKER = {"CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "ABSENT"}


Made = TypeVar("Made")


class ModuleLoader:
    """Turns packaged PTX into loaded kernels.

    Args:
        driver: The driver; its context is current.
        cache: Where cubins are kept.
        facts: Of the machine: architecture, driver version (cubins of another are not taken), and
            the context, which is made current in threads that link.
        target: Of the device.
    """

    def __init__(
        self, driver: StreamDriver, cache: KernelCache, facts: MachineFacts, target: Target
    ) -> None:
        self._driver, self._cache, self._context = driver, cache, facts.context
        self._arch, self._version, self._target = facts.arch, facts.driver_version, target
        self._shared_bytes = facts.shared_bytes
        self._modules: list[Any] = []
        self.num_linked = 0

    def load(self, packages: Sequence[KernelPackage]) -> list[StreamKernel]:
        """Return the kernels of packages, linking in parallel what the cache lacks.

        Kernels whose subgroups hand registers to each other are compiled on load: the linker takes
        every kernel for one of several units, which must agree on registers, and ignores that. The
        driver keeps what it compiles in a cache of its own.

        Raises:
            CompileError: If the driver refuses a kernel; its PTX is kept.
        """
        keys = [self._key(package) for package in packages]
        moving = {i for i, package in enumerate(packages) if _MOVES_REGISTERS in package.code}
        cached = [
            None if i in moving else self._cache.get("cubin", key) for i, key in enumerate(keys)
        ]
        missing = [i for i, cubin in enumerate(cached) if cubin is None and i not in moving]
        images: list[bytes | None] = list(cached)
        found = self._in_parallel(self._link, [packages[i] for i in missing])
        for i, cubin in zip(missing, found, strict=True):
            images[i] = cubin
            if cubin is not None:
                self._cache.put("cubin", keys[i], cubin)
        compiled = self._in_parallel(self._compile, [packages[i] for i in sorted(moving)])
        loaded = dict(zip(sorted(moving), compiled, strict=True))
        return [
            loaded.get(i) or self._load(package, images[i]) for i, package in enumerate(packages)
        ]

    def _in_parallel(
        self, work: Callable[[KernelPackage], Made], packages: Sequence[KernelPackage]
    ) -> list[Made]:
        workers = min(len(packages), len(os.sched_getaffinity(0)))
        if workers < 2:
            return [work(package) for package in packages]
        with ThreadPoolExecutor(workers, "poot-link") as pool:
            return list(pool.map(work, packages))

    def _compile(self, package: KernelPackage) -> StreamKernel:
        """Load PTX; the driver compiles it as a whole program."""
        self._driver.call("cuCtxSetCurrent", self._context)
        return self._load(package, None)

    def _key(self, package: KernelPackage) -> str:
        parts = (self._arch, str(self._version), package.name)
        return hashlib.sha256("\0".join(parts).encode() + b"\0" + package.code).hexdigest()

    def _link(self, package: KernelPackage) -> bytes | None:
        """Return the cubin, or None where the driver has no linker: it then compiles on load."""
        driver, option = self._driver, self._driver.binding.CUjit_option
        driver.call("cuCtxSetCurrent", self._context)
        log = bytes(_LOG_BYTES)
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        kind = driver.binding.CUjitInputType.CU_JIT_INPUT_PTX
        source = package.code + b"\0"
        try:
            state = driver.call("cuLinkCreate", len(options), options, [log, len(log)])
            try:
                name = package.name.encode()
                driver.call("cuLinkAddData", state, kind, source, len(source), name, 0, [], [])
                address, size = driver.call("cuLinkComplete", state)
                self.num_linked += 1
                return ctypes.string_at(int(address), int(size))
            finally:
                driver.call("cuLinkDestroy", state)
        except DriverError as error:
            if error.code in _NO_LINKER:
                return None
            raise self._refused(package, error, log) from error

    def _load(self, package: KernelPackage, image: bytes | None) -> StreamKernel:
        driver = self._driver
        try:
            try:
                module = driver.call("cuModuleLoadData", image or package.code + b"\0")
            except DriverError:
                if image is None or driver.lost:
                    raise
                # A cubin that this driver does not take (a corrupt entry that kept its checksum).
                image = self._link(package)
                module = driver.call("cuModuleLoadData", image or package.code + b"\0")
                if image is not None:
                    self._cache.put("cubin", self._key(package), image)
            self._modules.append(module)
            function = driver.call("cuModuleGetFunction", module, package.name.encode())
            most = package.shared_bytes if package.split is None else self._shared_bytes
            if most > _STATIC_SHARED:
                limit = driver.binding.CUfunction_attribute
                limit = limit.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.call("cuFuncSetAttribute", function, limit, most)
        except DriverError as error:
            raise self._refused(package, error, b"") from error
        return StreamKernel(entry=package.name, function=function, package=package)

    def _refused(self, package: KernelPackage, error: DriverError, log: bytes) -> CompileError:
        name = f"{package.name[:40]}-{self._key(package)[:12]}.ptx"
        return refused_kernel(
            self._cache,
            self._target,
            package,
            error,
            vendor=self._driver.dialect.vendor,
            file=(name, package.code.decode(errors="replace")),
            said=log.rstrip(b"\0").decode(errors="replace").strip(),
        )

    def close(self) -> None:
        """Unload all modules."""
        modules, self._modules = self._modules, []
        for module in modules:
            self._driver.call("cuModuleUnload", module)
