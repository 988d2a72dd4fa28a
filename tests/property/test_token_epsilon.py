"""End to end on small supports: the exact distributions of a token on neighbouring rows are within ε₀.

And not far within: worst-case rows come close to it, so that half the noise, or the rate for the other kind
of change, is caught.
"""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpfewshot.mechanisms import Draws, InvisibleInk, PrivatePrediction, ReportNoisyMax, RowChange
from tests.support.laws import release_law

Rows = NDArray[np.float32]

PUBLIC = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
MECHANISMS = [
    ReportNoisyMax(),
    PrivatePrediction(),
    PrivatePrediction(clip=None, temperature=1.3),
    InvisibleInk(temperature=0.8),
]
each = pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
both = pytest.mark.parametrize("row_change", RowChange)
entries = st.one_of(st.floats(width=32), st.floats(-30, 0, width=32), st.just(-math.inf))
one_row = npst.arrays(np.float32, 3, elements=entries)


def noise_multiplier_of(mechanism, epsilon: float) -> float:
    return (1 if isinstance(mechanism, ReportNoisyMax) else 2) / epsilon


def largest_loss(mechanism, row_change: RowChange, epsilon: float, pair: tuple[Rows, Rows]) -> float:
    """The largest |log ratio| of a token's probabilities."""
    sigma = noise_multiplier_of(mechanism, epsilon)
    release = mechanism.start(Draws(1.0, 1, 1, 7, row_change), sigma)
    with mpmath.workdps(60):
        one, other = (release_law(mechanism.name, release, rows, PUBLIC) for rows in pair)
        return float(max(abs(mpmath.log(p / q)) for p, q in zip(one, other, strict=True)))


def neighbours(row_change: RowChange, rows: Rows, row: Rows, other: Rows) -> tuple[Rows, Rows]:
    """With a row more, or with one row in the place of another."""
    replaced = rows if row_change is RowChange.ADDED else np.vstack([rows, other])
    return np.vstack([rows, row]), replaced


@each
@both
@given(
    npst.arrays(np.float32, st.tuples(st.integers(0, 9), st.just(3)), elements=entries),
    st.tuples(one_row, one_row),
    st.floats(0.01, 20),
)
def test_no_token_says_more_than_epsilon(
    mechanism, row_change: RowChange, rows: Rows, change: tuple[Rows, Rows], epsilon: float
) -> None:
    pair = neighbours(row_change, rows, *change)
    assert largest_loss(mechanism, row_change, epsilon, pair) <= epsilon * (1 + 1e-12)


def worst_case(row_change: RowChange) -> tuple[Rows, Rows]:
    """Sixty rows are certain of one token; one more is there for another, or turns from the first to it."""
    certain = np.where(np.eye(3, dtype=bool), np.float32(1e6), np.float32(-1e6))
    return neighbours(row_change, np.tile(certain[0], (60, 1)), certain[1], certain[0])


@each
@both
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_worst_case_comes_close_and_half_the_noise_is_caught(
    mechanism, row_change: RowChange, epsilon: float
) -> None:
    pair = worst_case(row_change)
    assert 0.99 * epsilon <= largest_loss(mechanism, row_change, epsilon, pair) <= epsilon * (1 + 1e-12)
    assert largest_loss(mechanism, row_change, 2 * epsilon, pair) > 1.9 * epsilon


@each
def test_control_the_monotone_rate_is_not_enough_for_replaced_rows(mechanism) -> None:
    epsilon = 1.0
    assert largest_loss(mechanism, RowChange.ADDED, epsilon, worst_case(RowChange.REPLACED)) > 1.9 * epsilon
    assert largest_loss(mechanism, RowChange.REPLACED, epsilon, worst_case(RowChange.ADDED)) < 0.6 * epsilon
