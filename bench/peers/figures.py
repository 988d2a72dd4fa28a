"""The arithmetic of docs/comparison.md: ratios in turns, differences of accuracy, and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.peers.accuracy import AMIN, EPSILONS, INK, RAW, TASKS, WRITER
from bench.peers.raw import Line
from bench.utility import RAW as UTILITY
from bench.utility_tables import OURS, SHOTS
from dpfewshot.evaluation import Cell, Results, difference
from dpfewshot.evaluation.summaries import Calibration, Difference

PEERS = {
    "gaussian": "Tang et al., Gaussian",
    "adadpsyn": "AdaDPSyn",
    AMIN: "private prediction (Amin et al.)",
    INK: "InvisibleInk",
    "private-evolution": "Private Evolution",
}
"""Conditions of cells, and their names on the page."""

CALIBRATION: dict[str, Calibration] = {"trec": "batch", "agnews": "batch", "mit-d": "contextual"}
"""As in docs/results/utility.md: extraction has one kind of outcomes."""


@dataclass(frozen=True)
class Spread:
    """A median with its range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values."""
        return cls(statistics.median(values), min(values), max(values))

    def shown(self, digits: int = 1) -> str:
        """As in the tables."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def ratios(lines: Iterable[Line], task: str, peer: str, ours: str) -> Spread:
    """Seconds of a peer in those of ours, round by round, in the run in which both took turns."""
    seconds = {
        (line["peer"], line["turns"], line["round"]): line["seconds"]
        for line in lines
        if line["kind"] == "speed" and line["task"] == task
    }
    rounds = [key[1:] for key in seconds if key[0] == peer and (ours, *key[1:]) in seconds]
    return Spread.of([seconds[peer, *each] / seconds[ours, *each] for each in rounds])


def cells() -> list[Cell]:
    """Those of four demonstrations at the page's ε, by Gemma."""
    both = [cell for path in (UTILITY, RAW) for cell in existing(path)]
    return [
        cell
        for cell in both
        if cell.task in TASKS
        and cell.model == cell.writer == WRITER
        and cell.shots == SHOTS
        and cell.epsilon_asked in EPSILONS
    ]


def existing(path: Path) -> list[Cell]:
    """A file's cells; none without the file."""
    return Results(path).cells if path.exists() else []


def group(found: Iterable[Cell], task: str, condition: str, epsilon: float) -> list[Cell]:
    """The repetitions of a condition, with the public examples where ours has them."""
    told = ", public examples" if task == "mit-d" else ""
    wanted = condition if condition == OURS[task] else condition + told
    chosen = [
        cell for cell in found if (cell.task, cell.condition, cell.epsilon_asked) == (task, wanted, epsilon)
    ]
    # some were measured by both scripts
    return [replace(cell, repetition=number) for number, cell in enumerate(chosen)]


def compared(ours: Sequence[Cell], peer: Sequence[Cell], task: str) -> Difference:
    """The peer's accuracy less ours."""
    return difference(peer, ours, calibration=CALIBRATION[task])


def ahead(found: Difference) -> bool:
    """Whether a peer is more accurate beyond the spread."""
    return found.low > 0


def accuracy_of(group_: Sequence[Cell], task: str) -> list[float]:
    """Of each repetition, in per cent."""
    kept = [
        (cell.batch_calibrated or "") if CALIBRATION[task] == "batch" else cell.outcomes for cell in group_
    ]
    return [100 * each.count("1") / len(each) for each in kept]
