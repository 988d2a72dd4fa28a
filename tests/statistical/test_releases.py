"""Tokens through permits against their exact probabilities at p < 1e-9; 10 % off in the rate is caught."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import (
    Draws,
    InvisibleInk,
    PrivatePrediction,
    ReportNoisyMax,
    RowChange,
    SoftmaxChoice,
)
from tests.support.laws import release_law

IMPOSSIBLE = 1e-9
DRAWS = 40_000

ROWS = np.array(
    [[-0.2, -2, -3, -4], [-2, -0.3, -3, -2], [-0.1, -4, -3, -5], [-1, -1, -2, -2], [np.nan, 0, 0, 0]],
    dtype=np.float32,
)
PUBLIC = np.array([-1.5, -1, -2, -1.2], dtype=np.float32)
CASES = [
    (ReportNoisyMax(), 0.6),
    (SoftmaxChoice(), 0.9),
    (PrivatePrediction(clip=3.0), 1.2),
    (PrivatePrediction(clip=None, temperature=1.3), 1.5),
    (InvisibleInk(temperature=0.9), 2.5),
]


def p_value(mechanism, release, observed: NDArray[np.int64]) -> float:
    law = np.array([float(p) for p in release_law(mechanism.name, release, ROWS, PUBLIC)])
    return float(stats.chisquare(observed, law / law.sum() * observed.sum()).pvalue)


@pytest.mark.parametrize("row_change", RowChange)
@pytest.mark.parametrize(("mechanism", "sigma"), CASES, ids=repr)
def test_tokens_follow_their_law_and_no_other(mechanism, sigma: float, row_change: RowChange) -> None:
    sigma /= 1 if row_change is RowChange.ADDED else 2
    release, permit = mechanism.start(Draws(1.0, 1, DRAWS, 4, row_change), sigma), Permit(DRAWS, sigma)
    tokens = [release.token(ROWS, PUBLIC, permit) for _ in range(DRAWS)]
    observed = np.bincount(tokens, minlength=4)
    assert p_value(mechanism, release, observed) > IMPOSSIBLE
    for wrong in (Fraction(9, 10), Fraction(11, 10)):
        assert p_value(mechanism, replace(release, rate=release.rate * wrong), observed) < IMPOSSIBLE
