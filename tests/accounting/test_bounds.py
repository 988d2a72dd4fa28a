"""Certified (ε, δ) and calibration: closed forms, exact sums, monotonicity and the public errors."""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from dpfewshot.accounting import (
    Composition,
    EpsilonBounds,
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    calibrate,
    delta,
    epsilon,
)
from dpfewshot.accounting.bounds import epsilon_upper
from dpfewshot.accounting.events import LEAST_NOISE, MOST_NOISE, combined_multiplier
from dpfewshot.accounting.pairs import dominating_pairs
from dpfewshot.accounting.published import integer_order_epsilon
from dpfewshot.errors import InvalidPlan
from tests.accounting.conftest import forget

rates = st.floats(-4.5, 0).map(lambda exponent: 10**exponent)
noises = st.floats(math.log(0.35), math.log(40)).map(math.exp)
counts = st.floats(0, math.log(3000)).map(lambda exponent: round(math.exp(exponent)))
deltas = st.floats(-11, -0.5).map(lambda exponent: 10**exponent)
small_deltas = st.floats(-11, -1).map(lambda exponent: 10**exponent)
some = settings(max_examples=25)


def gaussian_delta(epsilon_: float, sigma: float) -> float:
    """Balle and Wang 2018, Theorem 5, at sensitivity 1."""
    upper = ndtr(1 / (2 * sigma) - epsilon_ * sigma)
    return float(upper - math.exp(epsilon_ + log_ndtr(-1 / (2 * sigma) - epsilon_ * sigma)))


@pytest.mark.parametrize(
    ("sigma", "steps"), [(0.3, 1), (0.3, 1000), (1.0, 1), (1.0, 30), (7.0, 50), (50.0, 10_000), (50.0, 1)]
)
@pytest.mark.parametrize("scale", [0.2, 1.0, 2.0])
def test_without_sampling_delta_is_the_gaussian_closed_form(sigma: float, steps: int, scale: float) -> None:
    composed = sigma / math.sqrt(steps)
    at = 1 / (2 * composed**2) + scale * 4 / composed
    exact, bounds = gaussian_delta(at, composed), delta(PoissonGaussian(1.0, sigma, steps), at)
    assert exact * (1 - 1e-9) <= bounds.upper <= exact * (1 + 1e-4)
    assert exact * 0.95 <= bounds.lower <= exact * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("steps", [1, 100, 10_000])
@pytest.mark.parametrize("delta_", [1e-12, 1e-5, 0.1])
def test_without_sampling_epsilon_inverts_the_closed_form(sigma: float, steps: int, delta_: float) -> None:
    bounds = epsilon(PoissonGaussian(1.0, sigma, steps), delta_)
    composed = sigma / math.sqrt(steps)
    if bounds.upper > 0:
        assert gaussian_delta(bounds.upper, composed) <= delta_ * (1 + 1e-9)
        assert gaussian_delta(max(bounds.upper * (1 - 5e-4) - 1e-6, 0.0), composed) >= delta_
        assert gaussian_delta(bounds.lower, composed) >= delta_ * (1 - 1e-9) or bounds.lower == 0
    else:
        assert gaussian_delta(0.0, composed) <= delta_


def test_a_mixture_of_gaussians_without_sampling_has_the_closed_form() -> None:
    event = Composition((PoissonGaussian(1.0, 2.0, 8), Composition((PoissonGaussian(1.0, 5.0, 3),))))
    composed, upper = (8 / 4 + 3 / 25) ** -0.5, epsilon(event, 1e-6).upper
    assert gaussian_delta(upper, composed) <= 1e-6 <= gaussian_delta(upper * (1 - 2e-4), composed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "delta_", "exact"),
    [
        # by integrating one step's curve over the other's loss
        (PoissonGaussian(10**-3.5, 1.0, 2), 1e-10, 0.058837),
        # dp-accounting, pessimistic, on grids of 1e-6 and 2e-6
        (PoissonGaussian(5e-5, 0.642, 116), 2.9e-4, 0.0010742),
        (PoissonGaussian(4.32e-5, 0.65, 4163), 7.2e-4, 0.0095190),
    ],
)
def test_answers_far_below_the_tilted_mean(event: PoissonGaussian, delta_: float, exact: float) -> None:
    """Rare large losses put the tilted mean far above ε: a window made for the mean was up to twice off."""
    assert exact * (1 - 2e-3) <= epsilon(event, delta_).upper <= exact * (1 + 2e-3)


@pytest.mark.slow
@given(rates, noises, counts, deltas, st.floats(1.01, 3))
@some
def test_bounds_are_ordered_and_monotone(
    q: float, sigma: float, steps: int, delta_: float, more: float
) -> None:
    base = epsilon(PoissonGaussian(q, sigma, steps), delta_)
    assert 0 <= base.lower <= base.upper < math.inf
    fewer = max(int(steps / more), 1)
    for less in ((q, sigma * more, steps), (q / more, sigma, steps), (q, sigma, fewer), (q, sigma, steps)):
        at = min(delta_ * more, 0.9) if less == (q, sigma, steps) else delta_
        found = epsilon(PoissonGaussian(*less), at)
        assert found.lower <= found.upper <= base.upper * (1 + 3e-4) + 1e-9


