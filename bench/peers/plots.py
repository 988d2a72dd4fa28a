"""Plots of docs/comparison.md as SVG: bars on a logarithmic axis, and accuracies with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, LEFT, ROW = 760, 300, 26
GREY, BLUE = "#767676", "#2f6fb3"
"""Readable on light and on dark pages."""


def bars(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """One bar a row on a logarithmic axis from 1.

    Args:
        title: over the plot.
        rows: names, with values of at least 0.1.
    """
    most = max(value for _, value in rows)
    scale = (WIDTH - LEFT - 80) / math.log10(10 * most)
    parts = [text(8, 18, title, weight="bold")]
    for index, (name, value) in enumerate(rows):
        top = 34 + ROW * index
        length = max(2.0, scale * math.log10(10 * value))
        parts.append(text(LEFT - 8, top + 15, name, anchor="end"))
        parts.append(f'<rect x="{LEFT}" y="{top + 3}" width="{length:.0f}" height="16" fill="{BLUE}"/>')
        parts.append(text(round(LEFT + length + 6), top + 15, f"{value:.3g}"))
    return whole(34 + ROW * len(rows) + 8, parts)


def intervals(title: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """A dot with its interval for each row, on an axis from 0 to 100.

    Args:
        title: over the plot.
        rows: names, with a mean, a lower and an upper end, in per cent.
    """

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 60) * min(100.0, max(0.0, value)) / 100

    parts = [text(8, 18, title, weight="bold")]
    bottom = 34 + ROW * len(rows)
    for mark in range(0, 101, 20):
        x = place(mark)
        parts.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="28" y2="{bottom}" stroke="{GREY}" opacity="0.3"/>')
        parts.append(text(round(x), bottom + 16, f"{mark} %", anchor="middle"))
    for index, (name, mean, low, high) in enumerate(rows):
        y = 34 + ROW * index + 11
        parts.append(text(LEFT - 8, y + 4, name, anchor="end"))
        parts.append(
            f'<line x1="{place(low):.0f}" x2="{place(high):.0f}" y1="{y}" y2="{y}" stroke="{BLUE}" stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{place(mean):.0f}" cy="{y}" r="4" fill="{BLUE}"/>')
    return whole(bottom + 28, parts)


def text(x: int, y: int, what: str, *, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{GREY}">{escape(what)}</text>'


def whole(height: int, parts: Sequence[str]) -> str:
    """The picture."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'
    )
