"""The sparse vector: how often a test passes, and an audit of whole runs with worst-case neighbours.

Every row is certain, so that the distance is a whole number of rows. The audit's bound is Clopper-Pearson's,
wrong once in 10⁹; it counts runs that pass some tokens and then halt.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import Draws, ReportNoisyMax, RowChange, SparseVector, sparse_vector
from tests.support.laws import IMPOSSIBLE, measured_epsilon
from tests.support.sensitivity import certain

PROMPTS = 10
RUNS = 20_000
PASSES = 5
EPSILON = 2.5
PUBLIC = np.array([0, -np.inf], dtype=np.float32)
"""Certain of the first token, so that a test that passes releases 0."""


class Inner(ReportNoisyMax):
    """Says 1 where the test halts, whatever the rows are."""

    def start(self, draws, noise_multiplier, random_source=None):
        del draws, noise_multiplier, random_source
        return self

    def token(self, logprobs, public_logprobs, permit) -> int:
        del logprobs, public_logprobs, permit
        return 1


def draws(row_change: RowChange) -> Draws:
    return Draws(1.0, RUNS, PASSES + 1, PROMPTS, row_change)


def mechanism_of(row_change: RowChange) -> SparseVector:
    """Equal shares: a test costs 1/σ. The threshold is half of what a unit changes the distance by."""
    return SparseVector(Inner(), row_change.rows / 2 / PROMPTS, 1)


def passing_probability(offset: float, epsilon: float) -> float:
    """P(query noise - threshold noise < offset), in units of the sensitivity, at ε of a test."""
    scale = 2 / epsilon

    def density(t: float) -> float:
        return stats.laplace.pdf(t, scale=scale) * stats.laplace.cdf(offset + t, scale=2 * scale)

    return sum(integrate.quad(density, *ends)[0] for ends in ((-math.inf, 0), (0, math.inf)))


@pytest.mark.parametrize("row_change", RowChange)
def test_a_test_passes_as_often_as_its_noise_says_and_no_other(row_change: RowChange) -> None:
    count, epsilon, sensitivity = 12_000, 6.0, row_change.rows
    test = sparse_vector.AboveThreshold(
        2 * sensitivity * _core.grid, sparse_vector.threshold_rate(Fraction(epsilon), row_change), None
    )
    passed = 0
    for _ in range(count):
        test.begin()
        passed += test.passes(sensitivity * _core.grid)
    assert stats.binomtest(passed, count, passing_probability(1.0, epsilon)).pvalue > IMPOSSIBLE
    for wrong in (0.8, 1.25):
        assert stats.binomtest(passed, count, passing_probability(1.0, epsilon * wrong)).pvalue < IMPOSSIBLE


def rows_of(row_change: RowChange, halts: bool, unit: bool) -> NDArray[np.float32]:
    """The unit brings the distance to nothing where the run should pass, and away from it where it halts.

    Added: nine rows or ten agree with the public one, and the unit's does. Replaced: nine rows agree, and
    the unit's agrees in one data set and disagrees in the other.
    """
    if row_change is RowChange.ADDED:
        return certain(*[0] * (PROMPTS - 1 + halts + unit), width=2)
    return certain(*[0] * (PROMPTS - 1), int(halts == unit), width=2)


def count_hits(row_change: RowChange, sigma: float, unit: bool) -> int:
    """In how many runs the first tokens pass and the next one halts."""
    mechanism = mechanism_of(row_change)
    passing, halting = (rows_of(row_change, halts, unit) for halts in (False, True))
    hits = 0
    release = mechanism.start(draws(row_change), sigma)
    for _ in range(RUNS):
        permit = Permit(PASSES + 1, sigma)
        tokens = iter(lambda: release.token(passing, PUBLIC, permit), 1)  # noqa: B023 - used up at once
        passed = sum(1 for _, token in zip(range(PASSES), tokens, strict=False) if token == 0)
        hits += passed == PASSES and release.token(halting, PUBLIC, permit) == 1
    return hits


def fast_noise(seed: int) -> Iterator[float]:
    """Laplace draws in bulk: the exact ones have their own tests, and are too slow for an audit."""
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.laplace(size=10_000).tolist()


def measured(row_change: RowChange, sigma: float) -> float:
    return measured_epsilon(*(count_hits(row_change, sigma, unit) for unit in (True, False)), RUNS)


@pytest.mark.parametrize("row_change", RowChange)
def test_measured_epsilon_of_a_run_is_below_the_claim_and_half_the_noise_is_caught(
    row_change: RowChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = fast_noise(seed=20)
    monkeypatch.setattr(sparse_vector, "discrete_laplace", lambda n, d, _source: round(next(noise) * d / n))
    sigma = 1 / EPSILON
    claimed = mechanism_of(row_change).event(draws(row_change), sigma).events[1].epsilon
    assert claimed == pytest.approx(EPSILON)
    assert 0.4 * EPSILON < measured(row_change, sigma) < EPSILON
    assert measured(row_change, sigma / 2) > EPSILON
