"""Run cells in turn and keep what they give under results/<date>-<hardware>-<commit>/."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.environment import describe, hardware_slug
from benchmarks.harness.manifest import Cell
from benchmarks.harness.measure import measure
from benchmarks.harness.record import Record, write_records
from benchmarks.harness.report import write_report
from benchmarks.harness.runners import NotOffered, Runner

__all__ = ["run_cells"]


def run_cells(
    cells: Sequence[Cell],
    runners: Mapping[str, Runner],
    *,
    models: Path,
    results: Path,
    repeats: int,
    hardware: str | None = None,
) -> Path:
    """Measure cells and return the folder of their records, report and plot.

    Each repeat is a process of its own. Within a repeat the engines of one model and scenario follow
    each other, forwards and backwards in turn, so that a drift of the machine meets all of them alike.
    Records are written after every process: what ran before an interruption is kept.

    Raises:
        NotOffered: If no cell can run here.
        FileExistsError: If the folder holds the records of another run.
    """
    versions: dict[str, str] = {}
    here: list[Cell] = []
    for cell in cells:
        runner = runners[cell.engine.runner]
        try:
            versions.setdefault(cell.engine.name, runner.version())
            runner.plan(cell, models / cell.model.file, 1)
        except NotOffered as reason:
            print(f"{cell.name}: left out: {reason}", file=sys.stderr)
            continue
        if not (models / cell.model.file).exists():
            print(f"{cell.name}: left out: {cell.model.file} is missing", file=sys.stderr)
            continue
        here.append(cell)
    if not here:
        raise NotOffered("no cell can run here")
    environment = describe(versions)
    if environment["load_average"][0] > 0.5:
        print(f"the machine is not idle: {environment['load_average']}", file=sys.stderr)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    slug = hardware or hardware_slug(environment)
    folder = results / f"{date}-{slug}-{environment['commit']}"
    if (folder / "records.jsonl").exists():
        raise FileExistsError(f"{folder} holds a run: move it, or give other --results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").write_text(json.dumps(environment, indent=1) + "\n")
    records: list[Record] = []
    for group in grouped(here):
        for repeat in range(repeats):
            for cell in group if repeat % 2 == 0 else reversed(group):
                runner = runners[cell.engine.runner]
                record = measure(cell, runner, models / cell.model.file, repeat)
                records.append(record)
                said = record.failure or ", ".join(
                    f"{k} {v:.4g}" for k, v in record.metrics.items()
                )
                print(f"{cell.name} {repeat}: {said}", file=sys.stderr)
                write_records(folder, records)
    write_report(folder)
    return folder


def grouped(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return cells by model and scenario, in the order in which these first occur."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.model.name, cell.scenario.name), []).append(cell)
    return list(groups.values())
