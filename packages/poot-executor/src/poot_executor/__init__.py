"""The planner: compiles a graph for a target into a program of fused kernels and runs it on a device."""

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
    PreparedSequence,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor._engine import Engine, EngineInfo, EngineOptions, StepInputs, WeightSource
from poot_executor._open import open_engine, plan, trace_options

__all__ = [
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
    "PreparedSequence",
    "ScalarArgument",
    "StepInputs",
    "SymbolArgument",
    "WeightSource",
    "list_backends",
    "open_engine",
    "plan",
    "trace_options",
]
