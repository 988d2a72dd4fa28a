"""Each unit's scores as integers: at most `GRID` for a candidate, and in all for the cells of a comparison.

A unit's score is the mean over its records, and over the models that label them, by a rule of that unit
alone. So one unit moves a sum by at most `GRID`, upwards alone (docs/proofs/choice.md, Lemmas 1 and 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.values import Record

GRID: Final = 2**16
"""The steps of a score of 1."""

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Outcomes:
    """What one candidate makes of the records' labels. Private.

    Attributes:
        right: 1 for the record's label, 0 for another, -1 for no answer; shape (records, models).
        likelihood: the probability of the record's label, 0..1; same shape.
    """

    right: NDArray[np.int8]
    likelihood: NDArray[np.float64]


def weights_of(records: Iterable[Record | None], by_label: Mapping[str, Fraction]) -> Integers:
    """Return the weight of each record's label in grid steps, 0..GRID whatever the mapping holds.

    Args:
        records: private; None, one that cannot be read, weighs 0.
        by_label: public weights; a label that is not named weighs 1.
    """
    steps = [0 if one is None else math.floor(by_label.get(one.label, 1) * GRID) for one in records]
    return np.array([min(max(each, 0), GRID) for each in steps], dtype=np.int64)


def scores_of(outcomes: Outcomes, weights: Integers, sizes: Sequence[int], *, likelihood: bool) -> int:
    """Sum a candidate's scores over the units.

    Args:
        outcomes: of each unit's records, unit by unit.
        weights: of each record's label, 0..GRID, shape (records,).
        sizes: the number of records of each unit, at least 1.
        likelihood: whether the score is the probability of the label, and not right or wrong.

    Returns:
        The sum, which one unit moves by 0 to GRID.
    """
    steps = np.where(outcomes.right == 1, GRID, 0).astype(np.int64)
    if likelihood:
        steps = np.floor(outcomes.likelihood.clip(0, 1) * GRID).astype(np.int64)
    return int(_sum_of_means(steps * weights[:, None] // GRID, sizes))


def cells_of(columns: Sequence[Outcomes], weights: Integers, sizes: Sequence[int]) -> Integers:
    """Count, for one or two candidates, the units by who is right: one unit moves all cells by GRID in all.

    Args:
        columns: the outcomes of one candidate, or of two.
        weights: as in `scores_of`.
        sizes: as in `scores_of`.

    Returns:
        Sums in grid steps, shape (2,) * candidates, by whether each is right. A record that one of them does
        not answer is in no cell.
    """
    answered = np.all([column.right >= 0 for column in columns], axis=0)
    cell = np.zeros(answered.shape, dtype=np.int64)
    for column in columns:
        cell = 2 * cell + (column.right == 1)
    shape = (2,) * len(columns)
    counted = [
        _sum_of_means(np.where(answered & (cell == number), weights[:, None], 0), sizes)
        for number in range(2 ** len(columns))
    ]
    return np.array(counted, dtype=np.int64).reshape(shape)


def _sum_of_means(steps: Integers, sizes: Sequence[int]) -> np.int64:
    """Sum each unit's mean, rounded down, over its records and the models."""
    if not len(sizes):
        return np.int64(0)
    starts = np.cumsum([0, *sizes[:-1]])
    totals = np.add.reduceat(steps.sum(axis=1), starts)
    means: Integers = totals // (np.array(sizes, dtype=np.int64) * steps.shape[1])
    return np.int64(means.sum())
