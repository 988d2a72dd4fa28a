"""What a choice computes: scores as integers, the two releases, and accuracies from noisy counts.

A unit's score is the mean over its records, and over the models that label them, by a rule of that unit
alone. So one unit moves a sum by at most `GRID`, upwards alone (docs/proofs/choice.md, Lemmas 1 and 2). Both
releases are exact and (ε, 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource, rounded_down
from dpfewshot.exact.choice import discrete_laplace
from dpfewshot.exact.normal import exponential_of_minus
from dpfewshot.planning import document
from dpfewshot.values import Record

# ---- scores ----------------------------------------------------------------------------------------------

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


def label_weights(counts: Mapping[str, int], usual: int) -> dict[str, Fraction]:
    """What a record of each label weighs: min(1, usual / n), n its public number of units."""
    return {label: Fraction(min(usual, count), count) for label, count in counts.items()}


def weights_of(records: Iterable[Record | None], by_label: Mapping[str, Fraction]) -> Integers:
    """Return the weight of each record's label in grid steps, 0..GRID whatever the public mapping holds.

    A record that cannot be read, None, weighs 0, and a label that is not named weighs 1.
    """
    steps = [0 if one is None else math.floor(by_label.get(one.label, 1) * GRID) for one in records]
    return np.array([min(max(each, 0), GRID) for each in steps], dtype=np.int64)


def scores_of(outcomes: Outcomes, weights: Integers, sizes: Sequence[int], *, likelihood: bool) -> int:
    """Sum a candidate's scores over the units: one unit moves the sum by 0 to GRID.

    A score is right or wrong, or with `likelihood` the label's probability. Records stand unit by unit;
    `sizes` are the units' numbers of records, at least 1, and `weights` those of `weights_of`.
    """
    steps = np.where(outcomes.right == 1, GRID, 0).astype(np.int64)
    if likelihood:
        steps = np.floor(outcomes.likelihood.clip(0, 1) * GRID).astype(np.int64)
    return int(_sum_of_means(steps * weights[:, None] // GRID, sizes))


def cells_of(columns: Sequence[Outcomes], weights: Integers, sizes: Sequence[int]) -> Integers:
    """Count, for one or two candidates, the units by who is right: one unit moves all cells by GRID in all.

    The sums, in grid steps, have the shape (2,) * candidates, by whether each is right. A record that one of
    them does not answer is in no cell.
    """
    answered = np.all([column.right >= 0 for column in columns], axis=0)
    cell = np.zeros(answered.shape, dtype=np.int64)
    for column in columns:
        cell = 2 * cell + (column.right == 1)
    counted = [
        _sum_of_means(np.where(answered & (cell == number), weights[:, None], 0), sizes)
        for number in range(2 ** len(columns))
    ]
    return np.array(counted, dtype=np.int64).reshape((2,) * len(columns))


def _sum_of_means(steps: Integers, sizes: Sequence[int]) -> np.int64:
    """Sum each unit's mean, rounded down, over its records and the models."""
    if not len(sizes):
        return np.int64(0)
    starts = np.cumsum([0, *sizes[:-1]])
    totals = np.add.reduceat(steps.sum(axis=1), starts)
    means: Integers = totals // (np.array(sizes, dtype=np.int64) * steps.shape[1])
    return np.int64(means.sum())


# ---- releases --------------------------------------------------------------------------------------------

_NO_AMPLIFICATION: Final = 32
"""From this ε on, amplification by any q gains next to nothing for its price, and e^ε is large."""


def best_of(
    scores: Integers, rate: Fraction, permit: Permit, random_source: RandomSource | None = None
) -> int:
    """Release the index of the largest noisy score, by permute-and-flip at the exact ε `rate`.

    `scores` are the candidates' sums in steps of 1/GRID, int64, which one unit moves by 0 to GRID. They rise
    or fall together when one unit is added or removed, so no factor 2 is needed.
    """
    permit.use(scale_of(rate))
    return int(_core.permute_and_flip(scores, *(rate / GRID).as_integer_ratio(), random_source))


def noisy_counts(
    cells: Integers, rate: Fraction, permit: Permit, random_source: RandomSource | None = None
) -> NDArray[np.float64]:
    """Release counts of units by the discrete Laplace mechanism at the exact ε `rate`.

    `cells` are sums in steps of 1/GRID, of any shape; one unit moves them by at most GRID in all.
    """
    permit.use(scale_of(rate))
    ratio = (rate / GRID).as_integer_ratio()
    noisy = [count + discrete_laplace(*ratio, random_source) for count in cells.ravel().tolist()]
    return np.array(noisy, dtype=np.float64).reshape(cells.shape) / GRID


def scale_of(rate: Fraction) -> float:
    """The noise's scale in units."""
    return float(1 / rate)


