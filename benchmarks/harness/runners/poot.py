"""poot: its bench command, its generate command for the start, its server."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.manifest import Cell
from benchmarks.harness.runners.base import Plan

__all__ = ["Poot"]


class Poot:
    """Runs what is installed beside the harness."""

    def version(self) -> str:
        """Return the version of the driver."""
        return f"poot-llm {version('poot-llm')}"

    def plan(self, cell: Cell, model: Path, port: int) -> Plan:
        """Return the process of one repeat."""
        scenario = cell.scenario
        common = list(cell.engine.options)
        if scenario.threads is not None:
            common += ["--threads", str(scenario.threads)]
        poot = [sys.executable, "-m", "poot_llm"]
        environment = dict(cell.engine.environment)
        if scenario.kind == "start":
            command = [*poot, "generate", str(model), "--prompt-ids", "1,2,3,4,5", *common]
            command += ["--max-tokens", "1", "--temperature", "0", "--ignore-eos"]
            return Plan(command=command, environment=environment)
        if scenario.kind == "serve":
            command = [sys.executable, "-m", "poot_serve.cli", str(model), *common]
            command += ["--port", str(port), "--max-sequences", str(max(scenario.clients, 1))]
            return Plan(command=command, environment=environment, url=f"http://127.0.0.1:{port}")
        command = [*poot, "bench", str(model), "--repeat", "1", "--json", *common]
        command += ["--prefill", str(scenario.prefill or 1), "--decode", str(scenario.decode or 1)]
        command += ["--depth", str(scenario.depth), "--batch", str(scenario.batch)]

        def parse(output: str) -> dict[str, float]:
            found = json.loads(output)
            figures: dict[str, float] = {}
            if scenario.prefill:
                figures["prefill_tok_s"] = found["prefill_tok_s"]
            if scenario.decode:
                figures["decode_tok_s"] = found["decode_tok_s"]
            if found.get("read_gb_s") is not None:
                figures["read_gb_s"] = found["read_gb_s"]
                read_mb = cell.model.read_mb
                if read_mb and scenario.decode and scenario.batch == 1 and not scenario.depth:
                    share = figures["decode_tok_s"] * read_mb / 1e3 / found["read_gb_s"]
                    figures["read_share"] = share
            return figures

        return Plan(command=command, environment=environment, parse=parse)
