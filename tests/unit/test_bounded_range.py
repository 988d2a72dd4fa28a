"""The pair of bounded range: above every exponential mechanism, reached by some, and composed like others."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpfewshot.accounting import (
    PoissonBoundedRange,
    PoissonRandomizedResponse,
    ZeroConcentrated,
    delta,
    epsilon,
)
from dpfewshot.accounting.curves import AddBoundedRange, RemoveBoundedRange
from dpfewshot.errors import InvalidPlan

ranges = st.floats(0.01, 12)
rates = st.one_of(st.just(1.0), st.floats(0.001, 1.0))
GRID = np.linspace(-14, 14, 561)


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([np.maximum(p - math.exp(at) * q, 0).sum() for at in GRID])


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@pytest.mark.slow
@given(ranges, rates, st.integers(2, 6), st.integers(0, 2**32))
@settings(deadline=None)
def test_every_softmax_draw_is_below_its_curve(width: float, q: float, outcomes: int, seed: int) -> None:
    """Random scores and changes of the given range, at the extremes and between, both directions."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(0, 3, outcomes)
    ends, between = generator.integers(0, 2, outcomes), generator.random(outcomes)
    change = np.where(generator.random(outcomes) < 0.5, ends, between)
    without, with_unit = softmax(scores), softmax(scores + width * change)
    mixed = (1 - q) * without + q * with_unit
    for curve, found in (
        (RemoveBoundedRange(q, width).curve(GRID), hockey_stick(mixed, without)),
        (AddBoundedRange(q, width).curve(GRID), hockey_stick(without, mixed)),
    ):
        assert (found <= curve.values + curve.errors + 1e-12).all()


