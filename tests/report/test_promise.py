"""What the report says of (ε, δ), against the worst mechanism that there is for it."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.report.promise import Promise, factor_text
from dpfewshot.values import Relation, believed, percent_text

BUDGETS = [(0.0, 0.0), (0.5, 1e-5), (1.0, 0.01), (4.0, 1e-5), (8.0, 0.3), (60.0, 0.0)]


def worst(epsilon: float, delta: float) -> dict[str, tuple[float, float]]:
    """Kairouz, Oh and Viswanath's: the truth with probability δ, else randomised response. (P, P')."""
    right, wrong = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    return {
        "it is D": (delta, 0.0),
        "D, perhaps": ((1 - delta) * right, (1 - delta) * wrong),
        "D', perhaps": ((1 - delta) * wrong, (1 - delta) * right),
        "it is D'": (0.0, delta),
    }


def best_detection(epsilon: float, delta: float, false_alarms: float) -> float:
    """Neyman and Pearson: accuse on the likeliest answers first, on the last one by a coin."""
    left, found = false_alarms, 0.0
    for p, q in worst(epsilon, delta).values():
        share = 1.0 if q <= left else left / q
        found, left = found + share * p, left - share * q
        if share < 1:
            break
    return found


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("false_alarms", [0.0, 1e-6, 1e-3, 0.01, 0.1, 0.5, 0.99])
def test_detection_is_what_the_worst_mechanism_gives(epsilon, delta, false_alarms) -> None:
    bound = Promise(epsilon, delta, Relation.ZERO_OUT, None, "all").detection(false_alarms)
    assert bound == pytest.approx(best_detection(epsilon, delta, false_alarms), abs=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_best_guess_is_what_the_worst_mechanism_gives(epsilon, delta) -> None:
    promise = Promise(epsilon, delta, Relation.ZERO_OUT, None, "all")
    right = sum(max(pair) for pair in worst(epsilon, delta).values()) / 2
    assert promise.best_guess == pytest.approx(right)
    corner = (1 - delta) / (1 + promise.odds_factor)  # the false alarms of the best guesser
    assert promise.detection(corner) == pytest.approx(promise.best_guess)


def test_beliefs_follow_bayes_for_the_uncertain_answer() -> None:
    for prior in (1e-6, 0.1, 0.5):
        p, q = worst(4.0, 1e-5)["D, perhaps"]
        assert believed(prior, 4.0) == pytest.approx(p * prior / (p * prior + q * (1 - prior)))
    assert believed(0.25, 0.0) == 0.25


def test_an_epsilon_beyond_all_bounds_says_nothing_and_does_not_fail() -> None:
    promise = Promise(1e6, 1.0, Relation.ZERO_OUT, None, "all")
    assert promise.detection(0.0) == 1
    assert percent_text(promise.best_guess) == "100 %"
    assert factor_text(promise.odds_factor) == "more than a billion"


@given(st.floats(0, 1))
def test_percentages_are_rounded_up(share: float) -> None:
    printed = Decimal(percent_text(share).removesuffix(" %"))
    assert Decimal(repr(share)) * 100 <= printed <= 100
    assert printed - Decimal(repr(share)) * 100 <= Decimal("0.1")


@given(st.floats(1, 1e9))
def test_factors_are_rounded_up(factor: float) -> None:
    printed = float(factor_text(factor).replace(",", ""))
    assert factor <= printed <= factor * 1.01
