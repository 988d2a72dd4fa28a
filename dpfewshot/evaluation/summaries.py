"""Accuracies with bootstrap intervals over repetitions and test items.

Both are samples: hundreds of items, few repetitions. The bootstrap resamples items. Resampling three
repetitions would give intervals that contain the truth 3 times in 4, not 19 in 20. Instead, each bootstrap
sample gets an error with a t distribution, whose scale is the variation of repetitions beyond that of their
items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidRecords
from dpfewshot.evaluation.trials import Cell

RESAMPLES: Final = 2000
COVERAGE: Final = 0.95

_SEED: Final = 1
"""The bootstrap's seed: the same cells give the same interval. No privacy rests on it."""

Calibration: TypeAlias = Literal["contextual", "none", "batch"]
"""The calibration of classifications: by content-free texts, none, or by the test texts."""

Outcomes: TypeAlias = NDArray[np.float64]
"""1 for right and 0 for wrong, shape (repetitions, items)."""


@dataclass(frozen=True)
class Summary:
    """The accuracy of one condition over its repetitions. What is not named here is as in its cells.

    Attributes:
        epsilon: the budget's ε; 0 for baselines that read no record, None without privacy.
        delta, relation: the largest δ of the cells and their relation; None without privacy.
        certified: whether ε bounds what was released in every repetition, and is not only the noise's.
        accuracy: the mean over repetitions and items, in 0..1.
        calibration: of the classifications; None for extraction.
    """

    task: str
    model: str
    writer: str
    condition: str
    epsilon: float | None
    delta: float | None
    relation: str | None
    certified: bool
    shots: int
    accuracy: float
    low: float
    high: float
    repetitions: int
    items: int
    confidential: bool
    calibration: Calibration | None


def summarise(cells: Iterable[Cell], *, calibration: Calibration = "contextual") -> list[Summary]:
    """Return one summary for each group of cells that differ only in repetition, in order of first cell.

    Raises:
        InvalidRecords: a cell has no outcomes with this calibration.
    """
    return [_summary(group, calibration) for group in grouped(cells)]


def grouped(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group cells that differ only in repetition."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        *alike, _, items = cell.key
        groups.setdefault((*alike, items), []).append(cell)
    return [sorted(group, key=lambda cell: cell.repetition) for group in groups.values()]


def _summary(group: Sequence[Cell], calibration: Calibration) -> Summary:
    first = group[0]
    outcomes = outcomes_of(group, calibration)
    low, high = interval_of_mean(outcomes.mean(axis=0), [outcomes])
    return Summary(
        task=first.task,
        model=first.model,
        writer=first.writer,
        condition=first.condition,
        epsilon=first.epsilon_asked,
        delta=max((cell.delta for cell in group if cell.delta is not None), default=None),
        relation=first.relation,
        certified=all(cell.epsilon is not None for cell in group),
        shots=first.shots,
        accuracy=float(outcomes.mean()),
        low=max(0.0, low),
        high=min(1.0, high),
        repetitions=len(group),
        items=first.items,
        confidential=any(cell.confidential for cell in group),
        calibration=None if first.uncalibrated is None else calibration,
    )


def outcomes_of(group: Sequence[Cell], calibration: Calibration) -> Outcomes:
    """The outcomes with this calibration, or `InvalidRecords`; extraction has only one kind."""
    rows = []
    for cell in group:
        of = {"contextual": cell.outcomes, "none": cell.uncalibrated, "batch": cell.batch_calibrated}
        row = cell.outcomes if cell.uncalibrated is None else of.get(calibration)
        if row is None:
            raise InvalidRecords(
                f"a cell of {cell.condition!r} has no outcomes with calibration={calibration!r}"
            )
        rows.append([float(one) for one in row])
    return np.array(rows)


def interval_of_mean(by_item: NDArray[np.float64], groups: Sequence[Outcomes]) -> tuple[float, float]:
    """The 95 % interval of a mean over items, to which the repetitions of each group add an error."""
    generator = np.random.default_rng(_SEED)
    samples = by_item[generator.integers(by_item.size, size=(RESAMPLES, by_item.size))].mean(axis=1)
    for outcomes in groups:
        samples += _error_of_repetitions(outcomes, generator)
    low, high = np.quantile(samples, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def _error_of_repetitions(outcomes: Outcomes, generator: np.random.Generator) -> NDArray[np.float64]:
    """Sample the error of a mean over these repetitions; 0 for a single one.

    The variance is that of an analysis of variance with two crossed random effects: the variance of the
    repetitions' means minus the part that their items explain.
    """
    repetitions, items = outcomes.shape
    if repetitions == 1:
        return np.zeros(RESAMPLES)
    means = outcomes.mean(axis=1)
    chance = outcomes - means[:, None] - outcomes.mean(axis=0) + outcomes.mean()
    of_chance = (chance**2).sum() / ((repetitions - 1) * max(1, items - 1) * items)
    scale = math.sqrt(max(0.0, means.var(ddof=1) - of_chance) / repetitions)
    return scale * generator.standard_t(repetitions - 1, RESAMPLES)
