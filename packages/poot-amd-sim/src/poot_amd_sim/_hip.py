"""The HIP runtime in NumPy, at the edge of its Python binding: its functions, over the simulator.

Every call is checked against the real binding's signature and kept in order. ``fail`` makes a call
answer an error. Work is done at once and in order, so that streams and events only keep state.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from poot_amd_sim._book import find_programs
from poot_amd_sim._dispatch import WaveOrder, dispatch, pack_arguments
from poot_amd_sim._memory import Memory
from poot_amd_sim._program import Program
from poot_kernel.compile import KernelCache

__all__ = ["SimulatedHip"]

_WAVE64 = ("gfx9",)


@dataclass(frozen=True, eq=False)
class _Handle:
    """What the runtime hands out: opaque, compared by identity."""

    kind: str
    value: Any = None


class SimulatedHip:
    """Stands in for the module ``hip.hip`` with one GPU.

    Args:
        cache: Where assembly texts of code objects lie, see ``SimulatedCompileService``.
        arch: What the GPU is.
        memory_bytes: How much memory it has.
        num_devices: How many GPUs the runtime shows, all alike.

    Attributes:
        order: In which waves take turns.
        calls: Names and arguments of all calls.
        executed: Wave instructions that ran.
    """

    def __init__(
        self, cache: KernelCache, arch: str = "gfx1100", memory_bytes: int = 1 << 28,
        num_devices: int = 1,
    ) -> None:  # fmt: skip
        self._real: Any = import_module("hip").hip
        self._types: Any = import_module("rocm.bindings.util.types")
        self._cache, self.arch, self._devices = cache, arch, num_devices
        self.memory = Memory(memory_bytes)
        self.order: WaveOrder = "lockstep"
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.executed = 0
        self.live: dict[str, int] = {}
        self._hosts: dict[int, Any] = {}
        self._failures: dict[str, list[Any]] = {}
        self._capture: list[Callable[[], None]] | None = None
        self._clock = 0.0

    def fail(self, name: str, code: str | Exception, after: int = 0) -> None:
        """Make a call answer an error once, or raise, after so many good ones."""
        self._failures[name] = [after, code]

    def names(self) -> list[str]:
        """Return the names of all calls."""
        return [name for name, _ in self.calls]

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name, None)
        if real is None or not name.startswith("hip"):
            raise AttributeError(name)
        if isinstance(real, type):
            return real
        count = _num_parameters(real)

        def call(*arguments: Any) -> tuple[Any, ...]:
            assert len(arguments) == count, f"{name} takes {count} arguments, got {len(arguments)}"
            self.calls.append((name, arguments))
            if name in self._failures:
                left, code = self._failures[name]
                if left == 0:
                    del self._failures[name]
                    if isinstance(code, Exception):
                        raise code
                    return self._answer(name, code, _num_results(real))
                self._failures[name][0] -= 1
            found = getattr(self, "_" + name)(*arguments)
            if isinstance(found, str):
                return self._answer(name, found, _num_results(real))
            values = found if isinstance(found, tuple) else () if found is None else (found,)
            assert 1 + len(values) == _num_results(real), f"{name} answers otherwise"
            return (self._real.hipError_t.hipSuccess, *values)

        return call

    def _answer(self, name: str, code: str, count: int) -> tuple[Any, ...]:
        _ = name
        return (getattr(self._real.hipError_t, code), *[None] * (count - 1))

    def _pointer(self, address: int) -> Any:
        """Return an address as the binding does."""
        return self._types.Pointer(address)

    def _count(self, kind: str, by: int) -> None:
        self.live[kind] = self.live.get(kind, 0) + by

    def _do(self, work: Callable[[], None]) -> None:
        """Do work now, or record it into the graph that is being captured."""
        if self._capture is not None:
            self._capture.append(work)
        else:
            work()

    # ---- the device

    def _hipInit(self, flags: int) -> None:
        assert flags == 0

    def _hipGetDeviceCount(self) -> Any:
        return self._devices if self._devices else "hipErrorNoDevice"

    def _hipSetDevice(self, index: int) -> None:
        assert 0 <= index < self._devices

    def _hipRuntimeGetVersion(self) -> int:
        return 70_000_000

    def _hipGetDeviceProperties(self, index: int) -> Any:
        wave64 = self.arch.startswith(_WAVE64)
        facts = {
            "name": f"Simulated GPU {index}".encode(),
            "gcnArchName": (self.arch + (":sramecc+:xnack-" if wave64 else "")).encode(),
            "warpSize": 64 if wave64 else 32, "multiProcessorCount": 4,
            "sharedMemPerBlock": 65536, "totalGlobalMem": self.memory.capacity,
            "maxThreadsPerBlock": 1024,
        }  # fmt: skip
        for name in facts:
            assert hasattr(self._real.hipDeviceProp_t, name), name
        return SimpleNamespace(**facts)

    # ---- memory

    def _hipMalloc(self, size: int) -> Any:
        assert size > 0
        address = self.memory.allocate(size, f"allocation {len(self.calls)}")
        if address is None:
            return "hipErrorOutOfMemory"
        self._count("memory", 1)
        return self._pointer(address)

    def _hipFree(self, pointer: Any) -> Any:
        if not self.memory.release(int(pointer)):
            return "hipErrorInvalidValue"
        self._count("memory", -1)
        return None

    def _hipMemGetInfo(self) -> tuple[int, int]:
        return self.memory.free_bytes, self.memory.capacity

    def _hipHostMalloc(self, size: int, flags: int) -> Any:
        assert flags == 0
        block = np.zeros(size, np.uint8)
        self._hosts[int(block.ctypes.data)] = block
        self._count("host", 1)
        return self._pointer(int(block.ctypes.data))

    def _hipHostFree(self, pointer: Any) -> Any:
        if self._hosts.pop(int(pointer), None) is None:
            return "hipErrorInvalidValue"
        self._count("host", -1)
        return None

    def _hipMemsetAsync(self, target: int, value: int, size: int, stream: Any) -> Any:
        assert stream.kind == "stream"
        view = self.memory.block(int(target), size)
        if view is None:
            return "hipErrorInvalidValue"
        self._do(lambda: view.fill(value))
        return None

    def _hipMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Any) -> Any:
        assert stream.kind == "stream"
        view = self.memory.block(int(target), size)
        if view is None:
            return "hipErrorInvalidValue"
        pinned = any(a <= source and source + size <= a + b.nbytes for a, b in self._hosts.items())
        assert pinned, "uploads come from pinned memory"
        view[:] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        return None

    def _hipMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: Any) -> Any:
        assert stream.kind == "stream"
        view = self.memory.block(int(source), size)
        if view is None:
            return "hipErrorInvalidValue"
        ctypes.memmove(target, view.tobytes(), size)
        return None

    # ---- code

    def _hipModuleLoadData(self, image: Any) -> Any:
        data = bytes(image)
        if data[:4] != b"\x7fELF":
            return "hipErrorInvalidImage"
        programs = find_programs(self._cache, data)
        if programs is None or any(p.arch != self.arch for p in programs.values()):
            return "hipErrorNoBinaryForGpu"
        self._count("module", 1)
        return _Handle("module", programs)

    def _hipModuleUnload(self, module: Any) -> None:
        assert module.kind == "module"
        self._count("module", -1)

    def _hipModuleGetFunction(self, module: Any, name: bytes) -> Any:
        program = module.value.get(name.decode())
        return "hipErrorNotFound" if program is None else _Handle("function", program)

    def _hipModuleLaunchKernel(
        self, function: Any, x: int, y: int, z: int, bx: int, by: int, bz: int, shared: int,
        stream: Any, parameters: int, extra: Any,
    ) -> Any:  # fmt: skip
        program: Program = function.value
        assert stream.kind == "stream"
        assert extra is None
        block, grid = (bx, by, bz), (x, y, z)
        if 0 in grid or bx * by * bz > 1024:
            return "hipErrorInvalidConfiguration"
        given = [a for a in program.arguments if not a.kind.startswith("hidden_")]
        places = (ctypes.c_uint64 * len(given)).from_address(parameters) if given else ()
        values = [ctypes.string_at(p, a.size) for p, a in zip(places, given, strict=True)]
        packed = pack_arguments(program, values, grid, block)

        def work() -> None:
            self.executed += dispatch(
                program, self.memory, packed, grid, block, order=self.order,
                seed=len(self.calls), shared_bytes=shared,
            )  # fmt: skip

        self._do(work)
        return None

    # ---- streams, events, graphs

    def _hipStreamCreateWithFlags(self, flags: int) -> Any:
        assert flags == self._real.hipStreamNonBlocking
        self._count("stream", 1)
        return _Handle("stream")

    def _hipStreamDestroy(self, stream: Any) -> None:
        assert stream.kind == "stream"
        self._count("stream", -1)

    def _hipStreamSynchronize(self, stream: Any) -> Any:
        assert stream.kind == "stream"
        return "hipErrorStreamCaptureUnsupported" if self._capture is not None else None

    def _hipStreamBeginCapture(self, stream: Any, mode: Any) -> Any:
        assert stream.kind == "stream"
        assert isinstance(mode, self._real.hipStreamCaptureMode)
        if self._capture is not None:
            return "hipErrorIllegalState"
        self._capture = []
        return None

    def _hipStreamEndCapture(self, stream: Any) -> Any:
        assert stream.kind == "stream"
        if self._capture is None:
            return "hipErrorStreamCaptureUnmatched"
        found, self._capture = self._capture, None
        self._count("graph", 1)
        return _Handle("graph", tuple(found))

    def _hipGraphInstantiateWithFlags(self, graph: Any, flags: int) -> Any:
        assert graph.kind == "graph"
        assert flags == 0
        self._count("executable", 1)
        return _Handle("executable", graph.value)

    def _hipGraphDestroy(self, graph: Any) -> None:
        assert graph.kind == "graph"
        self._count("graph", -1)

    def _hipGraphUpload(self, executable: Any, stream: Any) -> None:
        assert (executable.kind, stream.kind) == ("executable", "stream")

    def _hipGraphLaunch(self, executable: Any, stream: Any) -> None:
        assert (executable.kind, stream.kind) == ("executable", "stream")
        for work in executable.value:
            work()

    def _hipGraphExecDestroy(self, executable: Any) -> None:
        assert executable.kind == "executable"
        self._count("executable", -1)

    def _hipEventCreate(self) -> Any:
        self._count("event", 1)
        return _Handle("event", [0.0])

    def _hipEventCreateWithFlags(self, flags: int) -> Any:
        assert flags in (0, self._real.hipEventDisableTiming)
        return self._hipEventCreate()

    def _hipEventRecord(self, event: Any, stream: Any) -> None:
        assert (event.kind, stream.kind) == ("event", "stream")
        self._clock += 1.0
        event.value[0] = self._clock

    def _hipEventSynchronize(self, event: Any) -> None:
        assert event.kind == "event"

    def _hipEventElapsedTime(self, start: Any, stop: Any) -> float:
        return float(stop.value[0] - start.value[0])

    def _hipEventDestroy(self, event: Any) -> None:
        assert event.kind == "event"
        self._count("event", -1)


def _num_parameters(function: Any) -> int:
    """Return how many arguments the real function takes, from the signature in its docstring."""
    found = re.match(r"\w+\((.*)\)", function.__doc__)
    assert found is not None
    return len([part for part in found[1].split(",") if part.strip()])


def _num_results(function: Any) -> int:
    """Return how long the tuple is that the real function answers."""
    found = re.search(r"tuple` of size (\d+)", function.__doc__)
    assert found is not None
    return int(found[1])
