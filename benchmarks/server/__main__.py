"""The commands of ``python -m benchmarks.server``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.server.install import measure_install
from benchmarks.server.load import measure_load
from benchmarks.server.overhead import measure_overhead, run_bare
from benchmarks.server.overload import measure_overload
from benchmarks.server.prefill import measure_prefill
from benchmarks.server.restart import measure_restart
from benchmarks.server.results import store

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(options: argparse.Namespace) -> None:
    """Throughput and time to first token beside llama.cpp's server."""
    peer = None
    if options.llama_server:
        peer = options.llama_server, options.peer_model or options.model
    for streams in options.streams:
        for shared in options.shared:
            found = measure_load(
                options.model, peer, streams=streams, shared=shared, rounds=options.rounds
            )
            name = f"{streams} streams" + (f", {shared} shared" if shared else "")
            keep(options, name if peer is None else f"{name}, {peer[1].name}", found)


def overhead(options: argparse.Namespace) -> None:
    """What the server adds to the time of the bare engine."""
    for prompt_tokens, output_tokens in ((128, 128), (16, 256)):
        found = measure_overhead(
            options.model,
            streams=options.streams,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            rounds=options.rounds,
        )
        keep(options, f"overhead, {prompt_tokens} in, {output_tokens} out", found)


def bare(options: argparse.Namespace) -> None:
    """The engine of `overhead` without a server; reads prompts from its input."""
    run_bare(options.model, options.streams)


def prefill(options: argparse.Namespace) -> None:
    """Gaps of running streams while a long prompt is computed."""
    found = measure_prefill(
        options.model, streams=options.streams, prompt_tokens=2000, rounds=options.rounds
    )
    keep(options, "a prompt of 2000 tokens beside running streams", found)


def overload(options: argparse.Namespace) -> None:
    """How soon refusals come at ten times what the server can answer."""
    found = measure_overload(
        options.model, streams=options.streams, max_requests=2 * options.streams, seconds=10.0
    )
    keep(options, "overload", found)


def restart(options: argparse.Namespace) -> None:
    """Start to ready, and death of the engine to the next answer."""
    keep(options, "restart", measure_restart(options.model, rounds=options.rounds))


def install(options: argparse.Namespace) -> None:
    """Size of a fresh installation from built wheels."""
    keep(options, "install", measure_install())


def keep(options: argparse.Namespace, name: str, found: dict[str, object]) -> None:
    """Print figures, and keep them where a file is named."""
    print(json.dumps({name: found}, indent=1), flush=True)
    if options.output:
        store(options.output, name, found)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    folder = Path(os.environ.get("POOT_MODELS_DIR") or "~/models").expanduser()
    commands = parser.add_subparsers(required=True)

    def command(function, **arguments):
        added = commands.add_parser(function.__name__, help=function.__doc__, **arguments)
        added.set_defaults(run=function)
        added.add_argument("--model", type=Path, default=folder / MODEL)
        added.add_argument("--output", type=Path, help="a JSON file, of which other cells stay")
        return added

    added = command(load)
    added.add_argument("--llama-server", default=os.environ.get("POOT_LLAMA_SERVER"))
    added.add_argument("--peer-model", type=Path, help="another file for llama.cpp")
    added.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    added.add_argument("--shared", type=int, nargs="+", default=[0, 1024])
    added.add_argument("--rounds", type=int, default=3)
    for function in (overhead, bare, prefill, overload, restart, install):
        added = command(function)
        added.add_argument("--streams", type=int, default=8)
        added.add_argument("--rounds", type=int, default=9 if function is overhead else 5)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    sys.exit(main())
