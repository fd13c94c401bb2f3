"""torch: transformers in an environment of its own (``referee_torch.py``); a referee, no peer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from benchmarks.harness.manifest import Cell
from benchmarks.harness.runners.base import NotOffered, Plan

__all__ = ["Torch"]

SCRIPT = Path(__file__).resolve().parent.parent.parent / "referee_torch.py"


class Torch:
    """Runs the script with uv, which installs what the script declares and nothing here."""

    def version(self) -> str:
        """Return how it is found."""
        if shutil.which("uv") is None:
            raise NotOffered("uv is not on the path")
        return "transformers, as referee_torch.py declares"

    def plan(self, cell: Cell, model: Path, port: int) -> Plan:
        """Return the process of one repeat."""
        self.version()
        scenario = cell.scenario
        if scenario.kind != "bench" or scenario.depth or scenario.batch > 1:
            raise NotOffered("the referee measures prefill and decode of one sequence alone")
        threads = str(scenario.threads or len(os.sched_getaffinity(0)))
        command = ["uv", "run", "--script", str(SCRIPT), str(model), "--threads", threads]
        command += ["--prefill", str(scenario.prefill), "--decode", str(scenario.decode)]

        def parse(output: str) -> dict[str, float]:
            found = json.loads(output.strip().splitlines()[-1])
            return {name: float(value) for name, value in found.items()}

        return Plan(
            command=[*command, *cell.engine.options],
            environment=dict(cell.engine.environment),
            parse=parse,
        )
