"""Draws the distributions of a load test as one SVG; no plotting library is needed for four curves."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np
from numpy.typing import NDArray

__all__ = ["distributions_svg"]

_WIDTH, _HEIGHT, _MARGIN = 340, 220, 44
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}"
    ".axis{stroke:#999;fill:none}.curve{stroke:#1565c0;stroke-width:2;fill:none}"
    ".mark{stroke:#c62828;stroke-dasharray:3 3}"
)


def distributions_svg(samples_ms: Mapping[str, NDArray[np.float64]], title: str) -> str:
    """Return an SVG with the cumulative distribution of each metric, and its 99th percentile marked.

    Args:
        samples_ms: Title of a metric to its samples in milliseconds.
        title: Stands above.
    """
    panels = [
        _panel(name, values, (place % 2) * _WIDTH, 30 + (place // 2) * _HEIGHT)
        for place, (name, values) in enumerate(samples_ms.items())
    ]
    height = 30 + _HEIGHT * (-(-len(panels) // 2))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _WIDTH}" height="{height}">'
        f"<style>{_STYLE}</style>"
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text class="title" x="10" y="20">{escape(title)}</text>{"".join(panels)}</svg>\n'
    )


def _panel(name: str, values: NDArray[np.float64], left: float, top: float) -> str:
    x0, y0 = left + _MARGIN, top + _HEIGHT - _MARGIN
    width, height = _WIDTH - _MARGIN - 20, _HEIGHT - _MARGIN - 30
    parts = [f'<text x="{x0}" y="{top + 20}">{escape(name)}, ms</text>']
    parts.append(f'<path class="axis" d="M{x0},{y0 - height}V{y0}H{x0 + width}"/>')
    for share in (0, 50, 100):
        y = y0 - height * share / 100
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.0f}" text-anchor="end">{share}%</text>')
    if not values.size:
        return "".join(parts)
    # One point a pixel at most, however many samples there are.
    shares = np.linspace(0, 100, min(values.size, 200) + 1)
    levels = np.percentile(values, shares)
    most = float(levels[-1]) or 1.0
    points = " ".join(
        f"{x0 + width * level / most:.1f},{y0 - height * share / 100:.1f}"
        for level, share in zip(levels.tolist(), shares.tolist(), strict=True)
    )
    parts.append(f'<polyline class="curve" points="{points}"/>')
    p99 = float(np.percentile(values, 99))
    x = x0 + width * p99 / most
    parts.append(f'<path class="mark" d="M{x:.1f},{y0 - height}V{y0}"/>')
    for level, at in ((0.0, x0), (most, x0 + width)):
        parts.append(f'<text x="{at}" y="{y0 + 18}" text-anchor="middle">{level:.4g}</text>')
    parts.append(f'<text x="{x - 4:.1f}" y="{y0 - 6}" text-anchor="end">p99 {p99:.4g}</text>')
    return "".join(parts)
