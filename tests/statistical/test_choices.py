"""Exact choices, and tokens through permits, against their exact probabilities at p < 1e-9.

Controls, such as a rate that is 10 % off, must be rejected.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.exact import choice as exact_choice
from dpfewshot.mechanisms import Draws, InvisibleInk, PrivatePrediction, ReportNoisyMax, RowChange
from tests.support.laws import IMPOSSIBLE, noisy_max, p_value, release_law, softmax

DRAWS, TOKENS = 100_000, 40_000
SCORES = np.array([0, -40, -3, -100, -3, -150, -20, -1, -60, -300])
RATE = Fraction(1, 50)


def draw(choose, count: int = DRAWS) -> list[int]:
    return [choose(SCORES, *RATE.as_integer_ratio()) for _ in range(count)]


def fit(draws: Sequence[int], law, rate: Fraction = RATE) -> float:
    return p_value(np.bincount(draws, minlength=len(SCORES)), law(SCORES, rate))


CHOICES = [(_core.permute_and_flip, noisy_max), (_core.sample_softmax, softmax)]


def test_noisy_max_is_the_largest_of_scores_plus_exponential_noise() -> None:
    """The equivalence that Ding et al. (2021) prove, in numbers: both formulas agree."""

    def density(x: float, i: int) -> float:
        below = [-math.expm1(-float(RATE) * (x - s)) for j, s in enumerate(SCORES) if j != i]
        return float(RATE) * math.exp(-float(RATE) * (x - SCORES[i])) * math.prod(below)

    wins = [integrate.quad(density, 0, math.inf, args=(i,), epsabs=1e-12)[0] for i in range(len(SCORES))]
    assert np.allclose(wins, [float(p) for p in noisy_max(SCORES, RATE)], atol=1e-9)
    assert sum(wins) == pytest.approx(1)


@pytest.mark.parametrize(("choose", "law"), CHOICES)
def test_choices_follow_their_law_and_no_other(choose, law) -> None:
    draws = draw(choose)
    assert fit(draws, law) > IMPOSSIBLE
    for wrong in (Fraction(9, 10), Fraction(11, 10)):
        assert fit(draws, law, RATE * wrong) < IMPOSSIBLE
    assert fit(draws, softmax if law is noisy_max else noisy_max) < IMPOSSIBLE


def test_control_the_first_head_in_a_fixed_order_is_rejected() -> None:
    heads = np.exp((SCORES - SCORES.max()) * float(RATE))
    uniform = (_core.uniform_integers(2**53, DRAWS * len(SCORES)) + 0.5) / 2**53
    first = np.argmax(uniform.reshape(DRAWS, -1)[:, ::-1] < heads[::-1], axis=1)
    assert fit(len(SCORES) - 1 - first, noisy_max) < IMPOSSIBLE


@pytest.mark.parametrize("digits", [1, 8, 16])
@pytest.mark.parametrize(
    ("choose", "law"), [(exact_choice.permute_and_flip, noisy_max), (exact_choice.sample_softmax, softmax)]
)
def test_twin_with_few_first_digits(choose, law, digits: int) -> None:
    """With few digits many decisions need more of them: the lazy path has the right law too."""
    asked: list[int] = []

    def source(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    draws = draw(lambda scores, n, d: choose(scores.tolist(), n, d, source, digits), 4_000)
    assert fit(draws, law) > IMPOSSIBLE
    if digits <= 8:
        assert sum(count == 8 for count in asked) > 10  # a further word of digits


def test_many_candidates() -> None:
    """A sharp peak over a long tail, in groups."""
    width, count = 20_000, 4_000
    scores = -np.minimum(np.arange(width), 5_000)
    groups = np.searchsorted([1, 100, 300, 800, 5_000], np.arange(width), side="right")
    observed = np.bincount(groups[[_core.sample_softmax(scores, 1, 500) for _ in range(count)]], minlength=6)
    assert p_value(observed, np.bincount(groups, np.exp(scores / 500)).tolist()) > IMPOSSIBLE
    assert p_value(observed, np.bincount(groups, np.exp(1.4 * scores / 500)).tolist()) < IMPOSSIBLE


ROWS = np.array(
    [[-0.2, -2, -3, -4], [-2, -0.3, -3, -2], [-0.1, -4, -3, -5], [-1, -1, -2, -2], [np.nan, 0, 0, 0]],
    dtype=np.float32,
)
PUBLIC = np.array([-1.5, -1, -5.3, -1.2], dtype=np.float32)
CASES = [
    (ReportNoisyMax(), 0.6),
    (PrivatePrediction(clip=3.0), 1.2),
    (PrivatePrediction(clip=None, temperature=1.3), 1.5),
    (InvisibleInk(temperature=0.9), 2.5),
]


@pytest.mark.parametrize(("mechanism", "sigma"), CASES, ids=repr)
def test_tokens_follow_their_law_and_no_other(mechanism, sigma: float) -> None:
    """At the release's own rate, which tests/property/test_rates.py holds to the change of a row."""
    draws = Draws(1.0, 1, TOKENS, 4, RowChange.ADDED)
    release, permit = mechanism.start(draws, sigma), Permit(TOKENS, sigma)
    tokens = [release.token(ROWS, PUBLIC, permit) for _ in range(TOKENS)]
    observed = np.bincount(tokens, minlength=4)

    def fits(rate: Fraction) -> bool:
        law = release_law(mechanism.name, replace(release, rate=rate), ROWS, PUBLIC)
        return p_value(observed, law) > IMPOSSIBLE

    assert fits(release.rate)
    assert not any(fits(release.rate * wrong) for wrong in (Fraction(9, 10), Fraction(11, 10)))
