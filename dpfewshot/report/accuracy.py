"""Measured accuracy for charts: a panel for each task, model and number of shots."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfewshot.evaluation import Cell, Summary


@dataclass(frozen=True)
class Row:
    """All repetitions of one condition at one ε.

    Attributes:
        summary: with contextual calibration, where that is there.
        uncalibrated: the accuracy without it; None where there is no difference, as in extraction.
        certified: whether its ε is a bound on what was released, and not just the noise's. Experiments may do
            without a bound, as where a backend's answers depend on who is in a batch.
    """

    summary: Summary
    uncalibrated: float | None
    certified: bool


@dataclass(frozen=True)
class Panel:
    """What one chart shows: every condition of one task, model and number of shots, and those without shots.

    Attributes:
        task: its name.
        model: which read the demonstrations.
        shots: demonstrations in the prompt; 0 where nothing else was measured.
        series: of each condition its rows, by growing ε.
    """

    task: str
    model: str
    shots: int
    series: Mapping[str, Sequence[Row]]

    @property
    def rows(self) -> list[Row]:
        """All rows, condition by condition."""
        return [row for rows in self.series.values() for row in rows]

    @property
    def uncertified(self) -> list[str]:
        """The conditions of which an ε is the noise's alone."""
        return [
            name
            for name, rows in self.series.items()
            if any(row.summary.epsilon is not None and not row.certified for row in rows)
        ]

    @property
    def summaries(self) -> list[Summary]:
        """Of all rows."""
        return [row.summary for row in self.rows]


def epsilon_order(epsilon: float | None) -> float:
    """Where an ε stands among others; no privacy is last."""
    return math.inf if epsilon is None else epsilon


def panels(cells: Sequence[Cell]) -> list[Panel]:
    """One panel for each task, model and number of shots, in the order in which they were measured."""
    rows = _rows(cells) if cells else []
    found = []
    for task, model in dict.fromkeys((row.summary.task, row.summary.model) for row in rows):
        of_model = [row for row in rows if (row.summary.task, row.summary.model) == (task, model)]
        for shots in sorted({row.summary.shots for row in of_model} - {0}) or [0]:
            shown = [row for row in of_model if row.summary.shots in {0, shots}]
            found.append(Panel(task, model, shots, _by_condition(shown)))
    return found


def _rows(cells: Sequence[Cell]) -> list[Row]:
    from dpfewshot.evaluation import summarise
    from dpfewshot.evaluation.summaries import grouped

    return [
        Row(
            summary=summary,
            uncalibrated=None if summary.calibration is None else plain.accuracy,
            certified=all(cell.epsilon is not None for cell in group),
        )
        for summary, plain, group in zip(
            summarise(cells), summarise(cells, calibration="none"), grouped(cells), strict=True
        )
    ]


def _by_condition(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By the condition's name, and the writer's where there are several."""
    writers = len({row.summary.writer for row in rows if row.summary.shots}) > 1
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_whom = f" by {row.summary.writer}" if writers and row.summary.shots else ""
        series[row.summary.title + by_whom].append(row)
    return {
        name: sorted(these, key=lambda row: epsilon_order(row.summary.epsilon))
        for name, these in series.items()
    }
