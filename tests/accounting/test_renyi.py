"""Rényi divergences of events: upper bounds, compared with integrals and with other libraries."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from dpfewshot.accounting import (
    Composition,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.accounting.curves import FloatArray
from dpfewshot.accounting.events import Query
from dpfewshot.accounting.renyi import LARGEST_ORDER, renyi_divergence
from dpfewshot.errors import InvalidPlan

ORDERS = st.integers(2, 40)
RATES = st.sampled_from([1.0, 0.5, 0.1, 0.01])
CLOSE = 1e-9
"""Relative: what integrals and sums of logarithms may err by."""


def divergence(first: Sequence[float], second: Sequence[float], order: int) -> float:
    """D_α of two laws on finitely many outcomes, from the logarithms of their masses."""
    terms = order * np.asarray(first) - (order - 1) * np.asarray(second)
    return float(logsumexp(terms)) / (order - 1)


def mixed(without: Sequence[float], including: Sequence[float], rate: float) -> list[float]:
    """The logarithms of (1-q)·P + q·Q."""
    if rate == 1:
        return list(including)
    return list(np.logaddexp(math.log1p(-rate) + np.asarray(without), math.log(rate) + np.asarray(including)))


@pytest.mark.parametrize("rho", [0.1, 0.0123, 1 / 3])
def test_round_off_of_a_long_sum_is_covered(rho: float) -> None:
    plans = 100_000
    found = renyi_divergence(Composition((ZeroConcentrated(rho, 1),) * plans), 7)
    assert Fraction(found) >= plans * 7 * Fraction(rho)
    assert found == pytest.approx(plans * 7 * rho, rel=1e-13)


@pytest.mark.parametrize("order", [2, 6, 64, 1000])
def test_a_gaussian_plan_has_the_divergence_of_another_library(order: int) -> None:
    accountant = RdpAccountant([order])
    accountant.compose(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.5)), 40)
    theirs = float(accountant._rdp[0])  # noqa: SLF001 - it has no other way to it
    ours = renyi_divergence(PoissonGaussian(0.02, 1.5, 40), order)
    assert theirs * (1 - CLOSE) <= ours <= theirs * (1 + 1e-6)


@given(RATES, st.floats(1e-3, 20), st.integers(1, 100), ORDERS)
def test_randomised_response_has_the_larger_of_two_sums(
    rate: float, epsilon: float, steps: int, order: int
) -> None:
    answers = [-math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))]
    base, mixture = answers, mixed(answers, answers[::-1], rate)
    exact = max(divergence(base, mixture, order), divergence(mixture, base, order)) * steps
    found = renyi_divergence(PoissonRandomizedResponse(rate, epsilon, steps), order)
    assert exact * (1 - CLOSE) - 1e-12 <= found <= exact * (1 + CLOSE) + 1e-9 * steps


@given(
    RATES,
    st.floats(0.01, 8),
    ORDERS,
    st.lists(st.floats(-4, 4), min_size=2, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_no_softmax_of_bounded_range_diverges_more(
    rate: float, epsilon: float, order: int, scores: list[float], moves: list[float]
) -> None:
    low, high = min(moves[: len(scores)]), max(moves[: len(scores)])
    width = (high - low) or 1.0
    moved = [score + epsilon * (move - low) / width for score, move in zip(scores, moves, strict=False)]
    base = list(np.asarray(scores) - logsumexp(scores))
    mixture = mixed(base, list(np.asarray(moved) - logsumexp(moved)), rate)
    bound = renyi_divergence(PoissonBoundedRange(rate, epsilon, 1), order)
    assert max(divergence(base, mixture, order), divergence(mixture, base, order)) <= bound + 1e-12
    assert bound <= renyi_divergence(PoissonRandomizedResponse(rate, epsilon, 1), order) * (1 + 1e-3) + 1e-9


def self_reverse(losses: Sequence[float]) -> tuple[list[float], list[float]]:
    """The logarithms of A and B: outcomes in pairs with losses ±l, so that exchanging them swaps A and B."""
    masses = np.asarray([half for loss in losses for half in (loss / 2, -loss / 2)])
    return list(masses - logsumexp(masses)), list(-masses - logsumexp(-masses))


@given(RATES, st.lists(st.floats(0, 8), min_size=1, max_size=5), ORDERS)
def test_a_pair_that_is_its_own_reverse_diverges_least_where_the_unit_is_added(
    rate: float, losses: list[float], order: int
) -> None:
    including, without = self_reverse(losses)
    mixture = mixed(without, including, rate)
    removed, added = divergence(mixture, without, order), divergence(without, mixture, order)
    assert added <= removed * (1 + CLOSE) + 1e-12


def test_another_pair_may_diverge_most_where_the_unit_is_added() -> None:
    including, without = list(np.log([0.01, 0.99])), list(np.log([0.5, 0.5]))
    mixture = mixed(without, including, 0.9)
    assert divergence(without, mixture, 6) > 2 * divergence(mixture, without, 6)


def losses_of(query: Query) -> tuple[FloatArray, FloatArray]:
    """Losses of one answer, and their probabilities under B; densities by Gauss and Legendre."""
    if isinstance(query, PoissonRandomizedResponse):
        losses = np.array([-query.epsilon, query.epsilon])
        return losses, 1 / (1 + np.exp(losses))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    if isinstance(query, PoissonBoundedRange):
        losses = nodes * query.epsilon
        return losses, weights * query.epsilon * np.exp(-losses / 2) / (4 * math.sinh(query.epsilon / 2))
    spread = 1 / query.noise_multiplier
    points = nodes * 25 + 8 * spread
    density = np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi)
    return points * spread - spread**2 / 2, 25 * weights * density


def by_summing(rate: float, queries: Sequence[Query], order: int) -> tuple[float, float]:
    """D_α of the subsampled product, with the unit removed and added: a sum over all losses."""
    losses, masses = np.zeros(1), np.ones(1)
    for query in queries:
        more, beside = losses_of(query)
        losses = np.add.outer(losses, more).ravel()
        masses = np.multiply.outer(masses, beside).ravel()
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + losses) if rate < 1 else losses
    removed, added = (float(logsumexp(power * ratio, b=masses)) for power in (order, 1 - order))
    return removed / (order - 1), added / (order - 1)


RESPONSE, RANGE = PoissonRandomizedResponse(1.0, 0.4, 1), PoissonBoundedRange(1.0, 1.5, 1)
GAUSSIAN, NARROW, WIDE = (PoissonGaussian(1.0, noise, 1) for noise in (1.5, 0.7, 6.0))
PRODUCTS = [(GAUSSIAN, RANGE), (RANGE, RESPONSE, RESPONSE), (GAUSSIAN, GAUSSIAN, RESPONSE)]


@pytest.mark.parametrize(
    "queries", [(NARROW,), (WIDE,), (RESPONSE,), (RESPONSE,) * 6, (RANGE,), (RANGE, RANGE), *PRODUCTS]
)
@pytest.mark.parametrize("rate", [1.0, 0.9, 0.2, 0.01])
@pytest.mark.parametrize("order", [2, 6, 19])
def test_queries_on_one_draw_have_the_larger_of_two_sums(
    queries: tuple[Query, ...], rate: float, order: int
) -> None:
    removed, added = by_summing(rate, queries, order)
    found = renyi_divergence(PoissonProduct(rate, queries, 3), order)
    apart = 3 * sum(renyi_divergence(query, order) for query in queries)
    assert added <= removed * (1 + CLOSE)
    assert found == pytest.approx(min(3 * removed, apart), rel=1e-8)


def test_answers_to_one_query_are_steps_of_it() -> None:
    apart, together = ((RANGE,) * 4, (PoissonBoundedRange(1.0, RANGE.epsilon, 4),))
    one = renyi_divergence(PoissonProduct(0.05, together, 3), 6)
    assert one == pytest.approx(renyi_divergence(PoissonProduct(0.05, apart, 3), 6), rel=1e-9)
    assert one < renyi_divergence(PoissonRandomizedResponse(0.05, 4 * RANGE.epsilon, 3), 6)


def test_sampling_each_query_by_itself_would_count_too_little() -> None:
    removed, _ = by_summing(0.05, (RANGE, RANGE), 6)
    assert 2 * renyi_divergence(PoissonBoundedRange(0.05, RANGE.epsilon, 1), 6) < 0.5 * removed


def test_sampling_never_adds() -> None:
    """The pair of bounded range is the worst at each ε: close to q = 1 Lemma 1 of zCDP bounds all of it."""
    almost = renyi_divergence(PoissonProduct(0.9999, (PoissonBoundedRange(1.0, 0.5, 4),), 2), 6)
    assert almost == pytest.approx(8 * 6 * 0.5**2 / 8)


def test_the_largest_order_has_a_bound() -> None:
    mixed_queries = PoissonProduct(0.05, (PoissonGaussian(1.0, 3.0, 2), PoissonBoundedRange(1.0, 0.5, 4)), 10)
    pure = PoissonProduct(0.05, (PoissonBoundedRange(1.0, 0.5, 4),), 10)
    assert math.isfinite(renyi_divergence(mixed_queries, LARGEST_ORDER))
    assert renyi_divergence(pure, LARGEST_ORDER) <= 10 * 4 * 0.5


@given(st.floats(1e-4, 3), st.integers(1, 50), ORDERS)
def test_zcdp_is_linear_in_the_order(rho: float, steps: int, order: int) -> None:
    assert renyi_divergence(ZeroConcentrated(rho, steps), order) == pytest.approx(rho * steps * order)


def test_compositions_add_and_the_tightest_description_counts() -> None:
    gaussian, answers = PoissonGaussian(0.1, 2.0, 15), PoissonRandomizedResponse(0.1, 0.5, 3)
    one, two = (renyi_divergence(each, 6) for each in (gaussian, answers))
    assert renyi_divergence(Composition((gaussian, answers)), 6) == pytest.approx(one + two)
    assert renyi_divergence(Composition((gaussian, answers)), 6) >= one + two
    assert renyi_divergence(Tightest((gaussian, answers)), 6) == min(one, two)


def test_an_event_whose_losses_are_not_bounded_and_not_poisson_has_no_bound() -> None:
    fixed = FixedSizeGaussian(3, 100, 1.0, 15)
    assert renyi_divergence(fixed, 6) == math.inf
    assert renyi_divergence(Tightest((fixed, FixedSizeGaussian(3, 100, 2.0, 15))), 6) == math.inf


@pytest.mark.parametrize("order", [1, 0, LARGEST_ORDER + 1])
def test_an_order_outside_the_range_is_refused(order: int) -> None:
    with pytest.raises(InvalidPlan, match="order"):
        renyi_divergence(ZeroConcentrated(0.1, 1), order)
