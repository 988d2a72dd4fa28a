"""The discrete Laplace sampler: what it does with chosen bytes, and what it refuses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.exact.choice import discrete_laplace

HEADS, TAILS = b"\0" * 8, b"\xff" * 8
PLUS, MINUS = b"\0", b"\1"


def served(*answers: bytes) -> Callable[[int], bytes]:
    """These bytes, each to the question of its length; a further question fails."""
    left = list(answers)

    def source(count: int) -> bytes:
        answer = left.pop(0)
        assert len(answer) == count
        return answer

    return source


def test_a_draw_step_by_step() -> None:
    """Scale 5, rate 2/5: the rest 3 is refused once, 4 is kept; two wholes: ⌊(4 + 2·5)/2⌋ = 7."""
    rest_3, rest_4, beyond = bytes([3 << 5]), bytes([4 << 5]), bytes([6 << 5])
    source = served(beyond, rest_3, TAILS, rest_4, HEADS, HEADS, HEADS, TAILS, MINUS)
    assert discrete_laplace(2, 5, source) == -7


def test_minus_zero_begins_again() -> None:
    zero = (b"\0", HEADS, TAILS)
    assert discrete_laplace(1, 1, served(*zero, MINUS, *zero, MINUS, *zero, PLUS)) == 0


def test_minus_one_does_not() -> None:
    assert discrete_laplace(1, 1, served(b"\0", HEADS, HEADS, TAILS, MINUS)) == -1


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 60))
def test_the_floor_of_a_geometric_is_geometric(numerator: int, denominator: int, k: int) -> None:
    """P(Y ≥ k) = P(X ≥ k·s) = exp(-k·s/t), term by term as the algorithm has them."""
    scale = denominator
    rest = [math.exp(-u / scale) for u in range(scale)]
    wholes = k * numerator // scale
    first = sum(rest[k * numerator % scale :]) / sum(rest)
    above = math.exp(-wholes) * (1 - math.exp(-1)) * first + math.exp(-wholes - 1)
    assert above == pytest.approx(math.exp(-k * numerator / denominator), rel=1e-9)


@given(st.integers(0, 2**32), st.integers(1, 2**200), st.integers(1, 2**200))
def test_any_rate_and_the_same_bytes_give_the_same_draw(seed: int, numerator: int, denominator: int) -> None:
    draws = [discrete_laplace(numerator, denominator, random.Random(seed).randbytes) for _ in "ab"]
    assert draws[0] == draws[1]
    assert abs(draws[0]) <= 100 * denominator // numerator + 1


def test_huge_scales_are_integers_to_the_last_digit() -> None:
    draws = [discrete_laplace(1, 2**2000) for _ in range(40)]
    assert any(abs(draw) > 2**1990 for draw in draws)
    assert {draw & 1 for draw in draws} == {0, 1}
    assert {discrete_laplace(10**9, 1) for _ in range(20)} == {0}


def test_a_fraction_and_numpy_integers_serve() -> None:
    epsilon = Fraction(0.3)
    assert isinstance(discrete_laplace(epsilon.numerator, epsilon.denominator), int)
    assert type(discrete_laplace(np.int64(2**62), np.int64(2**62 + 1))) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 0), (-1, 2), (1, -2), (-1, -1)])
def test_a_rate_that_is_not_positive_is_refused(numerator: int, denominator: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        discrete_laplace(numerator, denominator)


@pytest.mark.parametrize(("numerator", "denominator"), [(0.5, 1), (1, 2.0), ("1", 2), (None, 1)])
def test_a_rate_that_is_no_fraction_is_refused(numerator: object, denominator: object) -> None:
    with pytest.raises(TypeError):
        discrete_laplace(numerator, denominator)  # type: ignore[arg-type]
