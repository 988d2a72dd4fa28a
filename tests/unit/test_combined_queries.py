from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.accounting.events import (
    RADIUS_QUERIES,
    adadpsyn_multiplier,
    adadpsyn_queries,
    combined_multiplier,
    common_factor,
)
from dpfewshot.errors import InvalidPlan

multipliers = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@given(multipliers, st.floats(1e-3, 1e6))
@settings(max_examples=300)
def test_the_common_factor_reaches_its_target_exactly_and_no_further(
    asked: list[float], target: float
) -> None:
    factor = common_factor(asked, target)
    squares = sum(Fraction(factor * multiplier) ** -2 for multiplier in asked)
    assert squares <= Fraction(target) ** -2
    assert float(squares * Fraction(target) ** 2) == pytest.approx(1, abs=1e-12)


@given(multipliers)
def test_a_combination_is_never_rounded_up(asked: list[float]) -> None:
    exact = sum(Fraction(multiplier) ** -2 for multiplier in asked)
    assert Fraction(combined_multiplier(asked)) ** 2 * exact <= 1


def test_a_step_of_adadpsyn_asks_as_often_as_the_paper_counts() -> None:
    queries = adadpsyn_queries(radius_multiplier=10, mean_multiplier=1, coverage_multiplier=3, rounds=2)
    assert [queries.count(multiplier) for multiplier in (10, 3, 1)] == [RADIUS_QUERIES, 2, 3]
    wanted = (6 / 10**2 + 2 / 3**2 + 3) ** -0.5
    assert adadpsyn_multiplier(
        radius_multiplier=10, mean_multiplier=1, coverage_multiplier=3, rounds=2
    ) == pytest.approx(wanted)


@pytest.mark.parametrize("asked", [[], [0.0], [1.0, -1.0], [float("nan")]])
def test_queries_without_noise_are_refused(asked: list[float]) -> None:
    with pytest.raises(InvalidPlan):
        common_factor(asked, 1.0)


def test_queries_on_one_draw_combine() -> None:
    assert combined_multiplier([3.0, 4.0]) == pytest.approx(2.4)
    assert combined_multiplier([2.0]) <= 2.0
    found = adadpsyn_multiplier(radius_multiplier=10, mean_multiplier=1.23, coverage_multiplier=3, rounds=1)
    assert found == pytest.approx(0.81839, abs=5e-6)
