"""Certified (ε, δ): closed forms, high-precision quadrature, monotonicity and the public errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from dpfewshot.accounting import (
    Composition,
    DeltaBounds,
    EpsilonBounds,
    Event,
    FixedSizeGaussian,
    PoissonGaussian,
    PoissonRandomizedResponse,
    calibrate,
    delta,
    epsilon,
)
from dpfewshot.accounting.calibration import LEAST_NOISE
from dpfewshot.accounting.compose import discretisation_gaps
from dpfewshot.accounting.grid import discretise
from dpfewshot.accounting.pairs import (
    AddGaussian,
    DominatingPair,
    RemoveGaussian,
    dominating_pairs,
)
from dpfewshot.errors import InvalidPlan

rates = st.floats(-4.5, 0).map(lambda exponent: 10**exponent)
noises = st.floats(math.log(0.35), math.log(40)).map(math.exp)
counts = st.floats(0, math.log(3000)).map(lambda exponent: round(math.exp(exponent)))
deltas = st.floats(-11, -0.5).map(lambda exponent: 10**exponent)
some = settings(max_examples=25, deadline=None)


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
    exact = gaussian_delta(at, composed)
    bounds = delta(PoissonGaussian(1.0, sigma, steps), at)
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


def quadrature_delta(at: float, q: float, sigma: float, *, removed: bool) -> float:
    """∫ (p - e^ε·q)⁺ at 40 digits, without the accountant's own formulas."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        q_, s, growth = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.exp(mpmath.mpf(at))

        def excess(x: object) -> object:
            out, in_ = mpmath.npdf(x, 0, s), mpmath.npdf(x, 1, s)
            mixture = (1 - q_) * out + q_ * in_
            return mixture - growth * out if removed else out - growth * mixture

        ratio = ((growth if removed else 1 / growth) - (1 - q_)) / q_
        if ratio <= 0:
            return 0.0
        edge = mpmath.mpf(1) / 2 + s**2 * mpmath.log(ratio)
        points = [edge + (1 if removed else -1) * s * k for k in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 40)]
        return abs(float(mpmath.quad(excess, points)))


@pytest.mark.parametrize(
    ("q", "sigma", "at"),
    [
        (0.01, 1.0, 0.5),
        (0.01, 1.0, 2.9),  # about 1e-12
        (0.1, 0.5, 6.0),
        (0.5, 3.0, 0.2),
        (0.001, 0.3, 12.0),
        (1e-5, 20.0, 1e-6),
    ],
)
def test_one_step_agrees_with_high_precision_quadrature(q: float, sigma: float, at: float) -> None:
    exact = max(quadrature_delta(at, q, sigma, removed=removed) for removed in (True, False))
    bounds = delta(PoissonGaussian(q, sigma, 1), at)
    assert exact * (1 - 1e-12) <= bounds.upper <= exact * (1 + 1e-4)
    assert bounds.lower <= exact * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("q", [1e-5, 0.02, 0.6])
@pytest.mark.parametrize("sigma", [0.3, 2.0, 50.0])
@pytest.mark.parametrize("removed", [True, False])
def test_curves_are_within_their_stated_errors(q: float, sigma: float, removed: bool) -> None:
    pair: DominatingPair = RemoveGaussian(q, sigma) if removed else AddGaussian(q, sigma)
    low, high = pair.loss_range(1e-6, 1e-13)
    losses = np.linspace(low, high, 9)[1:-1]
    curve = pair.curve(losses)
    for loss, value, error in zip(losses, curve.values, curve.errors, strict=True):
        assert abs(value - quadrature_delta(float(loss), q, sigma, removed=removed)) <= error + 1e-30


