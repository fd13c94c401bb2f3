"""The planner: compiles a graph for a target into a program of fused kernels and runs it on a device."""

from poot_executor._engine import Engine, EngineInfo, EngineOptions, StepInputs, WeightSource

__all__ = ["Engine", "EngineInfo", "EngineOptions", "StepInputs", "WeightSource"]
