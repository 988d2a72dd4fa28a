"""Randomised response, draws of fixed size, zCDP and mixtures: exact sums, published figures, controls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.accounting import (
    Composition,
    Event,
    FixedSizeGaussian,
    PoissonGaussian,
    PoissonRandomizedResponse,
    Relation,
    Tightest,
    ZeroConcentrated,
    adadpsyn_multiplier,
    calibrate,
    combined_multiplier,
    delta,
    epsilon,
)
from dpfewshot.accounting.events import LEAST_NOISE, MOST_NOISE
from dpfewshot.accounting.pairs.gaussian import RemoveGaussian, ReplaceGaussian
from dpfewshot.accounting.pairs.registry import dominating_pairs
from dpfewshot.accounting.pld.discretise import discretise
from dpfewshot.accounting.reference.published import (
    fixed_size_renyi,
    fixed_size_renyi_epsilon,
    integer_order_epsilon,
)
from dpfewshot.errors import InvalidPlan

ADD_OR_REMOVE = {Relation.ADD_REMOVE, Relation.ZERO_OUT}
some = settings(max_examples=25, deadline=None)
rates = st.floats(-4, 0).map(lambda exponent: 10**exponent)


# ---- randomised response ---------------------------------------------------------------------------------


def binomial_delta(event: PoissonRandomizedResponse, at: float) -> float:
    """δ of the composed pair as a sum over how often the second outcome came, at 60 digits and more."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60 + int(event.epsilon)):
        q, growth = mpmath.mpf(event.sampling_rate), mpmath.exp(mpmath.mpf(at))
        second = 1 / (1 + mpmath.exp(mpmath.mpf(event.epsilon)))
        out, in_ = second, (1 - q) * second + q * (1 - second)
        steps = event.steps

        def weight(p: mpmath.mpf, k: int) -> mpmath.mpf:
            return mpmath.binomial(steps, k) * p**k * (1 - p) ** (steps - k)

        def excess(p: mpmath.mpf, r: mpmath.mpf) -> mpmath.mpf:
            return sum(max(weight(p, k) - growth * weight(r, k), 0) for k in range(steps + 1))

        return float(max(excess(in_, out), excess(out, in_)))


costs = st.floats(-2, 2.5).map(lambda exponent: 10**exponent)
deltas = st.floats(-11, -1).map(lambda exponent: 10**exponent)


@pytest.mark.slow
@given(rates, costs, st.integers(1, 60), deltas)
@some
def test_randomised_response_is_a_binomial_sum(q: float, cost: float, steps: int, delta_: float) -> None:
    event = PoissonRandomizedResponse(q, cost, steps)
    bounds = epsilon(event, delta_)
    if bounds.upper > 0:
        assert delta_ * (1 - 1e-5) <= binomial_delta(event, bounds.upper * (1 - 1e-6) - 1e-10)
        assert binomial_delta(event, bounds.upper) <= delta_ * (1 + 1e-12)
    else:
        assert binomial_delta(event, 0.0) <= delta_
    assert bounds.lower == 0 or binomial_delta(event, bounds.lower) >= delta_ * (1 - 1e-12)


@pytest.mark.parametrize(
    ("cost", "naive", "certified"),
    [(2.73, 0.9854, 0.2628), (3.34, 1.9853, 0.4046), (3.95, 3.9535, 0.6120), (4.57, 7.9419, 0.9559)],
)
def test_subsampling_the_pair_is_far_tighter_than_subsampling_the_cost(
    cost: float, naive: float, certified: float
) -> None:
    """Tang et al. 2024, Table 9, DBPedia with exponential noise."""
    steps, delta_ = 100, 1 / 40000
    amplified = PoissonRandomizedResponse(1.0, math.log1p(math.expm1(cost) / 500), steps)
    assert epsilon(amplified, delta_).upper == pytest.approx(naive, abs=6e-5)
    assert epsilon(PoissonRandomizedResponse(1 / 500, cost, steps), delta_).upper == pytest.approx(
        certified, abs=6e-5
    )


def test_a_pure_step_alone_costs_its_epsilon() -> None:
    assert epsilon(PoissonRandomizedResponse(1.0, 2.0, 1), 1e-12).upper == pytest.approx(2.0, abs=1e-9)
    assert delta(PoissonRandomizedResponse(1.0, 2.0, 1), 2.0).upper <= 1e-10


