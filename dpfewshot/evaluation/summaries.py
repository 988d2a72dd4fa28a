"""Accuracies with bootstrap intervals, over repetitions and test items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidRecords
from dpfewshot.evaluation.cells import Cell

RESAMPLES = 2000
"""Bootstrap samples."""

COVERAGE = 0.95
"""Of the intervals."""

Calibration: TypeAlias = Literal["contextual", "none", "batch"]
"""Of classifications: by texts that say nothing, without any, or by the test texts themselves."""


@dataclass(frozen=True)
class Summary:
    """The accuracy of one setting, over its repetitions.

    Attributes:
        task, model, writer, setting, shots, items, private: as of its cells.
        epsilon: the budget's; 0 for baselines that read no record, None without privacy.
        delta, relation: of that ε, the greatest δ of the cells; None without privacy.
        accuracy: the mean over repetitions and items, in 0..1.
        low: lower end of the 95 % bootstrap interval.
        high: upper end.
        repetitions: how many.
        calibration: one of `Calibration`; None for extraction.
    """

    task: str
    model: str
    writer: str
    setting: str
    epsilon: float | None
    delta: float | None
    relation: str | None
    shots: int
    accuracy: float
    low: float
    high: float
    repetitions: int
    items: int
    private: bool
    calibration: Calibration | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """How much more accurate one setting is than another, in -1..1, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def summarise(cells: Iterable[Cell], *, calibration: Calibration = "contextual") -> list[Summary]:
    """One summary for each group of cells that differ in their repetition alone, in order of first cell.

    Args:
        cells: of any tasks, models and settings.
        calibration: which of the classifications that a cell keeps are taken.

    Raises:
        InvalidRecords: a cell does not have them, or there is no such calibration.
    """
    return [_summary(group, calibration) for group in grouped(cells)]


def grouped(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells that differ in their repetition alone, together."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        *alike, _, items = cell.key
        groups.setdefault((*alike, items), []).append(cell)
    return [sorted(group, key=lambda cell: cell.repetition) for group in groups.values()]


def difference(
    first: Sequence[Cell], second: Sequence[Cell], *, calibration: Calibration = "contextual"
) -> Difference:
    """The accuracy of the first group of cells less that of the second, item by item.

    Args:
        first: repetitions of one setting.
        second: of another, on the same items.
        calibration: as of `summarise`.

    Raises:
        InvalidRecords: the items are not the same number; and as of `summarise`.
    """
    one, other = (_outcomes(group, calibration) for group in (first, second))
    if one.shape[1] != other.shape[1]:
        raise InvalidRecords("the two groups were measured on different numbers of items")
    items = _picks("items", RESAMPLES, one.shape[1])
    samples = _resampled(one, items, "first") - _resampled(other, items, "second")
    low, high = _ends(samples)
    return Difference(float(one.mean() - other.mean()), low, high)


def _summary(group: Sequence[Cell], calibration: Calibration) -> Summary:
    first = group[0]
    outcomes = _outcomes(group, calibration)
    low, high = _ends(_resampled(outcomes, _picks("items", RESAMPLES, outcomes.shape[1]), "first"))
    deltas = [cell.delta for cell in group if cell.delta is not None]
    return Summary(
        task=first.task,
        model=first.model,
        writer=first.writer,
        setting=first.setting,
        epsilon=first.epsilon_asked,
        delta=max(deltas, default=None),
        relation=first.relation,
        shots=first.shots,
        accuracy=float(outcomes.mean()),
        low=low,
        high=high,
        repetitions=len(group),
        items=first.items,
        private=any(cell.private for cell in group),
        calibration=None if first.uncalibrated is None else calibration,
    )


def _outcomes(group: Sequence[Cell], calibration: Calibration) -> NDArray[np.float64]:
    """Right is 1, wrong 0: shape (repetitions, items)."""
    rows = [_kept(cell, calibration) for cell in group]
    return np.array([[float(one) for one in row] for row in rows])


def _kept(cell: Cell, calibration: Calibration) -> str:
    """The outcomes of a cell with a calibration; of extraction, which has none, the only ones."""
    if cell.uncalibrated is None:
        return cell.outcomes
    of = {"contextual": cell.outcomes, "none": cell.uncalibrated, "batch": cell.batch_calibrated}
    outcomes = of.get(calibration)
    if outcomes is None:
        raise InvalidRecords(f"a cell of {cell.setting!r} has no outcomes with calibration={calibration!r}")
    return outcomes


def _resampled(outcomes: NDArray[np.float64], items: NDArray[np.intp], name: str) -> NDArray[np.float64]:
    """Mean accuracies of bootstrap samples: repetitions with replacement, then items with replacement."""
    repetitions = _picks(name, RESAMPLES, len(outcomes))
    by_item = outcomes[repetitions].mean(axis=1)
    means: NDArray[np.float64] = np.take_along_axis(by_item, items, axis=1).mean(axis=1)
    return means


def _picks(name: str, samples: int, below: int) -> NDArray[np.intp]:
    """Indices for bootstrap samples, shape (samples, below): the same every time, so that pages are too.

    Digits of a hash stand in for a seeded generator, which the package does without (test_house.py).
    """
    digits = hashlib.shake_256(name.encode()).digest(4 * samples * below)
    return (np.frombuffer(digits, dtype=np.uint32).reshape(samples, below) % below).astype(np.intp)


def _ends(samples: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(samples, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)
