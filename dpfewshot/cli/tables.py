"""Tables for people, whose columns are as wide as what stands in them."""

from __future__ import annotations

from collections.abc import Sequence

from dpfewshot.values import on_one_line


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row: the first column to the left, the others to the right, two spaces between columns.

    Args:
        rows: of equally many cells. A cell is shown on one line, without two spaces in a row.
    """
    shown = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
