"""Choosing, stating and calibrating on outcomes that are already known, with the noise that a release has.

No model runs and nothing is charged: the items are those of public benchmarks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.exact.laplace import discrete_laplace

DRAWS = 400
"""Choices with fresh noise and fresh halves, by pool."""

DELTA = 1e-6
"""δ of a released calibration."""

FLOOR = 0.1
"""A released mean is at least this fraction of one over the number of labels."""

NORMAL_GRID = 2**20
NORMAL_STEP = 8
"""The core draws normals whose scale is a multiple of it."""

Outcomes: TypeAlias = NDArray[np.bool_]
"""Right or wrong, shape (items,)."""

Items: TypeAlias = NDArray[np.int64]
"""Places of items, shape (any,)."""


@dataclass(frozen=True)
class Chosen:
    """The choices from one pool in `DRAWS` draws.

    Attributes:
        picked: how often each option was chosen.
        achieved: its mean accuracy on the test items.
        stated: the mean of the published accuracies; None in a cross-fit.
        spread: their standard deviation.
    """

    picked: Mapping[str, int]
    achieved: float
    stated: float | None = None
    spread: float | None = None


def halves(items: int) -> tuple[Items, Items]:
    """Two parts of the items: each item is in either by a fair coin of its own."""
    coins = _core.uniform_integers(2, items)
    return np.flatnonzero(coins == 0), np.flatnonzero(coins == 1)


def selected(options: Sequence[Outcomes], items: Items, epsilon: float) -> int:
    """The option that permute-and-flip chooses by the number of right items, at rate ε.

    An item more or less moves each number by at most 1, all in the same direction, so ε needs no factor 2.
    """
    scores = np.array([option[items].sum() for option in options], dtype=np.int64)
    return _core.permute_and_flip(scores, *Fraction(str(epsilon)).as_integer_ratio())


def stated(option: Outcomes, items: Items, epsilon: float) -> float:
    """The accuracy by noisy numbers of right and wrong items, whose joint L1 sensitivity is 1."""
    rate = Fraction(str(epsilon)).as_integer_ratio()
    right = int(option[items].sum())
    noisy = [count + discrete_laplace(*rate) for count in (right, len(items) - right)]
    return float(np.clip(noisy[0] / max(1, sum(noisy)), 0, 1))


def chosen(held: Mapping[str, Outcomes], test: Mapping[str, Outcomes], epsilon: float) -> Chosen:
    """`DRAWS` choices and statements: one half of the held-out items selects, the other measures, each at ε."""
    names = list(held)
    picks, told = [], []
    for _ in range(DRAWS):
        selects, measures = halves(len(held[names[0]]))
        name = names[selected([held[name] for name in names], selects, epsilon)]
        picks.append(name)
        told.append(stated(held[name], measures, epsilon))
    achieved = [float(test[name].mean()) for name in picks]
    return Chosen(
        picked=dict(Counter(picks)),
        achieved=round(float(np.mean(achieved)), 4),
        stated=round(float(np.mean(told)), 4),
        spread=round(float(np.std(told, ddof=1)), 4),
    )


def cross_fit(outcomes: Mapping[str, Outcomes], epsilon: float) -> Chosen:
    """`DRAWS` choices by one half of the test items; the other half gives the accuracy that is achieved."""
    names = list(outcomes)
    picks, achieved = [], []
    for _ in range(DRAWS):
        selects, uses = halves(len(outcomes[names[0]]))
        name = names[selected([outcomes[name] for name in names], selects, epsilon)]
        picks.append(name)
        achieved.append(float(outcomes[name][uses].mean()))
    return Chosen(dict(Counter(picks)), round(float(np.mean(achieved)), 4))


@cache
def noise_of_mean(epsilon: float) -> float:
    """σ of the sum of vectors whose L2 norm is at most 1."""
    return calibrate(lambda sigma: PoissonGaussian(1.0, sigma, 1), epsilon=epsilon, delta=DELTA)


def released_mean(probabilities: NDArray[np.float64], population: int, epsilon: float) -> NDArray[np.float64]:
    """The mean of the items' probabilities of labels with the noise of a release, shape (labels,).

    Args:
        probabilities: of the items that were scored, shape (items, labels).
        population: the number of units that the release would score; its noise is that of their mean.
        epsilon: of the release.
    """
    mean = probabilities.mean(axis=0)
    grid = _core.rounded_normals(
        NORMAL_STEP * math.ceil(noise_of_mean(epsilon) * NORMAL_GRID / NORMAL_STEP), len(mean)
    )
    kept = np.maximum(mean + grid / NORMAL_GRID / population, FLOOR / len(mean))
    return np.asarray(kept / kept.sum())
