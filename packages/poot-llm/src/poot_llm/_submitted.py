"""A step that was handed to the engine and not read yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poot_executor import Engine, PendingResults, Sampled, StepResults
from poot_llm._scheduler import StepPlan

__all__ = ["NOTHING_SAMPLED", "SubmittedStep"]

NOTHING_SAMPLED = Sampled(np.zeros(0, np.int32), np.zeros(0, np.int32))


@dataclass(slots=True)
class SubmittedStep:
    """What is needed to read a step once it is done.

    Attributes:
        plan: What it computes.
        places: For each row of logits that the engine samples, its place among what was sampled.
        pending: Its results, or None where the engine has them at once.
        num_rows: Rows of the step.
        num_tokens: Tokens of the step.
        begin_s: When it was handed over (``time.perf_counter``).
    """

    plan: StepPlan
    places: dict[int, int]
    pending: PendingResults | None
    num_rows: int
    num_tokens: int
    begin_s: float

    def wait(self, engine: Engine) -> StepResults:
        """Return its results once it is done.

        Raises:
            DeviceError: If the device failed.
        """
        if self.pending is not None:
            return self.pending.wait()
        faults = engine.step_faults()
        return StepResults(engine.sampled() if self.places else NOTHING_SAMPLED, faults)