def amplified(epsilon: Fraction, sampling_rate: Fraction) -> Fraction:
    """The largest ε₀ whose release from a Poisson sample is (ε, 0), rounded down to a float.

    log(1 + q(exp(ε₀) - 1)) ≤ ε, decided with integer enclosures of exp(-ε₀) and exp(-ε).
    """
    if sampling_rate == 1 or epsilon >= _NO_AMPLIFICATION:
        return epsilon
    near = float(epsilon)
    guess = near + math.log1p(float((1 - sampling_rate) / sampling_rate) * -math.expm1(-near))
    candidate = rounded_down(Fraction(guess))
    while not _holds(Fraction(candidate), epsilon, sampling_rate):
        candidate = math.nextafter(candidate, 0.0)
    return max(Fraction(candidate), epsilon)


def _holds(inner: Fraction, outer: Fraction, q: Fraction) -> bool:
    """Whether exp(-outer)·(exp(-inner)·(1 - q) + q) ≤ exp(-inner) for sure."""
    digits = 256 + 2 * math.ceil(inner)
    low, high = exponential_of_minus(*inner.as_integer_ratio(), digits)
    most = exponential_of_minus(*outer.as_integer_ratio(), digits)[1]
    one = 1 << digits
    return most * (high * (1 - q) + q * one) <= low * one


# ---- accuracies ------------------------------------------------------------------------------------------
# Let p be the accuracy in the population that the units come from, A the units' total weight, and R and W the
# noisy counts of right and wrong. T(p) = (1 - p)R - pW has mean 0. Its variance is at most p(1 - p)A for the
# sampling, plus the noise's. The interval holds every p for which |T(p)| is not too large, as Wilson's does,
# with a continuity correction (docs/proofs/choice.md).

_Z_COUNT: Final = 2.5758
"""The normal quantile of 1 - 0.005: the true weight exceeds its upper bound with probability 0.5 %."""

_Z_ACCURACY: Final = 2.0047
"""The normal quantile of 1 - 0.0225: T(p) is too large with probability 4.5 %."""

_CONTINUITY: Final = 0.5
_BISECTIONS: Final = 40


@dataclass(frozen=True, slots=True)
class Estimate:
    """An accuracy in 0..1, with the ends of its 95 % confidence interval. Released: publish it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The percentage and a symmetric interval that contains `low` and `high`: "84 ± 2 %"."""
        percent, low, high = 100 * self.value, 100 * self.low, 100 * self.high
        digits = 0 if max(high - percent, percent - low) >= 1 else 1
        shown = round(percent, digits)
        margin = max(high - shown, shown - low) * 10**digits
        return f"{shown:.{digits}f} ± {math.ceil(round(margin, 6)) / 10**digits:.{digits}f} %"

    def as_dict(self) -> dict[str, float]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returned, where 0 ≤ low ≤ value ≤ high ≤ 1."""
        told = document.check("an estimate", told, dict.fromkeys(("value", "low", "high"), document.NUMBER))
        value, low, high = float(told["value"]), float(told["low"]), float(told["high"])
        if not 0 <= low <= value <= high <= 1:
            raise InvalidPlan("an estimate has 0 <= low <= value <= high <= 1")
        return cls(value, low, high)


@dataclass(frozen=True)
class Noise:
    """The noise of a count of right or wrong: a sum of `terms` Laplace variables of this scale, in units."""

    scale: float
    terms: int

    def quantile(self, z: float, right: float, wrong: float) -> float:
        """Return a quantile of right·X + wrong·Y for the noise X and Y of the two counts.

        Cornish and Fisher's expansion, from the normal quantile z, to the fourth cumulant.
        """
        variance = 2 * self.terms * self.scale**2 * (right**2 + wrong**2)
        if variance == 0:
            return 0.0
        fourth = 12 * self.terms * self.scale**4 * (right**4 + wrong**4)
        return math.sqrt(variance) * (z + (z**3 - 3 * z) * fourth / variance**2 / 24)


def estimate(right: float, wrong: float, noise: Noise) -> Estimate:
    """Estimate an accuracy from the noisy weights of right and of wrong answers, which may be negative.

    It is right/(right + wrong), clipped to [0, 1], with its 95 % interval; ½ in [0, 1] if no unit is seen
    above the noise.
    """
    if right + wrong <= 0:
        return Estimate(0.5, 0.0, 1.0)
    # No count is below 0. As |T(p)| falls and A grows, no p leaves the interval.
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    total = right + wrong
    value = right / total
    most = total + noise.quantile(_Z_COUNT, 1.0, 1.0)

    def possible(p: float) -> bool:
        sampling = _Z_ACCURACY**2 * most * p * (1 - p)
        noisy = noise.quantile(_Z_ACCURACY, 1 - p, p) ** 2
        return abs(right - p * total) <= _CONTINUITY + math.sqrt(sampling + noisy)

    return Estimate(value, _end(possible, value, 0.0), _end(possible, value, 1.0))


def _end(possible: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the end of the interval between a value inside and a bound, not on the inner side of it."""
    if possible(outside):
        return outside
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if possible(middle) else (inside, middle)
    return outside
