"""The planner: compiles a graph for a target into a program of fused kernels and runs it on a device."""

from typing import TYPE_CHECKING, Any

from poot_executor._backends import Backend, list_backends
from poot_executor._device import (
    Argument,
    Buffer,
    BufferArgument,
    Device,
    GridArgument,
    GridDim,
    KernelHandle,
    Launch,
    PendingBytes,
    PreparedSequence,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor._engine import (
    AheadEngine,
    Engine,
    EngineInfo,
    EngineOptions,
    PendingResults,
    StepInputs,
    StepResults,
    WeightSource,
)
from poot_executor._open import open_engine, plan, trace_options
from poot_executor._sampling import NumpySampler, Sampled

if TYPE_CHECKING:
    from poot_executor._compile import PlanOptions, compile_graph
    from poot_executor._explain import LaunchTime, explain, time_launches
    from poot_executor._offline import OfflineKernels
    from poot_executor._program import Program

__all__ = [
    "AheadEngine",
    "Argument",
    "Backend",
    "Buffer",
    "BufferArgument",
    "Device",
    "Engine",
    "EngineInfo",
    "EngineOptions",
    "GridArgument",
    "GridDim",
    "KernelHandle",
    "Launch",
    "LaunchTime",
    "NumpySampler",
    "OfflineKernels",
    "PendingBytes",
    "PendingResults",
    "PlanOptions",
    "PreparedSequence",
    "Program",
    "Sampled",
    "ScalarArgument",
    "StepInputs",
    "StepResults",
    "SymbolArgument",
    "WeightSource",
    "compile_graph",
    "explain",
    "list_backends",
    "open_engine",
    "plan",
    "time_launches",
    "trace_options",
]

# The planner is imported when it is used: a warm start reads its program from the cache.
_LATE = {
    "LaunchTime": "poot_executor._explain",
    "OfflineKernels": "poot_executor._offline",
    "PlanOptions": "poot_executor._compile",
    "Program": "poot_executor._program",
    "compile_graph": "poot_executor._compile",
    "explain": "poot_executor._explain",
    "time_launches": "poot_executor._explain",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
