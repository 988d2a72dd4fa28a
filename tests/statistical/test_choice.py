"""Choices and measured counts against their exact probabilities at p < 1e-9, with controls that must fail."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy import stats

import dpfewshot as dpf
from dpfewshot.account.permit import Permit
from dpfewshot.releases.selection import GRID, Measurement, Noise, Selection, estimate

IMPOSSIBLE = 1e-9
DRAWS = 20_000
RATE = Fraction(1, 2)
SCORES = [10.0, 8.5, 7.0, 2.0]


def permit(uses: int = DRAWS) -> Permit:
    return Permit(uses, 1 / float(RATE))


def flips(rate: float) -> list[float]:
    """Permute-and-flip: p_i ∫ Π_{j≠i} (1 - p_j t) dt over 0..1."""
    heads = [math.exp(-rate * (max(SCORES) - score)) for score in SCORES]
    return [
        one
        * math.prod(
            (Polynomial([1, -p]) for j, p in enumerate(heads) if j != i), start=Polynomial([1])
        ).integ()(1)
        for i, one in enumerate(heads)
    ]


def test_the_choice_is_permute_and_flip_at_the_full_rate() -> None:
    steps = np.array([round(score * GRID) for score in SCORES], dtype=np.int64)
    allowed = permit()
    chosen = [Selection(RATE).choose(steps, allowed) for _ in range(DRAWS)]
    observed = np.bincount(chosen, minlength=len(SCORES))

    def p_value(rate: float) -> float:
        return float(stats.chisquare(observed, np.array(flips(rate)) * DRAWS).pvalue)

    assert p_value(0.5) > IMPOSSIBLE
    for wrong in (0.45, 0.55, 0.25):  # and the rate with a factor of 2
        assert p_value(wrong) < IMPOSSIBLE


def test_measured_counts_have_discrete_laplace_noise() -> None:
    counts = np.array([[3 * GRID, 0], [7 * GRID, 11]], dtype=np.int64)
    allowed = permit()
    noise = np.array([Measurement(RATE).measure(counts, allowed) - counts / GRID for _ in range(2500)])
    for cell in noise.reshape(-1, 4).T:
        assert stats.kstest(cell, stats.laplace(scale=2).cdf).pvalue > IMPOSSIBLE

    def p_value(scale: float) -> float:
        """Of the sum of the magnitudes, which are exponential."""
        below = stats.gamma(noise.size, scale=scale).cdf(np.abs(noise).sum())
        return float(2 * min(below, 1 - below))

    assert p_value(2.0) > IMPOSSIBLE
    for wrong in (1.8, 2.2, 4.0):
        assert p_value(wrong) < IMPOSSIBLE


def test_nothing_is_released_without_leave() -> None:
    counts = np.zeros(2, dtype=np.int64)
    for release in (Selection(RATE).choose, Measurement(RATE).measure):
        for refused in (Permit(1, 1.0), permit(0)):
            with pytest.raises(dpf.BudgetExceeded):
                release(counts, refused)


CASES = [
    (100, 0.2, 2, 0.7),
    (100, 10.0, 1, 0.97),
    (100, 1.0, 2, 0.99),
    (200, 0.1, 1, 0.5),
    (500, 0.5, 2, 0.9),
    (2000, 1.0, 1, 0.95),
]
TRIALS = 3000


def missed(units: int, epsilon: float, terms: int, accuracy: float, *, width: float = 1.0) -> int:
    """How often the interval does not hold the truth, in a simulation of the units and the noise."""
    random = np.random.default_rng(units)
    right = random.binomial(units, accuracy, TRIALS)
    noises = random.laplace(scale=1 / epsilon, size=(TRIALS, 2, terms)).sum(axis=2)
    misses = 0
    for count, (x, y) in zip(right, noises, strict=True):
        one = estimate(count + x, units - count + y, Noise(1 / epsilon, terms))
        low, high = (one.value + width * (end - one.value) for end in (one.low, one.high))
        misses += not low <= accuracy <= high
    return misses


@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_the_accuracy(case: tuple[int, float, int, float]) -> None:
    assert stats.binomtest(missed(*case), TRIALS, 0.05, alternative="greater").pvalue > IMPOSSIBLE


def test_control_narrower_intervals_do_not() -> None:
    assert (
        stats.binomtest(missed(*CASES[4], width=0.7), TRIALS, 0.05, alternative="greater").pvalue < IMPOSSIBLE
    )
