"""The noise of counts and of GoodRadius' score at p < 1e-9; scales that are wrong by 10 % are rejected."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpfewshot import _core
from dpfewshot.mechanisms import Draws, RowChange
from dpfewshot.mechanisms.adadpsyn import AdaDPSyn
from tests.support import inside
from tests.support.laws import IMPOSSIBLE

DRAWS = 20_000
SCALE = 8 * 2**15
ROWS = np.log(np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])).astype(np.float32)
CENTRE = _core.sum_of_probabilities(ROWS[:1])

Noise = NDArray[np.float64]


def count_noise() -> Noise:
    answers = [_core.noisy_count_within(ROWS, CENTRE, 0.3, SCALE) for _ in range(DRAWS)]
    return (np.array(answers) - 2 * _core.count_grid) / SCALE


def score_noise() -> Noise:
    distances = _core.Distances(ROWS)
    answers = [distances.noisy_scores((0.3, 0.15), 3, SCALE) for _ in range(DRAWS // 2)]
    return ((np.array(answers) - np.array([5, 5]) * _core.count_grid) / SCALE).ravel()


def p_value(noise: Noise) -> float:
    """The least of three: the shape, the variance, and whether neighbours are correlated."""
    variance = stats.chi2(len(noise)).cdf(float((noise**2).sum()))
    return min(
        float(stats.kstest(noise, "norm").pvalue),
        2 * min(variance, 1 - variance),
        float(stats.pearsonr(noise[:-1], noise[1:]).pvalue),
    )


def mean_noise() -> Noise:
    """Of AdaDPSyn, for a cluster of one answer: M·c + Σ clip(p - c) + noise over R, whose ball is kept."""
    rows, sigma, radius = np.repeat(ROWS[:1], 20, axis=0), 0.01, 0.3
    mechanism = AdaDPSyn(noise_margin=0.0, coverage_share=0.0)
    release = mechanism.start(Draws(0.1, 1, 1, 20, RowChange.ADDED), sigma)
    found = np.array([inside.refined_mean(release, rows, radius) for _ in range(4_000)])
    noise = (found - _core.sum_of_probabilities(rows)).astype(np.float64)
    return (noise / (mechanism.scaled(sigma).mean_multiplier * radius * _core.grid)).ravel()


@pytest.mark.parametrize("draw", [count_noise, score_noise, mean_noise])
def test_noise_is_normal_with_its_scale_and_no_other(draw: Callable[[], Noise]) -> None:
    noise = draw()
    assert p_value(noise) > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert p_value(noise * wrong) < IMPOSSIBLE


def test_the_two_questions_of_a_turn_have_noise_of_their_own() -> None:
    noise = score_noise().reshape(-1, 2)
    assert float(stats.pearsonr(noise[:, 0], noise[:, 1]).pvalue) > IMPOSSIBLE
    assert float(stats.pearsonr(noise[:, 0], noise[:, 0] + noise[:, 1]).pvalue) < IMPOSSIBLE
