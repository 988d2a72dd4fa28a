"""The vocabulary of events: what they refuse, what they keep, and queries that combine."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.accounting import (
    Composition,
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Relation,
    Tightest,
    ZeroConcentrated,
    combined_multiplier,
    epsilon,
)
from dpfewshot.accounting.events import LEAST, common_factor
from dpfewshot.errors import InvalidPlan

GAUSSIAN, RESPONSE = PoissonGaussian(0.01, 0.8, 60), PoissonRandomizedResponse(0.02, 1.5, 40)
CONCENTRATED, FIXED = ZeroConcentrated(0.002, 20), FixedSizeGaussian(10, 100, 1.0, 5)
ONE = PoissonGaussian(1.0, 2.0, 1)


@pytest.mark.parametrize(
    "event",
    [
        PoissonGaussian(0.1, 1.0, 3.0),
        PoissonRandomizedResponse(0.1, 0.5, np.int64(3)),
        FixedSizeGaussian(3.0, np.float64(30.0), 1.0, 3),
        ZeroConcentrated(0.1, 3.0),
        PoissonProduct(0.1, (PoissonGaussian(1.0, 1.0, 2.0), PoissonGaussian(1.0, 1.0, 1)), 3.0),
    ],
)
def test_a_whole_number_becomes_an_integer(event: Event) -> None:
    counts = [getattr(event, name, 1) for name in ("steps", "sample_size", "population")]
    assert {type(count) for count in counts} == {int}
    assert epsilon(event, 1e-6).upper > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PoissonGaussian("0.1", 1.0, 1), "sampling_rate must be a number"),
        (lambda: PoissonGaussian(None, 1.0, 1), "sampling_rate must be a number"),
        (lambda: PoissonGaussian(0.1, "1", 1), "noise multiplier must be a number"),
        *((lambda n=n: PoissonGaussian(0.1, n, 1), "noise mult") for n in (0.0, 2**-7, 2**21, math.inf)),
        *((lambda n=n: FixedSizeGaussian(1, 10, n, 1), "noise multiplier") for n in (2**-7, 2**21, math.nan)),
        *((lambda n=n: PoissonGaussian(0.1, 1.0, n), "whole number") for n in ("1", True, 0, 1.5, math.nan)),
        (lambda: PoissonRandomizedResponse(0.0, 1.0, 1), "sampling_rate"),
        (lambda: PoissonGaussian(5e-324, 1.0, 1), "sampling_rate must lie between 1e-30 and 1, not 5e-324"),
        (lambda: PoissonBoundedRange(0.1, 1e-300, 1), "epsilon must lie between 1e-30 and 200, not 1e-300"),
        (lambda: PoissonRandomizedResponse(1.0, 1e-160, 2), "epsilon must lie between 1e-30 and 1e.06"),
        (lambda: PoissonRandomizedResponse(0.1, [], 1), "epsilon must be a number"),
        (lambda: PoissonRandomizedResponse(0.1, 0.0, 1), "epsilon"),
        (lambda: PoissonRandomizedResponse(0.1, math.inf, 1), "epsilon"),
        (lambda: PoissonRandomizedResponse(0.1, 1.0, 0), "steps"),
        (lambda: PoissonBoundedRange(0.0, 1, 1), "sampling_rate"),
        (lambda: PoissonBoundedRange(1.1, 1, 1), "sampling_rate"),
        (lambda: PoissonBoundedRange(0.5, 0, 1), "epsilon"),
        (lambda: PoissonBoundedRange(0.5, 201, 1), "epsilon"),
        (lambda: PoissonBoundedRange(0.5, 1, 0), "steps"),
        (lambda: ZeroConcentrated("0.1", 1), "rho must be a number"),
        (lambda: ZeroConcentrated(-1.0, 1), "rho"),
        (lambda: ZeroConcentrated(1.0, 0), "steps"),
        (lambda: FixedSizeGaussian(0, 10, 1.0, 1), "sample_size"),
        (lambda: FixedSizeGaussian(11, 10, 1.0, 1), "sample_size"),
        (lambda: FixedSizeGaussian(1, "9", 1.0, 1), "population must be a whole number"),
        (lambda: PoissonProduct(0.1, None, 1), "queries must be several events, not NoneType"),
        (lambda: PoissonProduct(0.1, (None,), 1), "a product needs"),
        (lambda: PoissonProduct(0.1, (), 1), "a product needs"),
        (lambda: PoissonProduct(0.1, (Composition((ONE,)),), 1), "a product needs"),
        (lambda: PoissonProduct(0.1, (PoissonGaussian(1.0, 1.0, 10**12),), 1), "at most 1,000,000 queries"),
        (lambda: PoissonProduct(0.0, (ONE,), 1), "sampling_rate"),
        (lambda: PoissonProduct(0.1, (ONE,), 0), "steps"),
        (lambda: PoissonProduct(0.1, (PoissonGaussian(0.5, 1.0, 1),), 1), "sampling_rate 1"),
        (lambda: PoissonProduct(0.1, (PoissonGaussian(1.0, 2.0**-6, 2),), 1), "noise multiplier"),
        (lambda: PoissonProduct(0.1, (PoissonRandomizedResponse(1.0, 1e6, 2),), 1), "epsilon"),
        (lambda: Composition(3), "events must be several events, not int"),
        (lambda: Composition(()), "at least one"),
        (lambda: Tightest(()), "at least one"),
        (lambda: Tightest((3,)), "events alone"),
        (lambda: Composition((GAUSSIAN, FIXED)), "neighbours"),
        (lambda: Composition((FIXED, Composition((CONCENTRATED,)))), "neighbours"),
        (lambda: Tightest((CONCENTRATED, FIXED)), "different neighbours"),
        (lambda: combined_multiplier([]), "no query"),
        *((lambda n=n: common_factor([1.0, n], 1.0), "positive") for n in (0.0, -1.0, math.nan)),
    ],
)
def test_a_value_of_another_type_or_outside_its_range_is_refused(
    make: Callable[[], object], says: str
) -> None:
    with pytest.raises(InvalidPlan, match=says):
        make()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("q", [LEAST, 0.1, 1.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-18, 0.1])
def test_the_least_rate_and_cost_have_a_price(q: float, delta: float) -> None:
    response, within = PoissonRandomizedResponse(1.0, LEAST, 2), PoissonBoundedRange(1.0, LEAST, 3)
    for event in (
        PoissonRandomizedResponse(q, LEAST, 10),
        PoissonBoundedRange(q, LEAST, 10),
        PoissonProduct(q, (response,), 10),
        PoissonProduct(q, (response, within, ONE), 10),
        PoissonProduct(q, (PoissonRandomizedResponse(1.0, 8.0, 10),), 10),
        PoissonRandomizedResponse(q, 1e6, 10),
        PoissonGaussian(q, 2.0**-6, 10),
    ):
        bounds = epsilon(event, delta)
        assert 0 <= bounds.lower <= bounds.upper  # infinite where a loss is lost in round-off


def test_relations_are_those_that_every_event_covers() -> None:
    either = {Relation.ADD_REMOVE, Relation.ZERO_OUT}
    assert FIXED.relations == {Relation.REPLACE_ONE}
    assert Composition((GAUSSIAN, RESPONSE, CONCENTRATED)).relations == either
    assert Tightest((RESPONSE, CONCENTRATED)).relations == either
    assert Composition((GAUSSIAN, RESPONSE)).steps == 100
    assert Tightest((GAUSSIAN, RESPONSE)).steps == 40


def test_unknown_events_and_descriptions_in_a_composition_have_no_price() -> None:
    class Unknown:
        steps = 1

    event: Event = Unknown()
    with pytest.raises(InvalidPlan, match="Unknown"):
        epsilon(event, 1e-5)
    alone = Tightest((CONCENTRATED,))
    with pytest.raises(InvalidPlan, match="part of a composition"):
        epsilon(Composition((alone, alone)), 1e-5)


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


def test_queries_on_one_draw_combine() -> None:
    assert combined_multiplier([3.0, 4.0]) == pytest.approx(2.4)
