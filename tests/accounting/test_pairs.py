"""Several queries on one draw: known answers, order, and exact sums over all outcomes of small mechanisms."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpfewshot.accounting import (
    Composition,
    Event,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    calibrate,
    delta,
    epsilon,
)
from dpfewshot.accounting.bounds import epsilon_upper
from dpfewshot.accounting.events import Query
from dpfewshot.accounting.pairs import dominating_pairs

GRID = 1e-3  # relative, by which another grid may change a result
GAUSSIAN = PoissonGaussian(1.0, 2.0, 1)
RESPONSE = PoissonRandomizedResponse(1.0, 0.4, 3)
RANGE = PoissonBoundedRange(1.0, 0.6, 2)
QUERIES = st.sampled_from(
    [(GAUSSIAN, RESPONSE), (RESPONSE,), (RANGE,), (RANGE, RESPONSE), (GAUSSIAN, RANGE, RESPONSE)]
)
RATES = st.floats(1e-4, 1.0)


@pytest.mark.parametrize(
    "query", [GAUSSIAN, PoissonRandomizedResponse(1.0, 0.4, 1), PoissonBoundedRange(1.0, 0.6, 1)]
)
def test_one_query_is_the_event_itself(query: Query) -> None:
    alone = replace(query, sampling_rate=0.05, steps=7)
    assert epsilon(PoissonProduct(0.05, (query,), 7), 1e-6) == epsilon(alone, 1e-6)


def test_gaussians_are_one_gaussian() -> None:
    four = PoissonProduct(0.05, (PoissonGaussian(1.0, 2.0, 4),), 7)
    apart = PoissonProduct(0.05, (PoissonGaussian(1.0, 2.0, 1), PoissonGaussian(1.0, 2.0, 3)), 7)
    together = epsilon(PoissonGaussian(0.05, 1.0, 7), 1e-6)
    assert epsilon(four, 1e-6) == epsilon(apart, 1e-6)
    assert epsilon(four, 1e-6).upper == pytest.approx(together.upper, rel=1e-9)


@pytest.mark.parametrize("queries", [(GAUSSIAN, RESPONSE), (RANGE,), (RESPONSE, RANGE)])
def test_where_every_unit_is_drawn_it_is_a_composition(queries: tuple[Query, ...]) -> None:
    several = tuple(replace(each, steps=5 * each.steps) for each in queries)
    everybody = PoissonProduct(1.0, queries, 5)
    assert epsilon(everybody, 1e-5) == epsilon(Composition(several), 1e-5)
    nearly = PoissonProduct(1 - 1e-9, queries, 5)
    assert epsilon(nearly, 1e-5).upper == pytest.approx(epsilon(everybody, 1e-5).upper, rel=GRID)


def outcomes(costs: list[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The probabilities of all outcomes of randomised responses, with the unit and without it."""
    with_unit = np.array([1.0])
    without = np.array([1.0])
    for cost in costs:
        likely = 1 / (1 + math.exp(-cost))
        with_unit = np.concatenate([with_unit * likely, with_unit * (1 - likely)])
        without = np.concatenate([without * (1 - likely), without * likely])
    return with_unit, without


def exact_delta(costs: list[float], q: float, steps: int, at: float) -> float:
    """The larger hockey-stick divergence of both directions, over all sequences of outcomes."""
    unit, rest = outcomes(costs)
    mixed = q * unit + (1 - q) * rest
    p, without = np.array([1.0]), np.array([1.0])
    for _ in range(steps):
        p, without = np.multiply.outer(p, mixed).ravel(), np.multiply.outer(without, rest).ravel()
    removed = np.maximum(p - math.exp(at) * without, 0.0).sum()
    added = np.maximum(without - math.exp(at) * p, 0.0).sum()
    return float(max(removed, added))


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.02, 3.0), min_size=1, max_size=4),
    st.floats(1e-3, 1.0),
    st.integers(1, 3),
    st.sampled_from([1e-2, 1e-4, 1e-7]),
)
def test_all_outcomes_of_small_mechanisms(costs: list[float], q: float, steps: int, allowed: float) -> None:
    queries = tuple(PoissonRandomizedResponse(1.0, cost, 1) for cost in costs)
    found = epsilon(PoissonProduct(q, queries, steps), allowed)
    assert exact_delta(costs, q, steps, found.upper) <= allowed * (1 + 1e-9)
    assert found.lower == 0 or exact_delta(costs, q, steps, found.lower) >= allowed * (1 - 1e-9)


def test_control_the_sum_of_outcomes_catches_a_query_that_is_forgotten_and_factors_sampled_apart() -> None:
    costs, q, allowed = [1.0, 1.0, 1.0], 0.1, 1e-4
    forgotten = epsilon(PoissonProduct(q, (PoissonRandomizedResponse(1.0, 1.0, 2),), 1), allowed).upper
    apart = epsilon(PoissonRandomizedResponse(q, 1.0, 3), allowed).upper
    for wrong in (forgotten, apart):
        assert exact_delta(costs, q, 1, wrong) > 1.5 * allowed


