"""The server on a GPU: load of 1, 32 and 128 streams over models of random bf16 weights, and equal
bits alone and in company.

    python -m benchmarks.gpu.serve --models 1b 8b --backend ptx --output FILE.json

Each model is written as a checkpoint of random weights to a temporary folder (2.5 and 16 GB), served
by ``poot-serve``, and loaded by ``poot bench-serve`` with random prompt ids of 128 tokens and answers
of 128. The server's process and the client share the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.models import CONFIGS, RandomCheckpoint
from benchmarks.server.processes import Server, running

STREAMS = (1, 32, 128)
PROMPT, ANSWER = 128, 128
LOGPROBS = 5
READY_S = 400.0  # 16 GB to the device, and every kernel compiled


def write_checkpoint(folder: Path, name: str) -> None:
    """Write config.json and one safetensors file of random bf16 tensors."""
    checkpoint = RandomCheckpoint(CONFIGS[name])
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    header: dict[str, Any] = {}
    offset = 0
    for tensor in checkpoint.names():
        info = checkpoint.info(tensor)
        ends = [offset, offset + info.nbytes]
        header[tensor] = {"dtype": "BF16", "shape": list(info.shape), "data_offsets": ends}
        offset += info.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in checkpoint.names():
            file.write(memoryview(np.ascontiguousarray(checkpoint.raw(tensor))))


def load(server: Server, streams: int, seed: int = 0) -> dict[str, Any]:
    """Return what bench-serve measured with so many streams under way."""
    command = [
        sys.executable, "-m", "poot_llm", "bench-serve", f"http://127.0.0.1:{server.port}",
        "--requests", str(max(4, 3 * streams)), "--concurrency", str(streams),
        "--input-tokens", str(PROMPT), "--output-tokens", str(ANSWER),
        "--seed", str(seed), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench-serve ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def complete(server: Server, ids: list[int]) -> tuple[list[str], list[float]]:
    """Return tokens and their log-probabilities of a greedy answer."""
    body = {
        "model": "any", "prompt": ids, "max_tokens": 32, "temperature": 0, "logprobs": LOGPROBS,
        "ignore_eos": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        found = json.load(answer)["choices"][0]["logprobs"]
    return found["tokens"], found["token_logprobs"]


def invariant(server: Server, vocabulary: int) -> bool:
    """Return whether an answer and its log-probabilities have the same bits among 31 others."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, vocabulary, n).tolist() for n in rng.integers(20, 300, 32)]
    alone = complete(server, prompts[0])
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        found[number] = complete(server, prompts[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0] == alone


def measure(name: str, backend: str) -> dict[str, Any]:
    """Return the figures of one model."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_checkpoint(folder, name)
        command = [
            sys.executable, "-m", "poot_serve.cli", str(folder), "--backend", backend,
            "--max-sequences", str(max(STREAMS)), "--context", "1024", "--max-requests", "1000",
        ]  # fmt: skip
        with running(command, READY_S) as server:
            figures: dict[str, Any] = {"ready_s": server.ready_s}
            figures["same bits alone and among 31"] = invariant(server, CONFIGS[name]["vocab_size"])
            for streams in STREAMS:  # what is compiled and captured at first use
                load(server, streams, seed=1)
            for streams in STREAMS:
                figures[f"{streams} streams"] = load(server, streams)
                print(name, streams, json.dumps(figures[f"{streams} streams"])[:1500], flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(CONFIGS), default=["1b", "8b"])
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in arguments.models:
        figures[name] = measure(name, arguments.backend)
        print(name, {k: v for k, v in figures[name].items() if not isinstance(v, dict)}, flush=True)
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