@pytest.mark.slow
@given(rates, noises, counts, counts, deltas)
@some
def test_steps_add_up(q: float, sigma: float, first: int, second: int, delta_: float) -> None:
    parts = Composition((PoissonGaussian(q, sigma, first), PoissonGaussian(q, sigma, second)))
    whole = epsilon(PoissonGaussian(q, sigma, first + second), delta_)
    assert parts.steps == first + second
    assert epsilon(parts, delta_).upper == pytest.approx(whole.upper, rel=3e-4, abs=1e-9)


@pytest.mark.slow
@given(st.builds(PoissonGaussian, rates, noises, counts), deltas)
@settings(max_examples=10)  # a δ takes a bisection
def test_delta_and_epsilon_invert_each_other(event: PoissonGaussian, delta_: float) -> None:
    spent = epsilon(event, delta_)
    assert delta(event, spent.upper).lower <= delta_ * (1 + 1e-9)
    assert delta(event, spent.upper * (1 + 1e-3) + 1e-9).upper <= delta_ * (1 + 5e-4)
    assert delta(event, spent.lower).upper >= delta_ * (1 - 1e-9) or spent.lower == 0


def test_at_the_ends() -> None:
    """No loss where the total variation is within δ, and hardly any δ far above all losses."""
    assert epsilon(PoissonGaussian(1e-3, 2.0, 10), 0.01) == EpsilonBounds(0.0, 0.0)
    assert epsilon(PoissonGaussian(3.7e-4, 0.41, 4504), 0.22).upper == 0
    assert delta(PoissonGaussian(0.3, 0.5, 4), 0.0).upper <= 1
    assert delta(PoissonGaussian(0.3, 0.5, 4), 500.0).upper < 1e-30


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


@pytest.mark.slow
@given(st.builds(PoissonRandomizedResponse, rates, costs, st.integers(1, 60)), small_deltas)
@some
def test_randomised_response_is_a_binomial_sum(event: PoissonRandomizedResponse, delta_: float) -> None:
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
    sampled = PoissonRandomizedResponse(1 / 500, cost, steps)
    found = [epsilon(event, delta_).upper for event in (amplified, sampled)]
    assert found == pytest.approx([naive, certified], abs=6e-5)


def test_control_one_direction_of_randomised_response_is_not_enough() -> None:
    event = PoissonRandomizedResponse(0.05, 1.0, 1)
    removed, added = (float(pair.curve(np.array([0.03])).values[0]) for pair in dominating_pairs(event))
    assert removed > added * 1.05
    assert binomial_delta(event, 0.03) == pytest.approx(removed, rel=1e-12)


@given(st.floats(0.01, 12), st.one_of(st.just(1.0), st.floats(0.001, 1.0)), st.integers(1, 60))
@settings(max_examples=25)
def test_it_is_tighter_than_randomised_response(width: float, q: float, steps: int) -> None:
    bounded = epsilon(PoissonBoundedRange(q, width, steps), 1e-5)
    response = epsilon(PoissonRandomizedResponse(q, width, steps), 1e-5)
    assert bounded.lower <= bounded.upper
    assert bounded.upper <= response.upper * (1 + 1e-3) + 1e-6


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


def test_the_whole_population_is_no_sampling() -> None:
    fixed, everybody = FixedSizeGaussian(50, 50, 2.0, 3), PoissonGaussian(1.0, 2.0, 3)
    assert epsilon(fixed, 1e-5).upper == pytest.approx(epsilon(everybody, 1e-5).upper, rel=1e-4)


@pytest.mark.slow
@given(st.floats(-8, 3).map(lambda e: 10**e), st.integers(1, 3000), small_deltas)
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


GAUSSIAN, RESPONSE = PoissonGaussian(0.01, 0.8, 60), PoissonRandomizedResponse(0.02, 1.5, 40)
CONCENTRATED = ZeroConcentrated(0.002, 20)


@pytest.mark.parametrize(
    "events",
    [
        (GAUSSIAN, RESPONSE),
        (RESPONSE, PoissonRandomizedResponse(0.05, 0.5, 30)),
        (PoissonGaussian(0.01, 0.8, 100), PoissonGaussian(0.2, 3.0, 20)),
    ],
)
@pytest.mark.parametrize("delta_", [1e-9, 1e-5])
def test_a_mixture_costs_more_than_its_parts_and_less_than_their_sum(
    events: tuple[Event, Event], delta_: float
) -> None:
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


