"""Kernels: shaders, and a pipeline for each way in which launches bind their arrays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from poot_core import CompileError
from poot_kernel.compile import KernelCache, KernelPackage
from poot_kernel.targets.wgsl import Binding, array_accesses, bind_arrays, table_words
from poot_wgpu_device._gpu import Gpu, GpuError

__all__ = ["PipelineMaker", "WgpuKernel"]

Pattern = tuple[tuple[int, Binding], ...]
"""Parameter number and binding of each array of a shader."""

_MAX_THREADS = 8


class WgpuKernel:
    """A packaged shader; implements ``poot_executor.KernelHandle``.

    Attributes:
        entry: Name of the kernel.
        package: What a launch must know.
        arrays: How the shader accesses its arrays, by parameter number.
        tables: Words that follow the arguments.
        pipelines: Pipeline and bind group layout by pattern.
    """

    def __init__(self, package: KernelPackage) -> None:
        self.entry = package.name
        self.package = package
        self.code = package.code.decode()
        self.arrays = array_accesses(self.code)
        self.tables = table_words(self.code)
        self.pipelines: dict[Pattern, tuple[Any, Any]] = {}


class PipelineMaker:
    """Makes the pipelines that launches need.

    Args:
        gpu: Where.
        cache: Keeps the source of a shader that is refused.
        is_checked: Whether shaders check their accesses.
    """

    def __init__(self, gpu: Gpu, cache: KernelCache, *, is_checked: bool) -> None:
        self._gpu, self._cache, self._is_checked = gpu, cache, is_checked
        self._layouts: dict[tuple[bool, ...], tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def make(self, wanted: Sequence[tuple[WgpuKernel, Pattern]]) -> None:
        """Make the pipelines that are missing, several at once.

        Raises:
            CompileError: If the library or the driver refuses a shader; names the kept source.
        """
        missing = [
            (kernel, pattern)
            for kernel, pattern in dict.fromkeys(wanted)
            if pattern not in kernel.pipelines
        ]
        if len(missing) < 2:
            for kernel, pattern in missing:
                self._make(kernel, pattern)
            return
        with ThreadPoolExecutor(min(_MAX_THREADS, len(missing)), "poot-pipelines") as pool:
            for done in [pool.submit(self._make, *each) for each in missing]:
                done.result()

    def _make(self, kernel: WgpuKernel, pattern: Pattern) -> None:
        code = bind_arrays(kernel.code, pattern)
        written = {i: binding.is_written for _, binding in pattern for i in binding.indices}
        storage = tuple(written[index] for index in sorted(written))
        lib = self._gpu.native.lib
        try:
            with self._lock:
                if storage not in self._layouts:
                    group_layout = self._gpu.group_layout(storage)
                    layout = self._gpu.pipeline_layout(group_layout)
                    self._layouts[storage] = (group_layout, layout)
                group_layout, layout = self._layouts[storage]
            module = self._gpu.shader(code, kernel.entry, is_checked=self._is_checked)
            try:
                pipeline = self._gpu.pipeline(module, layout, kernel.entry)
            finally:
                lib.wgpuShaderModuleRelease(module)
        except GpuError as error:
            name = f"{kernel.entry[:40]}-{hashlib.sha256(code.encode()).hexdigest()[:8]}.wgsl"
            path = self._cache.keep_failed(name, code)
            raise CompileError(
                f"{self._gpu.adapter} refuses kernel {kernel.entry!r}: {error}; its source is "
                f"kept at {path}",
                target="wgpu",
                path=None if path is None else str(path),
            ) from error
        kernel.pipelines[pattern] = (pipeline, group_layout)