@pytest.mark.slow
@given(rates, noises, st.sampled_from([1e-3, 1e-2, 0.1]))
@some
def test_discretised_losses_dominate_at_every_point(q: float, sigma: float, share: float) -> None:
    for pair in dominating_pairs(PoissonGaussian(q, sigma, 1)):
        low, high = pair.loss_range(1e-9, 1e-12)
        loss = discretise(pair, 1, (high - low) * share, low, high)
        at = np.sort(np.concatenate([loss.losses, loss.losses[:-1] + 0.37 * loss.spacing]))
        masses = np.exp(loss.log_masses)
        kept = np.maximum(-np.expm1(np.minimum(at[:, None] - loss.losses[None, :], 0.0)), 0.0)
        discretised = kept @ masses + loss.infinite_mass
        exact = pair.curve(at)
        assert np.all(discretised >= exact.values * (1 - 1e-13) - exact.errors)
        gaps = discretisation_gaps(loss)[1]
        cell = np.searchsorted(loss.losses, at, side="left")
        assert np.all(kept @ masses <= exact.values + exact.errors + gaps[cell] + 1e-13)


@pytest.mark.slow
@given(rates, noises, counts, deltas, st.floats(1.01, 3))
@some
def test_bounds_are_ordered_and_monotone(
    q: float, sigma: float, steps: int, delta_: float, more: float
) -> None:
    base = epsilon(PoissonGaussian(q, sigma, steps), delta_)
    assert 0 <= base.lower <= base.upper < math.inf
    ceiling = base.upper * (1 + 3e-4) + 1e-9
    assert epsilon(PoissonGaussian(q, sigma * more, steps), delta_).lower <= ceiling
    assert epsilon(PoissonGaussian(q, sigma * more, steps), delta_).upper <= ceiling
    assert epsilon(PoissonGaussian(q / more, sigma, steps), delta_).upper <= ceiling
    assert epsilon(PoissonGaussian(q, sigma, max(int(steps / more), 1)), delta_).upper <= ceiling
    assert epsilon(PoissonGaussian(q, sigma, steps), min(delta_ * more, 0.9)).upper <= ceiling


@pytest.mark.slow
@given(rates, noises, counts, counts, deltas)
@some
def test_steps_add_up(q: float, sigma: float, first: int, second: int, delta_: float) -> None:
    parts = Composition((PoissonGaussian(q, sigma, first), PoissonGaussian(q, sigma, second)))
    whole = epsilon(PoissonGaussian(q, sigma, first + second), delta_)
    assert parts.steps == first + second
    assert epsilon(parts, delta_).upper == pytest.approx(whole.upper, rel=3e-4, abs=1e-9)


@pytest.mark.slow
@given(rates, noises, counts, deltas)
@some
def test_delta_and_epsilon_invert_each_other(q: float, sigma: float, steps: int, delta_: float) -> None:
    event = PoissonGaussian(q, sigma, steps)
    spent = epsilon(event, delta_)
    assert delta(event, spent.upper).lower <= delta_ * (1 + 1e-9)
    assert delta(event, spent.upper * (1 + 1e-3) + 1e-9).upper <= delta_ * (1 + 5e-4)
    assert delta(event, spent.lower).upper >= delta_ * (1 - 1e-9) or spent.lower == 0


def test_a_mixture_of_gaussians_without_sampling_has_the_closed_form() -> None:
    event = Composition((PoissonGaussian(1.0, 2.0, 8), Composition((PoissonGaussian(1.0, 5.0, 3),))))
    composed = (8 / 4 + 3 / 25) ** -0.5
    bounds = epsilon(event, 1e-6)
    assert gaussian_delta(bounds.upper, composed) <= 1e-6
    assert gaussian_delta(bounds.upper * (1 - 2e-4), composed) >= 1e-6


def test_a_mixture_costs_more_than_its_parts_and_less_than_their_sum() -> None:
    first, second = PoissonGaussian(0.01, 0.8, 100), PoissonGaussian(0.2, 3.0, 20)
    together = epsilon(Composition((first, second)), 1e-6).upper
    apart = [epsilon(event, 5e-7).upper for event in (first, second)]
    assert max(epsilon(event, 1e-6).upper for event in (first, second)) < together < sum(apart)


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


def test_no_loss_at_all_where_total_variation_is_within_delta() -> None:
    assert epsilon(PoissonGaussian(1e-3, 2.0, 10), 0.01) == EpsilonBounds(0.0, 0.0)
    assert epsilon(PoissonGaussian(3.7e-4, 0.41, 4504), 0.22).upper == 0


