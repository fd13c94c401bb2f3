"""The planner: compiles a graph for a target into a program of fused kernels and runs it on a device."""

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

__all__ = [
    "Argument",
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
]