def test_control_one_direction_of_randomised_response_is_not_enough() -> None:
    event = PoissonRandomizedResponse(0.05, 1.0, 1)
    removed, added = (float(pair.curve(np.array([0.03])).values[0]) for pair in dominating_pairs(event))
    assert removed > added * 1.05
    assert binomial_delta(event, 0.03) == pytest.approx(removed, rel=1e-12)


# ---- draws of fixed size ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "sigma", "steps", "figure"),
    [
        (20, 30000, 0.51, 100, 0.9675),
        (20, 30000, 0.31, 100, 7.9851),
        (80, 40000, 0.36, 100, 7.6343),
        (80, 835, 1.36, 15, 1.0165),
        (80, 835, 0.51, 15, 8.3370),
        (80, 2953, 0.50, 80, 8.1853),
        (80, 1561, 1.52, 80, 1.1287),
    ],
)
def test_fixed_size_figures(m: int, n: int, sigma: float, steps: int, figure: float) -> None:
    """Computed once by another program, which composed the same symmetrised curve."""
    found = epsilon(FixedSizeGaussian(m, n, sigma, steps), 1 / n)
    assert figure - 6e-5 <= found.upper <= figure * 1.0002
    assert found.lower >= 0.98 * figure
    assert found.upper > epsilon(PoissonGaussian(m / n, sigma, steps), 1 / n).upper


@given(rates, st.floats(0.3, 10))
@some
def test_the_symmetrised_curve_is_the_curve_of_a_pair(q: float, sigma: float) -> None:
    """Convex and decreasing in e^ε, 1 at 0, symmetric, and above both directions of one step."""
    pair = ReplaceGaussian(q, sigma)
    at = np.linspace(-6, 6, 2001)
    curve = pair.curve(at)
    slopes = np.diff(curve.values) / np.diff(np.exp(at))
    assert np.all(np.diff(slopes) >= -1e-9)
    assert np.all(slopes <= 1e-12)
    assert np.allclose(curve.values[::-1], 1 - np.exp(-at) + np.exp(-at) * curve.values, atol=1e-12)
    assert np.all(curve.values + curve.errors >= RemoveGaussian(q, sigma).curve(at).values - 1e-15)
    away = at[np.abs(at) > 1e-3]
    numeric = (pair.curve(away - 1e-5).values - pair.curve(away + 1e-5).values) / 2e-5
    assert np.allclose(pair.curve(away).scaled_mass, numeric, rtol=1e-4, atol=1e-7)


def test_the_whole_population_is_no_sampling() -> None:
    assert epsilon(FixedSizeGaussian(50, 50, 2.0, 3), 1e-5).upper == pytest.approx(
        epsilon(PoissonGaussian(1.0, 2.0, 3), 1e-5).upper, rel=1e-4
    )


# AdaDPSyn's tables 13, 14, 15 and 17: σ₀, σ₁, σ₂, T̂, m, n, T, 1/δ, the paper's accounting, its order, ours
ADADPSYN = [
    (10, 1.23, 3, 1, 20, 30000, 100, 120000, 0.9998, 10, 0.0827),
    (10, 0.58, 3, 1, 20, 30000, 100, 120000, 7.6354, 3, 4.2327),
    (10, 1.54, 3, 1, 20, 3558, 100, 49999, 0.9992, 10, 0.3886),
    (15, 1.09, 5, 2, 40, 835, 15, 5452, 7.6780, 3, 4.2070),
    (17.5, 2.57, 6, 1, 40, 1561, 80, 1561, 0.9972, 10, 0.4275),
]


@pytest.mark.parametrize("row", ADADPSYN)
def test_adadpsyn_accounting(
    row: tuple[float, float, float, int, int, int, int, int, float, int, float],
) -> None:
    radius, mean, coverage, rounds, m, n, steps, inverse_delta, papers, order, ours = row
    sigma = adadpsyn_multiplier(
        radius_multiplier=radius, mean_multiplier=mean, coverage_multiplier=coverage, rounds=rounds
    )
    event = FixedSizeGaussian(m, n, sigma, steps)
    found = fixed_size_renyi_epsilon(event, 1 / inverse_delta)
    assert found.epsilon == pytest.approx(papers, abs=6e-5)
    assert found.order == order
    upper = epsilon(event, 1 / inverse_delta).upper
    assert ours - 4e-4 <= upper <= ours * 1.002 + 1e-4