@pytest.mark.parametrize(("target", "delta_"), [(0.05, 1e-9), (1.0, 1e-5), (8.0, 1e-3), (300.0, 1e-6)])
@pytest.mark.parametrize(("q", "steps"), [(1e-3, 500), (0.1, 15), (1.0, 1), (1.0, 2000)])
def test_calibrated_noise_fits_and_is_the_least(target: float, delta_: float, q: float, steps: int) -> None:
    sigma = calibrate(lambda sigma: PoissonGaussian(q, sigma, steps), epsilon=target, delta=delta_)
    assert epsilon(PoissonGaussian(q, sigma, steps), delta_).upper <= target
    less = epsilon(PoissonGaussian(q, sigma * (1 - 2e-4), steps), delta_)
    assert less.upper > target


def test_a_target_that_a_coarse_grid_cannot_reach_is_reached() -> None:
    """There its bound is infinite, and an infinite one says nothing of more noise."""
    target, delta_ = 0.00637515760844503, 4.728698355196318e-28

    def event(sigma: float) -> Composition:
        response = PoissonRandomizedResponse(1.0, min(1 / sigma, 1e6), 1)
        return Composition((PoissonGaussian(5.820621211373441e-06, sigma, 3), response))

    sigma = calibrate(event, epsilon=target, delta=delta_)
    assert 0.999 * target < epsilon(event(sigma), delta_).upper <= target


@pytest.mark.parametrize("tokens", [1, 1600, 10**6])
def test_what_an_event_refuses_does_not_fit(tokens: int) -> None:
    """The noise of a draw with many tokens is σ/√R, which a search from σ = 1 begins far below."""

    def block(sigma: float) -> PoissonGaussian:
        return PoissonGaussian(1e-3, sigma / math.sqrt(tokens), 100)

    sigma = calibrate(block, epsilon=2.0, delta=1e-6)
    assert epsilon(block(sigma), 1e-6).upper <= 2.0
    of_draw = calibrate(lambda sigma: PoissonGaussian(1e-3, sigma, 100), epsilon=2.0, delta=1e-6)
    assert sigma == pytest.approx(math.sqrt(tokens) * of_draw, rel=1e-3)
    for target, delta_ in ((1e6, 1e-6), (1.0, 0.1)):  # any noise that the accountant knows would do
        loose = calibrate(block, epsilon=target, delta=delta_)
        assert loose == pytest.approx(LEAST_NOISE * math.sqrt(tokens), rel=1e-3)


GOOD = PoissonGaussian(0.1, 1.0, 1)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: calibrate(lambda s: PoissonGaussian(1.5, s, 1), epsilon=1, delta=1e-5), "sampling_rate"),
        *((lambda d=d: epsilon(GOOD, d), "delta") for d in (0.0, 1.0, -0.1, math.nan)),
        *((lambda d=d: calibrate(lambda _: GOOD, epsilon=1, delta=d), "delta") for d in (0.0, 1.0, math.nan)),
        *((lambda e=e: delta(GOOD, e), "epsilon") for e in (-0.1, math.inf, math.nan)),
        *(
            (lambda e=e: calibrate(lambda _: GOOD, epsilon=e, delta=0.1), "epsilon")
            for e in (-0.1, 0, math.inf)
        ),
    ],
)
def test_what_nothing_fits_or_is_outside_its_range_is_refused(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidPlan, match=says):
        ask()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, Fraction])
def test_numbers_of_other_types_cost_what_floats_do_whoever_asks_first(kind: type) -> None:
    """NumPy computes in the precision of its types, and the first answer is kept for what is equal to it."""
    made = PoissonGaussian(0.125, 1.5, 21), ZeroConcentrated(0.25, 2049)
    theirs = PoissonGaussian(kind(0.125), kind(1.5), 21), ZeroConcentrated(kind(0.25), 2049)
    assert type(theirs[0].sampling_rate) is type(theirs[0].noise_multiplier) is type(theirs[1].rho) is float
    small, large = 2.0**-14, 2.0

    def asked(events: tuple[Event, ...], of: type) -> list[object]:
        forget()
        bounds = [(epsilon(one, of(small)), epsilon_upper(one, of(small))) for one in events]
        return [*bounds, *(delta(one, of(large)) for one in events)]

    assert asked(made, float) == asked(theirs, kind)
    assert combined_multiplier([kind(1.5)] * 3) == combined_multiplier([1.5] * 3)


def test_what_is_no_number_or_event_is_refused() -> None:
    event = PoissonGaussian(0.5, 2.0, 3)
    with pytest.raises(InvalidPlan, match="no dominating pair is known for list"):
        epsilon([event], 1e-5)  # type: ignore[arg-type]
    for number in ("1e-5", Decimal("1e-5"), np.array(1e-5), None):
        with pytest.raises(InvalidPlan, match=r"must be a number, not .*: write float"):
            epsilon(event, number)  # type: ignore[arg-type]
        with pytest.raises(InvalidPlan, match=r"must be a number, not .*: write float"):
            delta(event, number)  # type: ignore[arg-type]
    with pytest.raises(InvalidPlan, match="rho must be a positive number"):
        ZeroConcentrated(Fraction(1, 10**400), 3)  # type: ignore[arg-type]
