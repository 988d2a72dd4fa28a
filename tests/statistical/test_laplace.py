"""Discrete Laplace draws against their exact law at p < 1e-9, and controls that must be rejected."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpfewshot import _core
from dpfewshot.exact.choice import discrete_laplace
from tests.support.laws import IMPOSSIBLE

DRAWS = 40_000


def small_p_value(draws: NDArray[np.int64], rate: float) -> float:
    """Chi-square over every integer that is likely enough, and the two tails."""
    p = math.exp(-rate)
    edge = max(1, math.floor(math.log(DRAWS / 50) / rate))
    inner = np.arange(-edge, edge + 1)
    tail = p ** (edge + 1) / (1 + p)
    cells = np.concatenate(([tail], (1 - p) / (1 + p) * p ** np.abs(inner), [tail]))
    assert sum(cells) == pytest.approx(1)
    observed = np.bincount(np.clip(draws, -edge - 1, edge + 1) + edge + 1, minlength=len(cells))
    return float(stats.chisquare(observed, cells * len(draws)).pvalue)


def large_p_value(draws: NDArray[np.float64]) -> float:
    """Chi-square over 40 cells of equal probability, for scales beside which an integer is nothing."""
    cells = np.floor(stats.laplace.cdf(draws) * 40).astype(np.int64)
    return float(stats.chisquare(np.bincount(cells, minlength=40)).pvalue)


@pytest.mark.parametrize("rate", [(1, 5), (3, 7), (1, 1), (9, 4), (2**70, 2**71 + 1)])
def test_small_scales(rate: tuple[int, int]) -> None:
    draws = np.array([discrete_laplace(*rate) for _ in range(DRAWS)])
    assert small_p_value(draws, rate[0] / rate[1]) > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert small_p_value(draws, rate[0] / rate[1] * wrong) < IMPOSSIBLE


def test_huge_scales() -> None:
    scale = 2**60
    draws = np.array([discrete_laplace(1, scale) for _ in range(DRAWS)]) / scale
    assert large_p_value(draws.astype(np.float64)) > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert large_p_value(draws.astype(np.float64) * wrong) < IMPOSSIBLE


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_control_a_rounded_continuous_laplace_is_rejected(rate: float) -> None:
    """P(0) is 1 - exp(-rate/2) there and tanh(rate/2) here."""
    uniform = (_core.uniform_integers(2**53, DRAWS) + 0.5) / 2**53
    rounded = np.rint(stats.laplace.ppf(uniform, scale=1 / rate)).astype(np.int64)
    assert small_p_value(rounded, rate) < IMPOSSIBLE


def test_control_zero_with_either_sign_is_rejected() -> None:
    """Without the rejection of minus zero, zero comes twice as often."""
    draws = np.array([discrete_laplace(1, 2) for _ in range(DRAWS)])
    zeros = int((draws == 0).sum())
    assert small_p_value(np.concatenate((draws, np.zeros(zeros, dtype=np.int64))), 0.5) < IMPOSSIBLE