def test_a_draw_of_softmax_tokens_costs_less_than_the_sum_of_their_ranges() -> None:
    """The figures that asked for products: 40 tokens, four to a draw of a twentieth, ε = 1."""

    def product(sigma: float) -> Event:
        return PoissonProduct(0.05, (PoissonBoundedRange(1.0, 1 / sigma, 4),), 10)

    def block(sigma: float) -> Event:
        return PoissonRandomizedResponse(0.05, 4 / sigma, 10)

    costs = [1 / calibrate(event, epsilon=1.0, delta=1e-5) for event in (block, product)]
    assert costs == [pytest.approx(0.345, abs=1e-3), pytest.approx(0.795, abs=1e-3)]


def test_sampling_the_factors_apart_is_no_bound() -> None:
    apart = Composition((PoissonGaussian(0.05, 2.0, 10), PoissonRandomizedResponse(0.05, 0.4, 30)))
    assert epsilon(PoissonProduct(0.05, (GAUSSIAN, RESPONSE), 10), 1e-5).lower > epsilon(apart, 1e-5).upper


@settings(max_examples=40)
@given(QUERIES, RATES, st.integers(1, 50), st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_more_of_anything_costs_more(
    queries: tuple[Query, ...], q: float, steps: int, allowed: float
) -> None:
    found = epsilon(PoissonProduct(q, queries, steps), allowed)
    assert 0 <= found.lower <= found.upper
    for more in (
        PoissonProduct(min(1.3 * q, 1.0), queries, steps),
        PoissonProduct(q, (*queries, PoissonRandomizedResponse(1.0, 0.1, 1)), steps),
        PoissonProduct(q, queries, steps + 1),
        PoissonProduct(1.0, queries, steps),
    ):
        assert epsilon_upper(more, allowed) >= found.upper * (1 - GRID)


@settings(max_examples=12)
@given(QUERIES, st.floats(1e-3, 0.999), st.integers(1, 20), st.floats(0.01, 2.0))
def test_delta_and_epsilon_invert_each_other(
    queries: tuple[Query, ...], q: float, steps: int, at: float
) -> None:
    event = PoissonProduct(q, queries, steps)
    found = delta(event, at)
    if 1e-12 < found.upper < 0.5:
        assert epsilon(event, found.upper).upper <= at * (1 + GRID) + 1e-9
        assert epsilon(event, found.upper).lower <= at


@settings(max_examples=40)
@given(QUERIES, st.floats(1e-6, 0.999999))
def test_curves_are_those_of_pairs_and_enclose_each_other(queries: tuple[Query, ...], q: float) -> None:
    event, at = PoissonProduct(q, queries, 1), np.linspace(-8.0, 8.0, 801)
    for upper, lower in zip(dominating_pairs(event), dominating_pairs(event, lower=True), strict=True):
        high, low = upper.curve(at), lower.curve(at)
        for each in (high, low):
            slope = np.diff(each.values) / np.diff(np.exp(at))
            assert np.all(np.diff(slope) >= -1e-9 * (np.abs(slope[1:]) + 1e-9)), "convex in e^ε"
            assert np.all(slope <= 1e-12)
            assert np.all(each.values >= -np.expm1(np.minimum(at, 0.0)) - each.errors - 1e-15)
            assert np.all(each.values <= 1 + 1e-12)
        assert np.all(low.values - low.errors <= high.values + high.errors)


@pytest.mark.parametrize("q", [1e-6, 0.05, 0.999])
@pytest.mark.parametrize("costs", [[0.5], [0.5, 0.5], [2.0, 0.3, 0.3], [8.0, 0.01]])
def test_curves_enclose_the_exact_one_at_every_point(costs: list[float], q: float) -> None:
    unit, rest = outcomes(costs)
    mixed = q * unit + (1 - q) * rest
    at = np.linspace(-12.0, 12.0, 1201)
    event = PoissonProduct(q, tuple(PoissonRandomizedResponse(1.0, cost, 1) for cost in costs), 1)
    sides = ((mixed, rest), (rest, mixed))
    for (p, without), upper, lower in zip(
        sides, dominating_pairs(event), dominating_pairs(event, lower=True), strict=True
    ):
        exact = np.maximum(p - np.exp(at)[:, None] * without, 0.0).sum(axis=1)
        high, low = upper.curve(at), lower.curve(at)
        rounding = 1e-15 * (1 + np.exp(at))
        assert np.all(high.values + high.errors >= exact - rounding)
        assert np.all(low.values - low.errors <= exact + rounding)
        assert np.all(high.values[5:] <= exact[:-5] + 1e-9), "and it is close"


def test_the_largest_and_the_smallest_queries_have_a_price() -> None:
    most = PoissonProduct(0.5, (PoissonRandomizedResponse(1.0, 9e5, 1), PoissonBoundedRange(1.0, 1e-9, 1)), 2)
    assert 0 < epsilon_upper(most, 1e-5) <= 2.1e6
    least = PoissonProduct(1e-9, (PoissonGaussian(1.0, 2.0**20, 1), PoissonBoundedRange(1.0, 1e-9, 3)), 2)
    assert epsilon_upper(least, 1e-12) < 1e-6
    assert all(epsilon_upper(PoissonProduct(q, (RANGE, RESPONSE), 3), 1e-5) > 0 for q in (0.01, 1 - 1e-12))


def test_queries_count_in_any_order() -> None:
    orders = itertools.permutations((GAUSSIAN, RANGE, RESPONSE))
    costs = [epsilon_upper(PoissonProduct(0.05, queries, 7), 1e-6) for queries in orders]
    assert costs == pytest.approx([costs[0]] * 6, rel=1e-6)
