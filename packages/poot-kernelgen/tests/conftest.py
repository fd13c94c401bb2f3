"""Launching generated kernels on this host: with all that it has, and with AVX2 alone."""

import ctypes
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_core import DeviceCaps, Settings, Target
from poot_kernel import compile_kernels
from poot_kernel.compile import CompileService, host_target, load_objects
from poot_kernel.interpreter import interpret
from poot_kernelgen import GeneratedKernel, Request, generate

HOST = host_target(Settings())
AVX2 = host_target(Settings(cpu_features=frozenset({"avx2"})))
CAPS = DeviceCaps(
    name="test", vector_bytes=64, subgroup_size=16, num_workers=2, shared_bytes=1 << 20,
    memory_bytes=1 << 33,
)  # fmt: skip
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Launcher:
    """Generates, compiles and calls the kernels of requests for one target."""

    def __init__(self, service: CompileService, target: Target) -> None:
        self.service, self.target = service, target
        self._loaded: dict[str, tuple[Any, Any]] = {}

    def __call__(
        self,
        request: Request,
        arguments: Sequence[Any],
        role: str = "main",
        tiles: range | None = None,
    ) -> None:
        """Run the workgroups ``tiles`` (by default all) of a request's kernel."""
        (kernel,) = (k for k in generate(request, self.target, CAPS) if k.role == role)
        slots = ctypes.create_string_buffer(b"".join(map(_slot, arguments)))
        scratch = np.full(kernel.scratch_bytes + 128, 0xA5, np.uint8)
        base = scratch.ctypes.data + -scratch.ctypes.data % 64
        chosen = range(_workgroups(kernel, arguments)) if tiles is None else tiles
        self._entry(kernel)(ctypes.addressof(slots), chosen.start, chosen.stop, base)
        used = base - scratch.ctypes.data + kernel.scratch_bytes
        assert (scratch[used:] == 0xA5).all(), "a kernel wrote behind its scratch"

    def _entry(self, kernel: GeneratedKernel) -> Any:
        if kernel.name not in self._loaded:
            (compiled,) = compile_kernels([kernel.function], self.target, self.service)
            code = load_objects([compiled.data], self.target.arch)
            self._loaded[kernel.name] = (_ENTRY(code.symbols[0][kernel.name]), code)
        return self._loaded[kernel.name][0]


def _slot(argument: Any) -> bytes:
    if isinstance(argument, np.ndarray):
        return struct.pack("<Q", argument.ctypes.data)
    return struct.pack("<fxxxx", argument) if isinstance(argument, float) else struct.pack(
        "<q", argument)  # fmt: skip


def _workgroups(kernel: GeneratedKernel, arguments: Sequence[Any]) -> int:
    total = 1
    for what, value, divisor in kernel.grid:
        number = value if what == "const" else arguments[int(value)]
        total *= -(-int(number) // divisor)
    return total


GPU = Target("vulkan", "spirv1.6")


def gpu_caps(subgroup_size: int) -> DeviceCaps:
    """Return the facts of a GPU that the interpreter plays."""
    return DeviceCaps(
        name="interpreter", vector_bytes=16, subgroup_size=subgroup_size, num_workers=1,
        shared_bytes=32 << 10, memory_bytes=1 << 33, max_workgroup=256,
    )  # fmt: skip


class Interpreted:
    """Generates the kernels that a GPU gets and runs them in the interpreter, which finds races."""

    def __init__(self, subgroup_size: int) -> None:
        self.caps = gpu_caps(subgroup_size)

    def __call__(self, request: Request, arguments: Sequence[Any], role: str = "main") -> None:
        """Run a request's kernel over its whole grid."""
        (kernel,) = (k for k in generate(request, GPU, self.caps) if k.role == role)
        flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in arguments]
        interpret(
            kernel.function, flat, subgroup_size=self.caps.subgroup_size,
            workgroup_order="random",
        )  # fmt: skip


@pytest.fixture(params=[8, 32], ids=["lanes8", "lanes32"])
def gpu(request: pytest.FixtureRequest) -> Interpreted:
    """Return a launcher of GPU schedules, with narrow and with wide subgroups."""
    return Interpreted(request.param)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileService]:
    """Return a compile service whose cache ends with the session."""
    settings = Settings(kernel_cache_dir=Path(tmp_path_factory.mktemp("kernels")))
    with CompileService(settings, num_workers=1) as found:
        yield found


@pytest.fixture(
    scope="session",
    params=[HOST, AVX2] if "avx512f" in HOST.features else [HOST],
    ids=lambda target: "avx512" if "avx512f" in target.features else "base",
)
def launch(request: pytest.FixtureRequest, service: CompileService) -> Launcher:
    """Return a launcher for this host, and one for it without AVX-512."""
    return Launcher(service, request.param)
