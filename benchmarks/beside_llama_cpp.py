"""poot beside llama.cpp on the host CPU: prefill, decode, depth, batch, start, memory, in one run.

Needs a native build of llama.cpp's ``llama-bench`` (``--llama-bench`` or POOT_LLAMA_BENCH) and the
small checkpoints of ``just models``. The engines alternate run by run; figures are medians of all
runs and ratios are taken pair by pair. Run it alone on the machine.

    uv run python benchmarks/beside_llama_cpp.py --pairs 5 --output benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS = {
    "SmolLM2-135M Q4_1": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma3-270M Q4_K_M": "gemma-3-270m-q4_k_m.gguf",
    "Qwen2.5-Coder-0.5B Q4_K_M": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}
# Bytes of weights that one token reads, in MB: what divides the read bandwidth into a bound.
READ_MB = {
    "SmolLM2-135M Q4_1": 96.6,
    "Gemma3-270M Q4_K_M": 246.6,
    "Qwen2.5-Coder-0.5B Q4_K_M": 391.9,
}
LONG_CONTEXT = 4096


def run_json(command: list[str], environment: dict[str, str] | None = None) -> Any:
    """Run a command and return the JSON document that it prints."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def llama(binary: str, model: Path, threads: int, *tests: str) -> dict[tuple[int, int, int], float]:
    """Return llama-bench's tokens a second by (prompt tokens, generated tokens, depth)."""
    command = [binary, "-m", str(model), "-t", str(threads), "-r", "3", "-o", "json", *tests]
    return {(r["n_prompt"], r["n_gen"], r["n_depth"]): r["avg_ts"] for r in run_json(command)}


def poot(
    model: Path, threads: int, *options: str, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return what ``poot bench`` prints."""
    command = [
        "uv",
        "run",
        "--no-sync",
        "poot",
        "bench",
        str(model),
        "--threads",
        str(threads),
        "--json",
    ]
    return run_json([*command, "--repeat", "3", *options], environment)


def measure_model(name: str, path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one model."""
    pairs: list[dict[str, Any]] = []
    for _ in range(arguments.pairs):
        peer = llama(arguments.llama_bench, path, arguments.threads, "-p", "512", "-n", "128")
        ours = poot(path, arguments.threads, "--prefill", "512", "--decode", "128")
        pairs.append(
            {
                "llama_prefill": peer[512, 0, 0],
                "llama_decode": peer[0, 128, 0],
                **{k: v for k, v in ours.items() if k != "samples"},
                "prefill_ratio": ours["prefill_tok_s"] / peer[512, 0, 0],
                "decode_ratio": ours["decode_tok_s"] / peer[0, 128, 0],
                "read_share": ours["decode_tok_s"] * READ_MB[name] / 1e3 / ours["read_gb_s"],
            }
        )
        print(name, json.dumps(pairs[-1]), file=sys.stderr)
    medians = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
    return {"median": medians, "pairs": pairs}


def measure_depth(path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return how much slower decode is at a long context than at a short one, for both engines."""
    peer = llama(
        arguments.llama_bench,
        path,
        arguments.threads,
        "-p",
        "0",
        "-n",
        "32",
        "-d",
        f"128,{LONG_CONTEXT}",
    )
    short = poot(path, arguments.threads, "--decode", "32", "--depth", "128")["decode_tok_s"]
    long = poot(path, arguments.threads, "--decode", "32", "--depth", str(LONG_CONTEXT))[
        "decode_tok_s"
    ]
    return {
        "llama_slowdown": peer[0, 32, 128] / peer[0, 32, LONG_CONTEXT],
        "poot_slowdown": short / long,
        "poot_short_tok_s": short,
        "poot_long_tok_s": long,
    }


def measure_batch(path: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return tokens a second of 8 sequences together over llama.cpp's single stream."""
    single = llama(arguments.llama_bench, path, arguments.threads, "-p", "0", "-n", "128")[
        0, 128, 0
    ]
    together = poot(path, arguments.threads, "--decode", "128", "--batch", "8")["decode_tok_s"]
    return {"llama_single_tok_s": single, "poot_8_tok_s": together, "ratio": together / single}


def measure_start(path: Path) -> dict[str, float]:
    """Return seconds from process start to the first token, with a warm and with an empty cache."""
    command = ["uv", "run", "--no-sync", "poot", "generate", str(path), "--prompt-ids", "1,2,3,4,5"]
    command += ["--max-tokens", "1", "--temperature", "0", "--ignore-eos", "--json"]

    def once(environment: dict[str, str]) -> float:
        start = time.perf_counter()
        run_json(command, environment)
        return time.perf_counter() - start

    once({})
    warm = statistics.median(once({}) for _ in range(5))
    with tempfile.TemporaryDirectory() as empty:
        cold = once({"POOT_KERNEL_CACHE_DIR": empty, "XDG_CACHE_HOME": empty})
    return {"warm_s": warm, "empty_cache_s": cold}


def main() -> None:
    """Measure everything and print or write one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-bench", default=os.environ.get("POOT_LLAMA_BENCH"))
    parser.add_argument(
        "--models", type=Path, default=os.environ.get("POOT_MODELS_DIR") or "~/models"
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="substring of the models to measure")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not arguments.llama_bench:
        parser.error("name a llama-bench with --llama-bench or POOT_LLAMA_BENCH")
    folder = Path(arguments.models).expanduser()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = {
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "threads": arguments.threads,
    }
    for name, file in MODELS.items():
        if arguments.only and arguments.only.lower() not in name.lower():
            continue
        path = folder / file
        result[name] = {**measure_model(name, path, arguments), "start": measure_start(path)}
        if name.startswith("SmolLM2"):
            result[name]["depth"] = measure_depth(path, arguments)
            result[name]["batch"] = measure_batch(path, arguments)
    text = json.dumps(result, indent=1)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    print(text)


def machine() -> str:
    """Return the processor's name and the cores at hand."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
