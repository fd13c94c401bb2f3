"""llama.cpp: llama-bench, llama-server, and the completion program that is built beside them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.harness.manifest import Cell
from benchmarks.harness.runners.base import NotOffered, Plan

__all__ = ["LlamaCpp"]


class LlamaCpp:
    """Runs a native build, found by ``POOT_LLAMA_BENCH`` (and ``POOT_LLAMA_SERVER``)."""

    def _bench(self) -> Path:
        path = os.environ.get("POOT_LLAMA_BENCH")
        if not path or not Path(path).exists():
            raise NotOffered("POOT_LLAMA_BENCH names no llama-bench of a native build")
        return Path(path)

    def _beside(self, *names: str, variable: str | None = None) -> Path:
        """Return a program by its variable, or one beside llama-bench."""
        if variable and (path := os.environ.get(variable)):
            return Path(path)
        for name in names:
            path = self._bench().with_name(name)
            if path.exists():
                return path
        raise NotOffered(f"there is no {' or '.join(names)} beside llama-bench")

    def version(self) -> str:
        """Return the build's commit and number."""
        done = subprocess.run(
            [str(self._bench()), "--version"], capture_output=True, text=True, check=False
        )
        lines = (done.stderr + done.stdout).splitlines()
        return next((line.strip() for line in lines if line.startswith("version")), "llama.cpp")

    def plan(self, cell: Cell, model: Path, port: int) -> Plan:
        """Return the process of one repeat."""
        scenario, environment = cell.scenario, dict(cell.engine.environment)
        # llama.cpp would otherwise take as many threads as there are cores in the machine.
        threads = str(scenario.threads or len(os.sched_getaffinity(0)))
        common = ["-m", str(model), "-t", threads, *cell.engine.options]
        if scenario.empty_cache:
            raise NotOffered("llama.cpp compiles nothing for a model, so it keeps no cache")
        if scenario.kind == "start":
            program = self._beside("llama-completion", "llama-cli")
            command = [str(program), *common, "-p", "Once upon a time", "-n", "1", "--temp", "0"]
            command += ["-no-cnv", "--no-display-prompt", "--ignore-eos", "--no-warmup"]
            return Plan(command=command, environment=environment)
        if scenario.kind == "serve":
            program = self._beside("llama-server", variable="POOT_LLAMA_SERVER")
            command = [str(program), *common, "--port", str(port), "-np", str(scenario.clients)]
            return Plan(command=command, environment=environment, url=f"http://127.0.0.1:{port}")
        if scenario.batch > 1:
            raise NotOffered("llama-bench decodes one sequence; compare with its single stream")
        command = [str(self._bench()), *common, "-r", "1", "-o", "json"]
        command += ["-p", str(scenario.prefill), "-n", str(scenario.decode)]
        if scenario.depth:
            command += ["-d", str(scenario.depth)]

        def parse(output: str) -> dict[str, float]:
            figures: dict[str, float] = {}
            for row in json.loads(output):
                name = "decode_tok_s" if row["n_gen"] else "prefill_tok_s"
                figures[name] = row["avg_ts"]
            return figures

        return Plan(command=command, environment=environment, parse=parse)
