"""Every repeat of every metric as one SVG: a strip a metric and scenario, a row a model and engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from benchmarks.harness.record import METRICS

__all__ = ["plot"]

WIDTH, LEFT, RIGHT, ROW, GAP = 980, 330, 60, 22, 64
COLOURS = ("#2f74e0", "#d9780b", "#168a55", "#8257e0", "#d03a68", "#5b6577")


def plot(series: Mapping[tuple[str, str, str, str], Sequence[float]]) -> str:
    """Return the SVG; each strip has its own scale, which begins at 0.

    Args:
        series: Figures by (model, scenario, metric, engine).
    """
    engines = list(dict.fromkeys(key[3] for key in series))
    colour = {engine: COLOURS[i % len(COLOURS)] for i, engine in enumerate(engines)}
    body: list[str] = []
    x = 40.0
    for engine in engines:
        body.append(f'<circle cx="{x:.0f}" cy="34" r="6" fill="{colour[engine]}"/>')
        body.append(f'<text x="{x + 12:.0f}" y="39">{escape(engine)}</text>')
        x += 44 + 8.5 * len(engine)
    y = 64.0
    for scenario, metric in dict.fromkeys((key[1], key[2]) for key in series):
        rows = {k: v for k, v in series.items() if k[1] == scenario and k[2] == metric}
        body += strip(scenario, metric, rows, colour, y)
        y += GAP + ROW * len(rows)
    height = math.ceil(y + 8)
    style = (
        "text{font:14px Inter,system-ui,sans-serif;fill:#3b4456}"
        ".h{font-weight:600;fill:#141b2b}.a{text-anchor:end}.m{text-anchor:middle;font-size:12px}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}">',
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="14" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def strip(
    scenario: str,
    name: str,
    rows: Mapping[tuple[str, str, str, str], Sequence[float]],
    colour: Mapping[str, str],
    top: float,
) -> list[str]:
    """Return one strip: a title, an axis from 0, and a row of points with a mark at the median."""
    metric = METRICS[name]
    most = nice(max(max(values) for values in rows.values()) / metric.scale)
    unit = f", {metric.unit}" if metric.unit else ""
    better = "more is better" if metric.higher_is_better else "less is better"
    bottom = top + 18 + ROW * len(rows)

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value / metric.scale / most)

    parts = [
        f'<text class="h" x="40" y="{top + 8:.0f}">{escape(scenario)}: {escape(metric.title)}{unit}'
        f" ({better})</text>"
    ]
    for tick in range(5):
        value = most * tick / 4
        x = place(value * metric.scale)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + 16:.0f}" y2="{bottom:.0f}" stroke="#e3e7ee"/>'
        )
        parts.append(f'<text class="m" x="{x:.1f}" y="{bottom + 15:.0f}">{value:g}</text>')
    for number, ((model, _, _, engine), values) in enumerate(rows.items()):
        y = top + 30 + ROW * number
        label = f"{model}, {engine}"
        parts.append(f'<text class="a" x="{LEFT - 14}" y="{y + 5:.0f}">{escape(label)}</text>')
        parts += [
            f'<circle cx="{place(value):.1f}" cy="{y:.0f}" r="4" fill="{colour[engine]}" '
            'fill-opacity="0.55"/>'
            for value in values
        ]
        x = place(median(values))
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 9:.0f}" y2="{y + 9:.0f}" '
            f'stroke="{colour[engine]}" stroke-width="2.5"/>'
        )
    return parts


def nice(value: float) -> float:
    """Return a round number that is not smaller: an axis' end.

    >>> nice(1926.0), nice(0.07), nice(0.0)
    (2000.0, 0.08, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    steps = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(round(s * power, 12) for s in steps if s * power >= value * (1 - 1e-12))
