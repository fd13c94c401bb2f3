"""``poot kernels``: a model's kernels for any target, and each stage of one; no device is opened."""

from __future__ import annotations

from poot_core import Settings
from poot_executor import OfflineKernels
from poot_llm._open import OpenOptions, engine_options, read_model

__all__ = ["run_kernels"]


def run_kernels(
    model: str, name: str | None, *, target: str, stage: str, options: OpenOptions
) -> None:
    """Print the kernels of a model's plan for a target, or one stage of one.

    Args:
        model: A checkpoint.
        name: A kernel or how its name begins; all are listed without.
        target: Such as ``ptx:sm_90a``.
        stage: What is shown of the kernel.
        options: How to open the model.
    """
    settings = Settings.from_environment()
    checkpoint, found = read_model(model)
    with checkpoint:
        chosen = engine_options(found, options, settings)
        kernels = OfflineKernels(found.trace, chosen, target)
    if name is not None:
        print(kernels.show(name, stage, settings))
        return
    print(f"{kernels.target}: {len(kernels.kernels)} kernels; stages {', '.join(kernels.stages)}")
    for each, function in kernels.kernels.items():
        request = type(kernels.requests[each]).__name__
        print(f"{each:60} {function.level:4} {request}")
