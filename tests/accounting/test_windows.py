"""What a window, a grid's top and the transform leave out is counted, whatever their sizes.

Sizes are heuristics: they decide how tight a bound is, never whether it holds. So they are made bad on
purpose here, until what is left out is as large as δ; the bound must still be above the exact curve."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from dpfewshot.accounting import PoissonGaussian, PoissonRandomizedResponse, bounds, delta, tilting
from dpfewshot.accounting.bounds import epsilon_upper
from dpfewshot.accounting.compose import ComposedCurve, _Composed, _least_bound, compose
from dpfewshot.accounting.pairs import dominating_pairs
from dpfewshot.accounting.tilting import Goal, Tilt, fit_window
from tests.support.independent_accounting import delta_of, gaussian

EVENTS = [PoissonGaussian(1.0, 3.0, 20), PoissonGaussian(0.02, 0.6, 200), PoissonGaussian(0.3, 40.0, 1000)]
DELTA = 1e-6


def exact_delta(event: PoissonGaussian, at: float) -> float:
    words = event.sampling_rate, event.noise_multiplier, event.steps
    return max(delta_of([gaussian(*words, removed=way)], at, DELTA).delta for way in (True, False))


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("share", [0.01, 0.5, 100.0])
@pytest.mark.parametrize("where", ["BEYOND_WINDOW", "ABOVE_GRID"])
def test_mass_beyond_the_window_and_at_infinity_counts(
    event: PoissonGaussian, share: float, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much of δ may lie above the window, or above the grid of a step."""
    monkeypatch.setattr(tilting, where, share)
    found = epsilon_upper(event, DELTA)
    assert found == math.inf or exact_delta(event, found) <= DELTA * (1 + 1e-9)
    at = min(found, 1.0)
    assert delta(event, at).upper >= exact_delta(event, at) * (1 - 1e-9)


def test_the_check_catches_mass_that_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilting, "ABOVE_GRID", 0.5)
    monkeypatch.setattr(bounds, "compose", lambda tilt: replace(compose(tilt), missing=0.0))
    monkeypatch.setattr(bounds, "renyi_epsilon", lambda *_: math.inf)
    found = [epsilon_upper(event, DELTA) for event in EVENTS]
    exact = [exact_delta(event, at) for event, at in zip(EVENTS, found, strict=True)]
    assert max(exact) > DELTA * (1 + 1e-9)


def test_the_curve_says_how_much_is_missing() -> None:
    """At the top of its window a curve is what lies above: mass that it never saw."""
    event = PoissonGaussian(0.02, 0.6, 200)
    whole = planned_for(event, DELTA)
    low, spacing = whole.low * whole.cumulants.losses[0].spacing, whole.cumulants.losses[0].spacing
    law = gaussian(event.sampling_rate, event.noise_multiplier, event.steps, removed=True)
    for share in (0.5, 0.7, 0.9):  # of the window, cut off at the top
        cut = shortened(whole, int(share * whole.length))
        end = low + cut.length * spacing
        if end > 0:
            exact = delta_of([law], end, DELTA).delta
            assert compose(cut).missing >= exact
            assert float(compose(cut).upper()[-1]) >= exact
            assert float(replace(compose(cut), missing=0.0).upper()[-1]) < exact, "the control"


def planned_for(event: PoissonGaussian | PoissonRandomizedResponse, delta: float) -> Tilt:
    """For the unit removed."""
    found = tilting.choose_tilt([(dominating_pairs(event)[0], event.steps)], Goal(delta, 4e-5))
    assert found is not None
    return found


def shortened(whole: Tilt, length: int) -> Tilt:
    """The same window, shorter, with the Chernoff bound of what is now above it."""
    cumulants = whole.cumulants
    end = (whole.low + length) * cumulants.losses[0].spacing + cumulants.origin
    above = min(
        cumulants.log_moment(order) + cumulants.rounding(order) - order * end
        for order in whole.saddle * np.array([0.2, 0.5, 1.0, 1.5])
    )
    return replace(whole, length=length, mass_above=math.exp(min(above, 0.0)))