def worst(width: float, at: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two outcomes that reach the curve at one point: losses t and t - width, t = (at + width)/2."""
    t = (at + width) / 2
    share = (1 - math.exp(t - width)) / (math.exp(t) - math.exp(t - width))
    q = np.array([share, 1 - share])
    return q * np.exp([t, t - width]), q


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("share", [-0.9, 0.0, 0.5, 0.9])
def test_the_curve_is_reached(width: float, share: float) -> None:
    p, q = worst(width, share * width)
    at = np.array([share * width])
    reached = np.maximum(p - math.exp(at[0]) * q, 0).sum()
    assert RemoveBoundedRange(1.0, width).curve(at).values[0] == pytest.approx(reached, rel=1e-9)
    narrower = RemoveBoundedRange(1.0, 0.9 * width).curve(at).values[0]
    assert narrower < reached, "the control: a range of a tenth less is exceeded"


@given(ranges, st.floats(0.001, 0.999), st.floats(-0.98, 0.98))
@settings(deadline=None)
def test_the_mass_is_the_slope_and_the_pieces_join(width: float, q: float, place: float) -> None:
    for pair in (RemoveBoundedRange(q, width), AddBoundedRange(q, width)):
        low, high = pair.loss_range(0, 0)
        at = low + (high - low) * (place + 1) / 2
        step = 1e-5 * (high - low)
        curve = pair.curve(np.array([at - step, at, at + step]))
        slope = (curve.values[0] - curve.values[2]) / (2 * step)
        assert slope == pytest.approx(curve.scaled_mass[1], rel=2e-2, abs=1e-4)
        ends = pair.curve(np.array([low - 1e-9, low + 1e-9, high - 1e-9, high + 1e-9]))
        assert ends.values[0] == pytest.approx(ends.values[1], abs=1e-7)
        assert ends.values[2] == pytest.approx(ends.values[3], abs=1e-7)


@pytest.mark.parametrize("width", [1e-3, 1.0, 60.0, 128.0, 200.0])
@pytest.mark.parametrize("q", [1.0, 0.5, 0.05, 1e-4])
def test_round_off_stays_small_beside_the_curve(width: float, q: float) -> None:
    """Else a wide range would put all of its mass at infinity."""
    for pair in (RemoveBoundedRange(q, width), AddBoundedRange(q, width)):
        low, high = pair.loss_range(0, 0)
        curve = pair.curve(np.linspace(low, high, 999))
        assert np.isfinite(curve.errors).all()
        assert curve.errors.max() < 1e-12
    bounds = epsilon(PoissonBoundedRange(q, width, 3), 1e-5)
    assert 0 <= bounds.lower <= bounds.upper <= 3 * width * (1 + 1e-6)


def test_without_sampling_the_pair_is_its_own_reverse() -> None:
    remove, add = RemoveBoundedRange(1.0, 0.7).curve(GRID), AddBoundedRange(1.0, 0.7).curve(GRID)
    assert np.abs(remove.values - add.values).max() < 1e-12


@pytest.mark.parametrize("q", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("width", [0.2, 2.0])
def test_one_step_is_the_curve_itself(q: float, width: float) -> None:
    at = 0.5 * math.log1p(q * math.expm1(width))
    one = np.array([at])
    direct = max(
        RemoveBoundedRange(q, width).curve(one).values[0], AddBoundedRange(q, width).curve(one).values[0]
    )
    found = delta(PoissonBoundedRange(q, width, 1), at)
    assert found.lower <= direct * (1 + 1e-6)
    assert found.upper >= direct * (1 - 1e-12)
    assert found.upper == pytest.approx(direct, rel=1e-3)


@pytest.mark.parametrize(("q", "width", "steps"), [(0.05, 0.8, 40), (0.3, 0.3, 60), (1.0, 0.2, 30)])
def test_compositions_agree_with_another_accountant(q: float, width: float, steps: int) -> None:
    """dp-accounting is given the pair as many small masses, read from the curve alone."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    pessimistic = 0.0
    for pair in (RemoveBoundedRange(q, width), AddBoundedRange(q, width)):
        low, high = pair.loss_range(0, 0)
        losses = np.linspace(low, high, 4001)
        curve = pair.curve(losses)
        above = np.minimum(curve.values + curve.scaled_mass, 1.0)
        masses = np.maximum(-np.diff(np.append(np.concatenate([[1.0], above[1:-1]]), 0.0)), 0)
        upper = {i: m / masses.sum() for i, m in enumerate(masses)}
        lower = {i: m * math.exp(-losses[i + 1]) for i, m in upper.items()}
        total = sum(lower.values())
        lower = {i: m / total for i, m in lower.items()}
        log_upper = {i: math.log(m) for i, m in upper.items() if m > 0}
        log_lower = {i: math.log(m) for i, m in lower.items() if m > 0}
        loss = pld.from_two_probability_mass_functions(
            log_lower, log_upper, value_discretization_interval=1e-4
        )
        pessimistic = max(pessimistic, loss.self_compose(steps).get_epsilon_for_delta(1e-5))
    found = epsilon(PoissonBoundedRange(q, width, steps), 1e-5)
    assert found.upper == pytest.approx(pessimistic, rel=1e-2)


@given(ranges, rates, st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_it_is_tighter_than_randomised_response(width: float, q: float, steps: int) -> None:
    bounded = epsilon(PoissonBoundedRange(q, width, steps), 1e-5)
    response = epsilon(PoissonRandomizedResponse(q, width, steps), 1e-5)
    assert bounded.lower <= bounded.upper
    assert bounded.upper <= response.upper * (1 + 1e-3) + 1e-6


def test_without_sampling_moments_may_be_tighter_and_with_it_are_not() -> None:
    moments = epsilon(ZeroConcentrated(0.3**2 / 8, 40), 1e-5).upper
    assert moments < epsilon(PoissonBoundedRange(1.0, 0.3, 40), 1e-5).upper
    assert epsilon(PoissonBoundedRange(0.1, 0.3, 40), 1e-5).upper < 0.2 * moments


@pytest.mark.parametrize(
    ("q", "width", "steps"), [(0.0, 1, 1), (1.1, 1, 1), (0.5, 0, 1), (0.5, 201, 1), (0.5, 1, 0)]
)
def test_values_outside_their_range_are_refused(q: float, width: float, steps: int) -> None:
    with pytest.raises(InvalidPlan):
        PoissonBoundedRange(q, width, steps)
