"""Exact choices against their exact probabilities at p < 1e-9, and controls that must be rejected."""

import math
import os
from functools import partial

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy import integrate, stats

from dpfewshot import _core
from dpfewshot.exact import choice as exact_choice

IMPOSSIBLE = 1e-9
DRAWS = 60_000
SCORES = np.array([0, -40, -3, -100, -3, -150, -20, -1, -60, -300])
RATE = (1, 50)


def softmax(scores: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
    weights = np.exp((scores - scores.max()) * rate)
    return weights / weights.sum()


def noisy_max(scores: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
    """P(i wins) = p_i ∫ Π_{j≠i} (1 - p_j t) dt over 0..1: i shows heads, and no other head is before it."""
    heads = np.exp((scores - scores.max()) * rate)
    wins = []
    for i, head in enumerate(heads):
        others = math.prod(
            (Polynomial([1, -p]) for j, p in enumerate(heads) if j != i), start=Polynomial([1])
        )
        wins.append(head * others.integ()(1))
    return np.array(wins)


def p_value(draws, probabilities: NDArray[np.float64]) -> float:
    observed = np.bincount(draws, minlength=len(probabilities))
    return float(stats.chisquare(observed, probabilities / probabilities.sum() * len(draws)).pvalue)


def draw(choose, count: int = DRAWS) -> list[int]:
    return [choose(SCORES, *RATE) for _ in range(count)]


CHOICES = [(_core.permute_and_flip, noisy_max), (_core.sample_softmax, softmax)]


def test_noisy_max_is_the_largest_of_scores_plus_exponential_noise() -> None:
    """The equivalence that Ding et al. (2021) prove, in numbers: both formulas agree."""
    rate = RATE[0] / RATE[1]

    def density(x: float, i: int) -> float:
        below = [-math.expm1(-rate * (x - s)) for j, s in enumerate(SCORES) if j != i]
        return rate * math.exp(-rate * (x - SCORES[i])) * math.prod(below)

    wins = [integrate.quad(density, 0, math.inf, args=(i,), epsabs=1e-12)[0] for i in range(len(SCORES))]
    assert np.allclose(wins, noisy_max(SCORES, rate), atol=1e-9)
    assert sum(wins) == pytest.approx(1)


@pytest.mark.parametrize(("choose", "law"), CHOICES)
def test_choices_follow_their_law_and_no_other(choose, law) -> None:
    draws, rate = draw(choose), RATE[0] / RATE[1]
    assert p_value(draws, law(SCORES, rate)) > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert p_value(draws, law(SCORES, rate * wrong)) < IMPOSSIBLE
    other = softmax if law is noisy_max else noisy_max
    assert p_value(draws, other(SCORES, rate)) < IMPOSSIBLE


def test_control_the_first_head_in_a_fixed_order_is_rejected() -> None:
    heads = np.exp((SCORES - SCORES.max()) * RATE[0] / RATE[1])
    uniform = (_core.uniform_integers(2**53, DRAWS * len(SCORES)) + 0.5) / 2**53
    first = np.argmax(uniform.reshape(DRAWS, -1)[:, ::-1] < heads[::-1], axis=1)
    assert p_value(len(SCORES) - 1 - first, noisy_max(SCORES, RATE[0] / RATE[1])) < IMPOSSIBLE


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

    draws = draw(partial(lambda s, n, d: choose(s.tolist(), n, d, source, digits)), 4_000)
    assert p_value(draws, law(SCORES, RATE[0] / RATE[1])) > IMPOSSIBLE
    if digits <= 8:
        assert sum(count == 8 for count in asked) > 10  # a further word of digits


def test_many_candidates() -> None:
    """A sharp peak over a long tail, in groups."""
    width, count = 20_000, 4_000
    scores = -np.minimum(np.arange(width), 5_000)
    groups = np.searchsorted([1, 100, 300, 800, 5_000], np.arange(width), side="right")
    draws = groups[[_core.sample_softmax(scores, 1, 500) for _ in range(count)]]
    weights = softmax(scores, 1 / 500)
    assert p_value(draws, np.bincount(groups, weights)) > IMPOSSIBLE
    assert p_value(draws, np.bincount(groups, softmax(scores, 1.4 / 500))) < IMPOSSIBLE


def test_releases_follow_the_sums_they_are_made_of() -> None:
    rows = np.array([[0, -1, -2, -3], [-1, 0, -1, -9], [0, 0, -math.inf, -1]], dtype=np.float32)
    public = np.array([-1, -2, -1, -1.5], dtype=np.float32)
    count, grid, logits = 20_000, _core.grid, _core.logit_grid
    total = _core.sum_of_max_normalised(rows)
    draws = [_core.noisy_argmax_of_max_normalised(rows, 3, 2 * grid) for _ in range(count)]
    assert p_value(draws, noisy_max(total, 1.5 / grid)) > IMPOSSIBLE
    total = _core.sum_of_clipped_logits(rows, 1.5)
    draws = [_core.sample_of_clipped_logits(rows, 1.5, 1, 3 * logits) for _ in range(count)]
    assert p_value(draws, softmax(total, 1 / 3 / logits)) > IMPOSSIBLE
    total = _core.sum_of_clipped_differences(rows, public, 0.7) + (4 * public * logits).astype(np.int64)
    draws = [_core.sample_of_clipped_differences(rows, public, 0.7, 4, 1, 4 * logits) for _ in range(count)]
    assert p_value(draws, softmax(total, 1 / 4 / logits)) > IMPOSSIBLE
    assert p_value(draws, softmax(total, 1 / 3 / logits)) < IMPOSSIBLE
