"""The harness' command line.

    uv run python -m benchmarks.harness list
    uv run python -m benchmarks.harness run [WORD ...] [--repeats 5] [--models DIR] [--results DIR]
    uv run python -m benchmarks.harness report FOLDER
    uv run python -m benchmarks.harness compare BEFORE AFTER [--fail-on-worse]

A WORD is a model, an engine or a scenario of the manifest, or the beginning of one with `*`; cells
must have all of them. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.harness.manifest import ManifestError, read_manifest
from benchmarks.harness.record import RecordError
from benchmarks.harness.report import comparison_report, write_report
from benchmarks.harness.run import run_cells
from benchmarks.harness.runners import RUNNERS, NotOffered

HERE = Path(__file__).resolve().parent.parent


def main(given: list[str] | None = None) -> int:
    """Run a command; return 1 for what went wrong, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.harness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="the cells of the manifest")
    running = commands.add_parser("run", help="measure cells")
    for each in (listing, running):
        each.add_argument("words", nargs="*", help="parts of the cells' names")
        each.add_argument("--manifest", type=Path, default=HERE / "manifest.toml")
    running.add_argument("--repeats", type=int, default=5)
    running.add_argument("--models", type=Path, default=None)
    running.add_argument("--results", type=Path, default=HERE / "results")
    running.add_argument("--hardware", help="name of the machine in the folder's name")
    reporting = commands.add_parser("report", help="write report.md and plot.svg again")
    reporting.add_argument("folder", type=Path)
    comparing = commands.add_parser("compare", help="say what changed between two runs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--fail-on-worse", action="store_true")
    arguments = parser.parse_args(given)
    try:
        return run_command(arguments)
    except (ManifestError, RecordError, NotOffered, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run_command(arguments: argparse.Namespace) -> int:
    """Run a parsed command."""
    if arguments.command == "report":
        write_report(arguments.folder)
        return 0
    if arguments.command == "compare":
        text, worse = comparison_report(arguments.before, arguments.after)
        print(text, end="")
        return 1 if worse and arguments.fail_on_worse else 0
    cells = read_manifest(arguments.manifest, tuple(RUNNERS)).select(arguments.words)
    if arguments.command == "list":
        print(*(cell.name for cell in cells), sep="\n")
        return 0
    models = arguments.models or Path(os.environ.get("POOT_MODELS_DIR") or "~/models")
    folder = run_cells(
        cells,
        RUNNERS,
        models=models.expanduser(),
        results=arguments.results,
        repeats=arguments.repeats,
        hardware=arguments.hardware,
    )
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
