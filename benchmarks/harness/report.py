"""A run as Markdown: medians with their range, engines beside each other, differences judged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.comparison import LEAST_REPEATS, compare
from benchmarks.harness.plot import plot
from benchmarks.harness.record import METRICS, Metric, Record, read_records

__all__ = ["Series", "comparison_report", "report", "series_of", "write_report"]

Key = tuple[str, str, str, str]  # model, scenario, metric, engine
Series = Mapping[Key, Sequence[float]]


def series_of(records: Iterable[Record]) -> dict[Key, list[float]]:
    """Return the figures of each metric of each cell, in the order of the records."""
    series: dict[Key, list[float]] = {}
    for record in records:
        for name, value in record.metrics.items():
            key = (record.model, record.scenario, name, record.engine)
            series.setdefault(key, []).append(value)
    return series


def report(records: Sequence[Record], environment: Mapping[str, Any]) -> str:
    """Return report.md."""
    series = series_of(records)
    lines = [f"# {environment['processor']}, commit {environment['commit']}", ""]
    lines += environment_lines(environment)
    lines += [
        "",
        "Medians (least to greatest, repeats); each repeat is a process of its own. A quotient stands "
        "for `engine / first engine` and is printed in bold where it is outside of the noise (exact "
        "two-sided rank-sum test, p at most 0.01, and at least 1%); with fewer than "
        f"{LEAST_REPEATS} repeats a side nothing is called.",
        "",
        "![Every repeat](plot.svg)",
    ]
    for scenario in dict.fromkeys(key[1] for key in series):
        lines += ["", f"## {scenario}", ""]
        chosen = {key: values for key, values in series.items() if key[1] == scenario}
        engines = list(dict.fromkeys(key[3] for key in chosen))
        lines.append("| model | metric | " + " | ".join(engines) + " |")
        lines.append("|---|---|" + "---|" * len(engines))
        for model, metric in dict.fromkeys((key[0], key[2]) for key in chosen):
            cells = [
                cell_text(chosen.get((model, scenario, metric, engine)), METRICS[metric])
                for engine in engines
            ]
            first = chosen.get((model, scenario, metric, engines[0]))
            for place, engine in enumerate(engines[1:], 1):
                other = chosen.get((model, scenario, metric, engine))
                cells[place] += quotient_text(first, other)
            meaning = METRICS[metric]
            unit = f" ({meaning.unit})" if meaning.unit else ""
            lines.append(f"| {model} | {meaning.title}{unit} | " + " | ".join(cells) + " |")
    failures = [record for record in records if record.failure]
    if failures:
        lines += ["", "## Failures", ""]
        lines += [f"- {'/'.join(r.cell)} {r.repeat}: {r.failure}" for r in failures]
    return "\n".join(lines) + "\n"


def environment_lines(environment: Mapping[str, Any]) -> list[str]:
    """Return the environment as a list."""
    shown = {
        "cores": environment.get("cores"),
        "features": environment.get("features"),
        "memory": f"{environment.get('memory_gib')} GiB",
        "GPUs": environment.get("gpus"),
        "system": f"{environment.get('system')}, {environment.get('libc')}",
        "Python": environment.get("python"),
        "engines": "; ".join(f"{k}: {v}" for k, v in environment.get("engines", {}).items()),
        "load before": environment.get("load_average"),
    }
    return [f"- {name}: {value}" for name, value in shown.items() if value]


def cell_text(values: Sequence[float] | None, metric: Metric) -> str:
    """Return a median with its range, or nothing."""
    if not values:
        return ""
    low, middle, high = (
        number(v / metric.scale) for v in (min(values), median(values), max(values))
    )
    return f"{middle} ({low} to {high}, {len(values)})"


def quotient_text(first: Sequence[float] | None, other: Sequence[float] | None) -> str:
    """Return the quotient of two engines, bold where it is real."""
    if not first or not other:
        return ""
    if min(len(first), len(other)) < LEAST_REPEATS or min(*first, *other) <= 0:
        return f", {median(other) / median(first):.2f}x (not called)" if min(first) > 0 else ""
    found = compare(first, other)
    text = f"{found.ratio:.2f}x"
    return f", **{text}**" if found.is_real else f", {text}"


def number(value: float) -> str:
    """Return a figure with three or four digits.

    >>> number(1926.3), number(0.01234), number(12.345)
    ('1926', '0.0123', '12.3')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write_report(folder: Path) -> None:
    """Write report.md and plot.svg of a results folder from its records and environment."""
    records = read_records(folder)
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "report.md").write_text(report(records, environment))
    (folder / "plot.svg").write_text(plot(series_of(records)))


def comparison_report(before: Path, after: Path) -> tuple[str, int]:
    """Return a table of all metrics that two results folders share, and how many got really worse."""
    sides = [series_of(read_records(folder)) for folder in (before, after)]
    shared = [key for key in sides[0] if key in sides[1]]
    lines = [
        f"# {before.name} and {after.name}",
        "",
        "Ratio: median of all after/before quotients, with its 95% interval. A change is real if the "
        "exact two-sided rank-sum test gives p at most 0.01 and the ratio is at least 1% away from 1.",
        "",
        "| cell | metric | before | after | ratio | p | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    worse = 0
    for key in shared:
        model, scenario, name, engine = key
        metric = METRICS[name]
        a, b = sides[0][key], sides[1][key]
        row = [f"{model}/{engine}/{scenario}", metric.title]
        row += [cell_text(a, metric), cell_text(b, metric)]
        if min(len(a), len(b)) < LEAST_REPEATS or min(*a, *b) <= 0:
            row += ["", "", f"not called: fewer than {LEAST_REPEATS} repeats a side"]
        else:
            found = compare(a, b)
            got_better = (found.ratio > 1) == metric.higher_is_better
            verdict = "no change" if not found.is_real else "better" if got_better else "worse"
            worse += verdict == "worse"
            row.append(f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})")
            row += [f"{found.p:.4f}", verdict]
        lines.append("| " + " | ".join(row) + " |")
    if not shared:
        lines.append("| no cell is in both | | | | | | |")
    return "\n".join(lines) + "\n", worse
