"""Private prediction: clip and temperature decide each other, its events, and ICLInf's tables."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from bench import reproduce as paper
from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import (
    PoissonBoundedRange,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
    calibrate,
    epsilon,
)
from dpfewshot.accounting.published import integer_order_epsilon
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import rounded_up
from dpfewshot.mechanisms import Draws, InvisibleInk, Mechanism, PrivatePrediction, RowChange
from dpfewshot.mechanisms.choice import solved_clip, solved_temperature

PUBLIC = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))
EVERYBODY = Draws(1.0, 1, 2000, 50, RowChange.ADDED)


def test_one_of_clip_and_temperature_is_given() -> None:
    with pytest.raises(InvalidPlan, match="would fix epsilon"):
        PrivatePrediction(clip=10.0, temperature=2.0)
    assert PrivatePrediction() == PrivatePrediction(clip=10.0)
    assert PrivatePrediction(temperature=2.0).clip is None


@pytest.mark.parametrize(
    ("target", "given", "clip", "temperature"), [(1, None, 10, 36.18), (10, 2.0, 4.2221, 2)]
)
def test_the_temperature_or_the_clip_follows_from_the_budget(
    target: float, given: float | None, clip: float, temperature: float
) -> None:
    """ICLInf, Tables 4 and 5, at s = 50; the clip is 4.16 by their orders, and 4.22 by all."""
    mechanism = PrivatePrediction(temperature=given)
    sigma = calibrate(lambda noise: mechanism.event(EVERYBODY, noise), epsilon=target, delta=1e-5)
    release = mechanism.start(EVERYBODY, sigma)
    assert release.clip == pytest.approx(clip, abs=1e-4)
    assert float(1 / (release.rate * 50 * _core.logit_grid)) == pytest.approx(temperature, abs=0.005)


@pytest.mark.parametrize("mechanism", [PrivatePrediction(temperature=100.0), InvisibleInk(temperature=100.0)])
def test_a_clip_beyond_the_cores_range_is_cut(mechanism: Mechanism) -> None:
    assert mechanism.start(EVERYBODY, 0.5).clip == 1000


def test_replaced_rows_take_half_the_clip_or_twice_the_temperature() -> None:
    replaced = Draws(1.0, 1, 2000, 50, RowChange.REPLACED)
    for mechanism in (PrivatePrediction(), PrivatePrediction(temperature=2.0)):
        one, other = (mechanism.start(draws, 7.0) for draws in (EVERYBODY, replaced))
        assert one.clip * float(one.rate) == pytest.approx(2 * other.clip * float(other.rate))


def test_an_event_is_both_of_bounded_range_and_concentrated() -> None:
    event = PrivatePrediction().event(Draws(0.05, 3, 4, 50, RowChange.ADDED), 8.0)
    assert isinstance(event, Tightest)
    amplified, concentrated = event.events
    assert amplified == PoissonProduct(0.05, (PoissonBoundedRange(1.0, 0.25, 4),), 3)
    assert isinstance(concentrated, ZeroConcentrated)
    assert (concentrated.rho, concentrated.steps) == (pytest.approx(1 / 128), 12)


def test_tokens_that_share_no_draw_are_of_bounded_range() -> None:
    for draws, steps in ((Draws(0.05, 12, 1, 50, RowChange.ADDED), 12), (EVERYBODY, 2000)):
        event = PrivatePrediction().event(draws, 8.0)
        assert isinstance(event, Tightest)
        assert event.events[0] == PoissonBoundedRange(draws.sampling_rate, 0.25, steps)
    wide = PrivatePrediction().event(Draws(0.05, 12, 1, 50, RowChange.ADDED), 1e-3)
    assert isinstance(wide.events[0], PoissonRandomizedResponse), "its pair is for ranges up to 200"


def test_sampling_helps_small_draws_and_zcdp_large_ones() -> None:
    mechanism = PrivatePrediction()
    for rate, better in ((0.01, 0), (1.0, 1)):
        event = mechanism.event(Draws(rate, 40, 1, 50, RowChange.ADDED), 3.0)
        costs = [epsilon(each, 1e-5).upper for each in event.events]
        assert epsilon(event, 1e-5).upper == min(costs) == costs[better]


def test_what_is_clipped_is_relative_to_the_best_candidate() -> None:
    """A prompt's logits may be shifted, and log-probabilities serve as well."""
    release, permit = PrivatePrediction(clip=4.0).start(EVERYBODY, 0.02), Permit(60, 0.02)
    rows = np.tile(PUBLIC, (50, 1))
    for shift in (0, 40, -300):
        assert {release.token(rows + np.float32(shift), PUBLIC, permit) for _ in range(20)} == {1}


def of_noise(sigma: float) -> ZeroConcentrated:
    """All tokens at this noise multiplier."""
    return ZeroConcentrated(rounded_up(1 / (2 * Fraction(sigma) ** 2)), paper.ICLINF_STEPS)


@pytest.mark.parametrize("row", paper.ICLINF, ids=lambda row: f"table {row[0]}, ε={row[1]}")
def test_the_printed_figures_and_never_more_noise_than_they_need(row) -> None:
    _, target, clip, prompts, temperature, printed, digit = row
    event = partial(paper.iclinf_event, clip, prompts, temperature)
    theirs = paper.solve(partial(paper.iclinf_excess, event, target), rising=clip is None)
    assert math.ceil(theirs) == printed if digit == 1 else abs(theirs - printed) <= digit / 2

    sigma = calibrate(of_noise, epsilon=target, delta=paper.ICLINF_DELTA)
    assert epsilon(of_noise(sigma), paper.ICLINF_DELTA).upper <= target
    least = integer_order_epsilon(of_noise(sigma), paper.ICLINF_DELTA).epsilon
    assert least >= target * (1 - 1e-3)
    if clip is None:
        assert theirs <= solved_clip(sigma, temperature, prompts, RowChange.ADDED) < 1.1 * theirs
    elif temperature is None:
        assert theirs >= solved_temperature(sigma, clip, prompts, RowChange.ADDED) > theirs / 1.1
    else:
        assert theirs >= sigma * clip / temperature > theirs / 1.1
