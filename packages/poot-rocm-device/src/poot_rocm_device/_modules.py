"""Kernels in the runtime: objects are linked once, cached on disk, and loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from poot_core import CompileError, Target
from poot_executor.stream_device import DriverError, StreamDriver, StreamKernel, refused_kernel
from poot_kernel.compile import KernelCache, KernelPackage
from poot_rocm_device._linker import Linker

__all__ = ["ModuleLoader"]

_KIND = "code-object"
_ELF = b"\x7fELF"


class ModuleLoader:
    """Turns packaged objects into loaded kernels.

    Args:
        driver: HIP.
        cache: Where linked code objects are kept.
        linker: What links.
        target: Of the device.
    """

    def __init__(
        self, driver: StreamDriver, cache: KernelCache, linker: Linker, target: Target
    ) -> None:
        self._driver, self._cache, self._linker = driver, cache, linker
        self._target, self._arch = target, target.arch
        self._modules: list[Any] = []

    def load(self, packages: Sequence[KernelPackage]) -> list[StreamKernel]:
        """Return the kernels of packages.

        Raises:
            CompileError: If an object is refused by the linker or the runtime; it is kept.
            DeviceError: If there is no linker.
        """
        return [self._load(package) for package in packages]

    def _key(self, package: KernelPackage) -> str:
        return hashlib.sha256(f"{self._arch}\0".encode() + package.code).hexdigest()

    def _linked(self, package: KernelPackage, *, anew: bool = False) -> bytes:
        key = self._key(package)
        found = None if anew else self._cache.get(_KIND, key)
        if found is None:
            found = self._linker(package.code, self._arch)
            self._cache.put(_KIND, key, found)
        return found

    def _load(self, package: KernelPackage) -> StreamKernel:
        driver = self._driver
        if not package.code.startswith(_ELF):
            raise CompileError(
                f"kernel {package.name!r} is no ELF object; it starts with {package.code[:4]!r}"
            )
        try:
            try:
                module = driver.call("hipModuleLoadData", self._linked(package))
            except DriverError:
                if driver.lost:
                    raise
                # What the cache held may be damaged although its checksum is right: link anew.
                module = driver.call("hipModuleLoadData", self._linked(package, anew=True))
            self._modules.append(module)
            function = driver.call("hipModuleGetFunction", module, package.name.encode())
        except DriverError as error:
            raise self._refused(package, error) from error
        return StreamKernel(entry=package.name, function=function, package=package)

    def _refused(self, package: KernelPackage, error: DriverError) -> CompileError:
        name = f"{package.name[:40]}-{self._key(package)[:12]}.o.hex"  # in hexadecimal
        return refused_kernel(
            self._cache,
            self._target,
            package,
            error,
            vendor=self._driver.dialect.vendor,
            file=(name, package.code.hex()),
        )

    def close(self) -> None:
        """Unload all modules."""
        modules, self._modules = self._modules, []
        for module in modules:
            self._driver.call("hipModuleUnload", module)