def test_delta_at_the_ends() -> None:
    event = PoissonGaussian(0.3, 0.5, 4)
    assert delta(event, 0.0).upper <= 1
    assert delta(event, 500.0).upper < 1e-30
    assert isinstance(delta(event, 3.0), DeltaBounds)


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


def test_calibration_of_a_mixture() -> None:
    fixed = PoissonGaussian(0.01, 1.0, 50)
    sigma = calibrate(
        lambda sigma: Composition((fixed, PoissonGaussian(0.05, sigma, 40))), epsilon=2.0, delta=1e-5
    )
    assert epsilon(Composition((fixed, PoissonGaussian(0.05, sigma, 40))), 1e-5).upper <= 2.0


def test_any_noise_fits_where_sampling_alone_is_enough() -> None:
    sigma = calibrate(lambda sigma: PoissonGaussian(1e-6, sigma, 10), epsilon=1.0, delta=0.1)
    assert sigma == pytest.approx(LEAST_NOISE)


def test_a_target_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="no noise multiplier"):
        calibrate(lambda _: PoissonGaussian(0.5, 1.0, 10), epsilon=0.1, delta=1e-6)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan])
def test_delta_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(InvalidPlan, match="delta"):
        epsilon(PoissonGaussian(0.1, 1.0, 1), bad)
    with pytest.raises(InvalidPlan, match="delta"):
        calibrate(lambda sigma: PoissonGaussian(0.1, sigma, 1), epsilon=1.0, delta=bad)


@pytest.mark.parametrize("bad", [-0.1, math.inf, math.nan])
def test_epsilon_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(InvalidPlan, match="epsilon"):
        delta(PoissonGaussian(0.1, 1.0, 1), bad)
    with pytest.raises(InvalidPlan, match="epsilon"):
        calibrate(lambda sigma: PoissonGaussian(0.1, sigma, 1), epsilon=bad, delta=1e-5)


def test_unknown_events_and_empty_compositions_are_refused() -> None:
    class Unknown:
        steps = 1

    event: Event = Unknown()
    with pytest.raises(InvalidPlan, match="Unknown"):
        epsilon(event, 1e-5)
    with pytest.raises(InvalidPlan, match="at least one"):
        Composition(())


@pytest.mark.parametrize("sigma", [0.0, 2.0**-7, 2.0**21, math.inf, math.nan])
def test_noise_that_no_test_covers_is_refused(sigma: float) -> None:
    with pytest.raises(InvalidPlan, match="noise multiplier"):
        PoissonGaussian(0.1, sigma, 1)
    with pytest.raises(InvalidPlan, match="noise multiplier"):
        FixedSizeGaussian(1, 10, sigma, 1)


@pytest.mark.parametrize("tokens", [1, 1600, 10**6])
def test_what_an_event_refuses_does_not_fit(tokens: int) -> None:
    """The noise of a draw with many tokens is σ/√R, which a search from σ = 1 begins far below."""

    def block(sigma: float) -> PoissonGaussian:
        return PoissonGaussian(1e-3, sigma / math.sqrt(tokens), 100)

    sigma = calibrate(block, epsilon=2.0, delta=1e-6)
    assert epsilon(block(sigma), 1e-6).upper <= 2.0
    of_draw = calibrate(lambda sigma: PoissonGaussian(1e-3, sigma, 100), epsilon=2.0, delta=1e-6)
    assert sigma == pytest.approx(math.sqrt(tokens) * of_draw, rel=1e-3)
    loose = calibrate(block, epsilon=1e6, delta=1e-6)  # any noise that the accountant knows would do
    assert loose == pytest.approx(LEAST_NOISE * math.sqrt(tokens), rel=1e-3)


def test_a_request_that_nothing_fits_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="sampling_rate"):
        calibrate(lambda sigma: PoissonGaussian(1.5, sigma, 1), epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("steps", [0, 1.5, math.nan])
def test_steps_are_counted_in_whole_numbers(steps: float) -> None:
    with pytest.raises(InvalidPlan, match="whole number"):
        PoissonGaussian(0.1, 1.0, steps)