@pytest.mark.parametrize("order", [2, 3, 8])
@pytest.mark.parametrize(("m", "n", "sigma"), [(80, 835, 0.95), (20, 1000, 0.5), (5, 10, 3.0)])
def test_the_papers_moments_are_above_those_of_the_curve(order: int, m: int, n: int, sigma: float) -> None:
    event = FixedSizeGaussian(m, n, sigma, 1)
    pair = dominating_pairs(event)[0]
    low, high = pair.loss_range(1e-12, 1e-40)
    from dpfewshot.accounting.pld.discretise import Cumulants

    moment = Cumulants((discretise(pair, 1, (high - low) / 20000, low, high),)).log_moment(order - 1)
    assert moment <= (order - 1) * fixed_size_renyi(event, order) * (1 + 1e-3) + 1e-6


# ---- zCDP ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "clip", "batch", "temperature", "order"),
    [
        (0.5, 10, 50, 68.579, 32),
        (1, 10, 50, 36.183, 18),
        (5, 10, 50, 8.5323, 5),
        (50, 14.12, 50, 2, 2),
        (10, 10, 120.116, 2, 3),
    ],
)
def test_iclinf_figures(target: float, clip: float, batch: float, temperature: float, order: int) -> None:
    event = ZeroConcentrated(0.5 * (clip / (batch * temperature)) ** 2, 2000)
    found = integer_order_epsilon(event, 1e-5)
    assert found.epsilon == pytest.approx(target, rel=2e-4)
    assert found.order == order
    assert epsilon(event, 1e-5).upper <= found.epsilon


@pytest.mark.parametrize(
    ("target", "steps", "batch", "rho", "clip"),
    [(1, 100, 127, 0.030557, 3.1396), (8, 100, 31, 1.229715, 4.8616)],
)
def test_invisible_ink_check_values(target: float, steps: int, batch: int, rho: float, clip: float) -> None:
    noise = calibrate(lambda noise: ZeroConcentrated(0.5 / noise**2, 1), epsilon=target, delta=1e-5)
    assert 0.5 / noise**2 == pytest.approx(rho, rel=1e-4)
    assert batch * math.sqrt(2 * rho / steps) == pytest.approx(clip, abs=5e-5)


@pytest.mark.slow
@given(st.floats(-8, 3).map(lambda e: 10**e), st.integers(1, 3000), st.floats(-12, -1).map(lambda e: 10**e))
@some
def test_zcdp_is_no_less_than_the_gaussian_that_meets_it(rho: float, steps: int, delta_: float) -> None:
    event = ZeroConcentrated(rho, steps)
    bounds = epsilon(event, delta_)
    noise = (2 * rho * steps) ** -0.5
    if LEAST_NOISE < noise < MOST_NOISE:
        gaussian = epsilon(PoissonGaussian(1.0, noise, 1), delta_)
        assert gaussian.lower <= bounds.upper
        assert bounds.lower <= gaussian.upper * (1 + 1e-9)
    assert delta(event, bounds.upper).upper <= delta_ * (1 + 1e-3) or bounds.upper == 0
    assert delta(event, bounds.lower).upper >= delta_ * (1 - 1e-3) or bounds.lower == 0
    best = integer_order_epsilon(event, delta_).epsilon
    assert bounds.upper <= max(best, 0.0) * (1 + 1e-9) + 1e-9


# ---- mixtures and relations ------------------------------------------------------------------------------
GAUSSIAN, RESPONSE = PoissonGaussian(0.01, 0.8, 60), PoissonRandomizedResponse(0.02, 1.5, 40)
CONCENTRATED = ZeroConcentrated(0.002, 20)


@pytest.mark.parametrize(
    "events", [(GAUSSIAN, RESPONSE), (RESPONSE, PoissonRandomizedResponse(0.05, 0.5, 30))]
)
@pytest.mark.parametrize("delta_", [1e-9, 1e-5])
def test_mixtures_with_randomised_response(events: tuple[Event, Event], delta_: float) -> None:
    together = epsilon(Composition(events), delta_)
    apart = [epsilon(event, delta_ / 2).upper for event in events]
    assert max(epsilon(event, delta_).upper for event in events) < together.upper < sum(apart)
    assert together.lower >= 0.97 * together.upper
    assert epsilon(Composition(events[::-1]), delta_).upper == pytest.approx(together.upper, rel=1e-3)


