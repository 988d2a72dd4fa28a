"""Private prediction: clip and temperature decide each other, and its events."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

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
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import Draws, PrivatePrediction, RowChange

PUBLIC = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))
EVERYBODY = Draws(1.0, 1, 2000, 50, RowChange.ADDED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 10.0, "temperature": 2.0}, "would fix epsilon"),
        ({"clip": 0.0}, "clip must"),
        ({"clip": -1.0}, "clip must"),
        ({"clip": 1000.5}, "clip must"),
        ({"clip": math.nan}, "clip must"),
        ({"temperature": 0.0}, "temperature must"),
        ({"temperature": math.inf}, "temperature must"),
    ],
)
def test_one_of_clip_and_temperature_is_given(settings, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        PrivatePrediction(**settings)
    assert PrivatePrediction() == PrivatePrediction(clip=10.0)
    assert PrivatePrediction(temperature=2.0).clip is None


def test_the_temperature_follows_from_the_budget() -> None:
    """ICLInf, Table 4: ε = 1, c = 10, s = 50 takes τ = 36.18."""
    mechanism = PrivatePrediction()
    sigma = calibrate(lambda noise: mechanism.event(EVERYBODY, noise), epsilon=1, delta=1e-5)
    release = mechanism.start(EVERYBODY, sigma)
    temperature = 1 / (release.rate * 50 * _core.logit_grid)
    assert float(temperature) == pytest.approx(36.18, abs=0.005)
    assert release.clip == 10


def test_the_clip_follows_from_the_budget() -> None:
    """ICLInf, Table 5: ε = 10, s = 50, τ = 2 takes c = 4.16 by their orders, 4.22 by all."""
    mechanism = PrivatePrediction(temperature=2.0)
    sigma = calibrate(lambda noise: mechanism.event(EVERYBODY, noise), epsilon=10, delta=1e-5)
    release = mechanism.start(EVERYBODY, sigma)
    assert release.clip == pytest.approx(4.2221, abs=1e-4)
    assert release.rate == Fraction(1, 100 * _core.logit_grid)


def test_a_clip_beyond_the_cores_range_is_cut() -> None:
    release = PrivatePrediction(temperature=100.0).start(EVERYBODY, 0.5)
    assert release.clip == 1000


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
