"""The kernels of a model's plan for any target, with no device present."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from poot_core import Settings, UnsupportedError
from poot_executor._engine import EngineOptions
from poot_executor._open import plan
from poot_kernel.targets.show import STAGES, assumed_caps, offline_target, show_stage
from poot_kernelgen import PackRequest, Request, generate

if TYPE_CHECKING:
    from poot_graph_ir import Graph, TraceOptions
    from poot_kernel import KernelFunction

__all__ = ["OfflineKernels"]


class OfflineKernels:
    """What a model's plan asks of a target's generators.

    Args:
        trace: Traces the model.
        options: Bounds and precision.
        target: Such as ``ptx:sm_90a``, ``rocm:gfx1100``, ``vulkan``, ``wgpu``, ``cpu``.

    Attributes:
        target: With its features.
        kernels: By name, in the order of the plan; those that pack weights last.
        requests: What each answers.

    Raises:
        SettingsError: If the text is no target that kernels are generated for.
        UnsupportedError: If the target cannot run the model; names the equation.
    """

    def __init__(
        self, trace: Callable[[TraceOptions], Graph], options: EngineOptions, target: str
    ) -> None:
        self.target = offline_target(target)
        caps = assumed_caps(self.target)
        program = plan(trace, options, self.target, caps)
        layouts = dict.fromkeys(program.layouts)
        requests: list[Request] = [*program.requests, *(PackRequest(layout=x) for x in layouts)]
        self.kernels: dict[str, KernelFunction] = {}
        self.requests: dict[str, Request] = {}
        for request in requests:
            for kernel in generate(request, self.target, caps):
                self.kernels.setdefault(kernel.name, kernel.function)
                self.requests.setdefault(kernel.name, request)

    @property
    def stages(self) -> tuple[str, ...]:
        """What can be shown of each kernel."""
        return ("python", *STAGES[self.target.api])

    def show(self, name: str, stage: str, settings: Settings) -> str:
        """Return a stage of a kernel as text; ``name`` may be the beginning of one name.

        Raises:
            UnsupportedError: If there is no such kernel or stage.
            CompileError: If a tool that shows it is absent or refuses it.
        """
        found = [each for each in self.kernels if each == name] or [
            each for each in self.kernels if each.startswith(name)
        ]
        if len(found) != 1:
            raise UnsupportedError(
                f"{name!r} begins the names of {len(found)} kernels for {self.target}; there are "
                f"{', '.join(found or self.kernels)}"
            )
        if stage == "python":
            return _source_of(self.requests[found[0]])
        return show_stage(self.kernels[found[0]], self.target, stage, settings)


def _source_of(request: Request) -> str:
    """Return the text of the request and of the module that answers it."""
    package = {
        "RowProgram": "rows", "AttendRequest": "attention", "ArgmaxRequest": "sampling",
    }.get(type(request).__name__, "contraction")  # fmt: skip
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(f"poot_kernelgen.{package}.") and getattr(module, "__file__", None)
    ]
    parts = [f"# asked for: {request!r}\n"]
    parts += [f"# {module.__name__}\n{inspect.getsource(module)}" for module in modules]
    return "\n".join(parts)
