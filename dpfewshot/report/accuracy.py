"""Measured accuracy for charts: one panel for each task, model and number of shots."""

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
        summary: with contextual calibration if there is one.
        uncalibrated: the accuracy without calibration; None for extraction.
        certified: whether ε bounds what was released, and is not only the noise's. Experiments may have no
            bound, for example if a backend's answers depend on the batch.
    """

    summary: Summary
    uncalibrated: float | None
    certified: bool


@dataclass(frozen=True)
class Panel:
    """The contents of a chart: all conditions of a task, model and number of shots, and those without shots.

    Attributes:
        task: the task's name.
        model: the name of the model that used the demonstrations.
        shots: the number of demonstrations in the prompt; 0 if nothing else was measured.
        series: the rows of each condition, by ascending ε.
    """

    task: str
    model: str
    shots: int
    series: Mapping[str, Sequence[Row]]

    @property
    def rows(self) -> list[Row]:
        """All rows, by condition."""
        return [row for rows in self.series.values() for row in rows]

    @property
    def uncertified(self) -> list[str]:
        """The conditions with an ε that is only the noise's."""
        return [
            name
            for name, rows in self.series.items()
            if any(row.summary.epsilon is not None and not row.certified for row in rows)
        ]

    @property
    def summaries(self) -> list[Summary]:
        """The summaries of all rows."""
        return [row.summary for row in self.rows]


def epsilon_order(epsilon: float | None) -> float:
    """The sort key of an ε; no privacy is last."""
    return math.inf if epsilon is None else epsilon


def panels(cells: Sequence[Cell]) -> list[Panel]:
    """Return one panel for each task, model and number of shots, in order of measurement."""
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
    """Group rows by the condition's title, and by the writer if there are several."""
    writers = len({row.summary.writer for row in rows if row.summary.shots}) > 1
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_whom = f" by {row.summary.writer}" if writers and row.summary.shots else ""
        series[row.summary.title + by_whom].append(row)
    return {
        name: sorted(these, key=lambda row: epsilon_order(row.summary.epsilon))
        for name, these in series.items()
    }