def test_a_mixture_is_the_convolution_of_its_parts() -> None:
    """δ of Gaussian and randomised response by integrating one curve over the other's two outcomes."""
    noise, cost, at = 1.3, 0.9, 1.1
    curve = dominating_pairs(PoissonGaussian(1.0, noise, 1))[0]
    likely = 1 / (1 + math.exp(-cost))
    shifted = curve.curve(np.array([at - cost, at + cost])).values
    exact = likely * float(shifted[0]) + (1 - likely) * float(shifted[1])
    event = Composition((PoissonGaussian(1.0, noise, 1), PoissonRandomizedResponse(1.0, cost, 1)))
    bounds = delta(event, at)
    assert exact * (1 - 1e-9) <= bounds.upper <= exact * (1 + 1e-4)


@pytest.mark.parametrize("other", [GAUSSIAN, RESPONSE])
def test_mixtures_with_zcdp(other: Event) -> None:
    event = Composition((other, CONCENTRATED))
    together = epsilon(event, 1e-5)
    assert epsilon(other, 1e-5).upper < together.upper
    assert together.lower <= together.upper <= 1.5 * together.lower
    assert delta(event, together.upper).upper == pytest.approx(1e-5, rel=0.02)


def test_relations_do_not_mix() -> None:
    fixed = FixedSizeGaussian(10, 100, 1.0, 5)
    assert fixed.relations == {Relation.REPLACE_ONE}
    assert Composition((GAUSSIAN, RESPONSE, CONCENTRATED)).relations == ADD_OR_REMOVE
    with pytest.raises(InvalidPlan, match="neighbours"):
        Composition((GAUSSIAN, fixed))
    with pytest.raises(InvalidPlan, match="neighbours"):
        Composition((fixed, Composition((CONCENTRATED,))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonRandomizedResponse(0.0, 1.0, 1),
        lambda: PoissonRandomizedResponse(0.1, 0.0, 1),
        lambda: PoissonRandomizedResponse(0.1, math.inf, 1),
        lambda: PoissonRandomizedResponse(0.1, 1.0, 0),
        lambda: FixedSizeGaussian(0, 10, 1.0, 1),
        lambda: FixedSizeGaussian(11, 10, 1.0, 1),
        lambda: FixedSizeGaussian(1, 10, math.nan, 1),
        lambda: ZeroConcentrated(-1.0, 1),
        lambda: ZeroConcentrated(1.0, 0),
        lambda: combined_multiplier([]),
        lambda: combined_multiplier([1.0, 0.0]),
        lambda: adadpsyn_multiplier(radius_multiplier=1, mean_multiplier=1, coverage_multiplier=1, rounds=0),
    ],
)
def test_values_outside_their_range_are_refused(make) -> None:
    with pytest.raises(InvalidPlan):
        make()


# ---- one computation with several descriptions ----------------------------------------------------------


def test_the_tightest_description_counts() -> None:
    amplified = PoissonRandomizedResponse(0.05, 0.3, 20)
    concentrated = ZeroConcentrated(0.3**2 / 8, 20)
    both = Tightest((amplified, concentrated))
    assert epsilon(both, 1e-5) == min(epsilon(amplified, 1e-5), epsilon(concentrated, 1e-5))
    assert epsilon(both, 1e-5).upper < epsilon(concentrated, 1e-5).upper
    assert delta(both, 0.5).upper == min(delta(amplified, 0.5).upper, delta(concentrated, 0.5).upper)
    certain = Tightest((PoissonRandomizedResponse(1.0, 0.3, 200), ZeroConcentrated(0.3**2 / 8, 200)))
    assert epsilon(certain, 1e-5).upper == epsilon(certain.events[1], 1e-5).upper
    assert both.steps == 20
    assert both.relations == ADD_OR_REMOVE


def test_descriptions_are_of_the_same_neighbours_and_stand_alone() -> None:
    with pytest.raises(InvalidPlan, match="different neighbours"):
        Tightest((ZeroConcentrated(0.1, 1), FixedSizeGaussian(1, 10, 1.0, 1)))
    with pytest.raises(InvalidPlan, match="at least one"):
        Tightest(())
    alone = Tightest((ZeroConcentrated(0.1, 1),))
    with pytest.raises(InvalidPlan, match="part of a composition"):
        epsilon(Composition((alone, alone)), 1e-5)
