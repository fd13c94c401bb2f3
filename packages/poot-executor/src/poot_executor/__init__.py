"""The planner: compiles a graph for a target into a program of fused kernels and runs it on a device."""

__all__: list[str] = []