RESPONSE = PoissonRandomizedResponse(0.3, 0.8, 60)
ROOM = 1e-12


def response_curve(share: float) -> ComposedCurve:
    """Composed far from the saddle point, where the transform's round-off is larger than the curve itself."""
    planned = planned_for(RESPONSE, 1e-9)
    return compose(fit_window(planned.cumulants, planned.saddle, share, 1e-9))


def exact_response(at: np.ndarray, event: PoissonRandomizedResponse = RESPONSE) -> np.ndarray:
    """Binomial sums."""
    q, cost, steps = event.sampling_rate, event.epsilon, event.steps
    likely = 1 / (1 + math.exp(-cost))
    mass = (1 - q) * (1 - likely) + q * likely
    losses = [math.log1p(q * math.expm1(sign * cost)) for sign in (-1, 1)]
    counts = np.arange(steps + 1)
    total = losses[0] * (steps - counts) + losses[1] * counts
    kept = np.maximum(-np.expm1(np.minimum(at[:, None] - total[None, :], 0.0)), 0.0)
    return kept @ binom.pmf(counts, steps, mass)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 1.0])
def test_round_off_of_the_transform_is_within_what_is_stated(share: float) -> None:
    curve = response_curve(share)
    exact = exact_response(curve.losses + curve.slack)
    assert np.all(curve.upper() >= exact * (1 - ROOM))


def test_the_check_catches_round_off_that_is_not_counted() -> None:
    curve = response_curve(0.05)
    silent = replace(curve, noise=np.zeros_like(curve.noise))
    exact = exact_response(curve.losses + curve.slack)
    assert not np.all(silent.upper() >= exact * (1 - ROOM))


def test_the_stated_round_off_is_no_less_than_what_is_seen() -> None:
    """Beside a transform that is exact to many more digits: the sum over all outcomes, term by term."""
    curve = response_curve(0.05)
    exact = exact_response(curve.losses)
    kept, lost = np.append(curve.heads[1:], 0.0), np.append(curve.tails[1:], 0.0)
    computed = kept - math.exp(-curve.tilt.cumulants.losses[0].spacing) * lost
    seen = np.abs(computed - exact)
    stated = curve.noise + 2 * curve.relative * kept + curve.missing + 1e-13 * kept
    assert np.all(seen <= stated)


def test_mass_that_wraps_round_is_given_up_however_large_its_exponents_are() -> None:
    """Most of the mass lies above this window; K(s) - sε and the exponent of its wrapping both exceed 700."""
    event = PoissonRandomizedResponse(0.3, 100.0, 200)
    planned = planned_for(event, 0.1)
    (loss,) = planned.cumulants.losses
    lowest = loss.steps * loss.start
    bad = replace(planned, order=0.005, wrap_order=0.12, low=lowest, length=64, wrapped_below=0.0)
    curve = compose(bad)
    assert np.all(curve.lower() <= exact_response(curve.losses - curve.slack, event) * (1 + ROOM))
    assert curve.heads[0] > 1, "the control: what wrapped round is more than all there is"


def test_a_window_of_any_wanted_length_is_made() -> None:
    """Valid events were refused: their windows were to have 10¹⁸ points, and no transform has."""
    planned = response_curve(1.0).tilt
    made = fit_window(planned.cumulants, planned.saddle, 1.0, 1e-9, answer=-1e20)
    assert made.length == tilting.LONGEST_WINDOW
    assert made.crowding > 1


@pytest.mark.parametrize("end", [-10.0, -650.0, -750.0, -3000.0])
def test_the_bound_on_what_a_grid_adds_holds_however_large_its_exponents_are(end: float) -> None:
    """The other steps lose nothing, so the mean gap at ε = `end` is that of the cell that ends there."""
    at, gap = end + np.arange(-8.0, 9.0), 1e-3
    curve = _Composed(at, -np.expm1(np.minimum(at, 0.0)), slope=1.0, spacing=1.0)
    bound = _least_bound(np.array([end]), np.array([gap]), curve, [(0.5, 0.0), (2.0, 0.0)])
    assert float(bound[8]) >= gap * (1 - 1e-12)
