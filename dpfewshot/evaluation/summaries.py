"""Accuracies with bootstrap intervals, over repetitions and test items.

Both are samples: of test items there are hundreds, of repetitions few. Items are resampled. Three repetitions
cannot be: intervals from three values drawn out of three hold the truth 3 times in 4, not 19 in 20. How much
repetitions differ is estimated instead, beyond what chance in their items explains: a t variable's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidRecords
from dpfewshot.evaluation.cells import STORED_AS, Cell
from dpfewshot.evaluation.conditions import title_of
from dpfewshot.runtime.deprecation import renamed_fields

RESAMPLES = 2000
"""Bootstrap samples."""

COVERAGE = 0.95
"""Of the intervals."""

_SEED = 1
"""Of the bootstrap: the same cells have the same interval. Nothing here is released under a guarantee."""

Calibration: TypeAlias = Literal["contextual", "none", "batch"]
"""Of classifications: by texts that say nothing, without any, or by the test texts themselves."""


@renamed_fields(private="confidential", setting="condition")
@dataclass(frozen=True)
class Summary:
    """The accuracy of one condition, over its repetitions.

    Attributes:
        task, model, writer, condition, shots, items, confidential: as of its cells.
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
    condition: str
    epsilon: float | None
    delta: float | None
    relation: str | None
    shots: int
    accuracy: float
    low: float
    high: float
    repetitions: int
    items: int
    confidential: bool
    calibration: Calibration | None = None

    @property
    def title(self) -> str:
        """The condition's name for people."""
        return title_of(self.condition)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {STORED_AS.get(name, name): value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Difference:
    """How much more accurate one condition is than another, in -1..1, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def summarise(cells: Iterable[Cell], *, calibration: Calibration = "contextual") -> list[Summary]:
    """One summary for each group of cells that differ in their repetition alone, in order of first cell.

    Args:
        cells: of any tasks, models and conditions.
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
        first: repetitions of one condition.
        second: of another, on the same items. Where they are the same repetitions, in the same order, they
            are compared one by one: those have the same labels.
        calibration: as of `summarise`.

    Raises:
        InvalidRecords: the items are not the same number; and as of `summarise`.
    """
    one, other = (_outcomes(group, calibration) for group in (first, second))
    if one.shape[1] != other.shape[1]:
        raise InvalidRecords("the two groups were measured on different numbers of items")
    together = [cell.repetition for cell in first] == [cell.repetition for cell in second]
    low, high = _ends(one.mean(axis=0) - other.mean(axis=0), [one - other] if together else [one, other])
    return Difference(float(one.mean() - other.mean()), low, high)


def _summary(group: Sequence[Cell], calibration: Calibration) -> Summary:
    first = group[0]
    outcomes = _outcomes(group, calibration)
    low, high = _ends(outcomes.mean(axis=0), [outcomes])
    deltas = [cell.delta for cell in group if cell.delta is not None]
    return Summary(
        task=first.task,
        model=first.model,
        writer=first.writer,
        condition=first.condition,
        epsilon=first.epsilon_asked,
        delta=max(deltas, default=None),
        relation=first.relation,
        shots=first.shots,
        accuracy=float(outcomes.mean()),
        low=max(0.0, low),
        high=min(1.0, high),
        repetitions=len(group),
        items=first.items,
        confidential=any(cell.confidential for cell in group),
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
        raise InvalidRecords(f"a cell of {cell.condition!r} has no outcomes with calibration={calibration!r}")
    return outcomes


def _ends(by_item: NDArray[np.float64], groups: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """The interval of a mean.

    Args:
        by_item: what is averaged, of each item, shape (items,).
        groups: the outcomes whose repetitions make its error, each of shape (repetitions, items).
    """
    generator = np.random.default_rng(_SEED)
    samples = by_item[generator.integers(by_item.size, size=(RESAMPLES, by_item.size))].mean(axis=1)
    for outcomes in groups:
        samples += _error_of_repetitions(outcomes, generator)
    low, high = np.quantile(samples, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def _error_of_repetitions(
    outcomes: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Samples of how far the mean of these repetitions is from that of all there could be; 0 of a single one.

    The variance of an analysis of variance with two crossed random effects: that of the repetitions' means,
    less the part that is the chance of their items.
    """
    repetitions, items = outcomes.shape
    if repetitions == 1:
        return np.zeros(RESAMPLES)
    means = outcomes.mean(axis=1)
    chance = outcomes - means[:, None] - outcomes.mean(axis=0) + outcomes.mean()
    of_chance = (chance**2).sum() / ((repetitions - 1) * max(1, items - 1) * items)
    scale = math.sqrt(max(0.0, means.var(ddof=1) - of_chance) / repetitions)
    return scale * generator.standard_t(repetitions - 1, RESAMPLES)
