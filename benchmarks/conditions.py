"""poot beside llama.cpp where the machine is not its own: AVX2 alone, one core, a busy neighbour.

Needs ``llama-bench`` (``--llama-bench`` or POOT_LLAMA_BENCH) and the models of ``just models``; Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODELS = (
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
)
# Works 30 ms of every 100 on the core that it is bound to.
NEIGHBOUR = """
import time
while True:
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        pass
    time.sleep(0.07)
"""


def run_json(command: list[str], environment: dict[str, str]) -> Any:
    """Run a command and return the JSON document that it prints."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def poot(
    model: Path, threads: int, prefix: list[str], environment: dict[str, str]
) -> dict[str, float]:
    """Return poot's figures."""
    command = [*prefix, "poot", "bench", str(model), "--prefill", "512", "--decode", "64"]
    found = run_json([*command, "--threads", str(threads), "--repeat", "3", "--json"], environment)
    return {k: round(found[k], 1) for k in ("prefill_tok_s", "decode_tok_s", "read_gb_s")}


def llama(binary: str, model: Path, threads: int, prefix: list[str]) -> dict[str, float]:
    """Return llama.cpp's figures."""
    command = [*prefix, binary, "-m", str(model), "-t", str(threads), "-p", "512", "-n", "64"]
    rows = run_json([*command, "-r", "3", "-o", "json"], {})
    return {
        "prefill_tok_s": round(next(r["avg_ts"] for r in rows if r["n_prompt"]), 1),
        "decode_tok_s": round(next(r["avg_ts"] for r in rows if r["n_gen"]), 1),
    }


def measure(binary: str, model: Path) -> dict[str, Any]:
    """Return the figures of one model under each condition."""
    one_core = ["taskset", "-c", "0"]
    found: dict[str, Any] = {
        "avx2": {"poot": poot(model, 2, [], {"POOT_CPU_FEATURES": "avx2"})},
        "one core": {
            "poot": poot(model, 1, one_core, {}),
            "llama.cpp": llama(binary, model, 1, one_core),
        },
    }
    neighbour = subprocess.Popen(["taskset", "-c", "1", sys.executable, "-c", NEIGHBOUR])
    try:
        time.sleep(0.5)
        found["neighbour on 30% of a core"] = {
            "poot": poot(model, 2, [], {}),
            "llama.cpp": llama(binary, model, 2, []),
        }
    finally:
        neighbour.kill()
        neighbour.wait()
    return found


def main() -> None:
    """Measure everything; print or write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-bench", default=os.environ.get("POOT_LLAMA_BENCH"))
    parser.add_argument(
        "--models", type=Path, default=os.environ.get("POOT_MODELS_DIR") or "~/models"
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not arguments.llama_bench:
        parser.error("name a llama-bench with --llama-bench or POOT_LLAMA_BENCH")
    folder = Path(arguments.models).expanduser()
    text = json.dumps(
        {name: measure(arguments.llama_bench, folder / name) for name in MODELS}, indent=1
    )
    if arguments.output:
        arguments.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
