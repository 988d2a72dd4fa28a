"""From a noise multiplier to rates and clips: exponents never change by more than the event states."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot import _core
from dpfewshot.accounting import PoissonBoundedRange, PoissonRandomizedResponse, Tightest, ZeroConcentrated
from dpfewshot.exact import rounded_down, rounded_up
from dpfewshot.mechanisms import (
    Draws,
    InvisibleInk,
    PrivatePrediction,
    ReportNoisyMax,
    RowChange,
    SparseVector,
)
from tests.support import inside

multipliers = st.floats(2.0**-6, 2.0**40)
counts = st.integers(1, 5000)
clips = st.floats(0, 1000, exclude_min=True)
temperatures = st.one_of(st.floats(1e-3, 1e3), st.floats(0.1, 10))
changes = st.sampled_from(RowChange)


def draws(prompts: int, row_change: RowChange, tokens: int = 1) -> Draws:
    return Draws(1.0, 1, tokens, prompts, row_change)


def range_of_exponents(release, row_change: RowChange) -> Fraction:
    """Of integers in ±floor(c·grid), one row that comes or goes or turns into another, times the rate."""
    bound = math.floor(Fraction(release.clip) * _core.logit_grid)
    return 2 * row_change.rows * bound * release.rate


def claimed(event: Tightest) -> tuple[Fraction, Fraction]:
    """ε₀ and ρ of a token."""
    pure, concentrated = event.events
    assert isinstance(pure, PoissonBoundedRange | PoissonRandomizedResponse)
    assert isinstance(concentrated, ZeroConcentrated)
    return Fraction(pure.epsilon), Fraction(concentrated.rho)


@given(multipliers, counts, changes)
def test_report_noisy_max(sigma: float, prompts: int, row_change: RowChange) -> None:
    mechanism, plan = ReportNoisyMax(), draws(prompts, row_change)
    largest_change = row_change.rows * _core.grid * mechanism.start(plan, sigma).rate
    epsilon = Fraction(mechanism.event(plan, sigma).epsilon)
    assert largest_change == 1 / Fraction(sigma)
    assert largest_change <= epsilon <= largest_change * (1 + Fraction(1, 2**50))


@given(multipliers, counts, changes, clips)
def test_private_prediction_with_a_clip(
    sigma: float, prompts: int, row_change: RowChange, clip: float
) -> None:
    mechanism, plan = PrivatePrediction(clip=clip), draws(prompts, row_change)
    release = mechanism.start(plan, sigma)
    epsilon, rho = claimed(mechanism.event(plan, sigma))
    width = range_of_exponents(release, row_change)
    assert release.clip == clip
    assert width <= 2 / Fraction(sigma) <= epsilon
    assert width**2 / 8 <= rho
    assert width >= epsilon * (1 - Fraction(2) / math.ceil(clip * _core.logit_grid) - Fraction(1, 2**40))


@pytest.mark.parametrize(
    "make", [lambda t: PrivatePrediction(clip=None, temperature=t), lambda t: InvisibleInk(temperature=t)]
)
@given(multipliers, counts, changes, temperatures)
def test_a_solved_clip(make, sigma: float, prompts: int, row_change: RowChange, temperature: float) -> None:
    mechanism, plan = make(temperature), draws(prompts, row_change)
    release = mechanism.start(plan, sigma)
    epsilon, rho = claimed(mechanism.event(plan, sigma))
    assert release.rate == 1 / (Fraction(temperature) * prompts * _core.logit_grid)
    assert 0 < release.clip <= 1000
    assert range_of_exponents(release, row_change) <= 2 / Fraction(sigma) <= epsilon
    assert range_of_exponents(release, row_change) ** 2 / 8 <= rho
    if release.clip < 1000:
        exact = Fraction(temperature) * prompts / (row_change.rows * Fraction(sigma))
        assert Fraction(release.clip) <= exact <= Fraction(math.nextafter(release.clip, math.inf))


@given(multipliers, counts, changes, st.floats(0.01, 0.99), st.floats(0, 2, exclude_min=True))
def test_sparse_vector(sigma: float, prompts: int, row_change: RowChange, share: float, at: float) -> None:
    """A run shifts the threshold's noise by Δ and the last query's, of half the rate, by 2Δ."""
    mechanism, plan = SparseVector(ReportNoisyMax(), at, 1, share), draws(prompts, row_change, tokens=2)
    test = mechanism.start(plan, sigma).test
    sensitivity = row_change.rows * _core.grid
    rate, threshold = inside.exponential_rate(test), inside.integer_threshold(test)
    cost = sensitivity * rate + 2 * sensitivity * rate / 2
    private, tests = mechanism.event(plan, sigma).events
    assert private.epsilon >= 1 / Fraction(sigma)
    assert cost <= Fraction(tests.epsilon) <= cost * (1 + Fraction(1, 2**50))
    assert tests.epsilon**2 / (tests.epsilon**2 + sigma**-2) == pytest.approx(share, rel=1e-9)
    assert threshold <= Fraction(at) * prompts * _core.grid < threshold + 1


@given(st.fractions(min_value=Fraction(1, 10**9)))
def test_rounding_goes_to_its_side_and_no_further(value: Fraction) -> None:
    up, down = rounded_up(value), rounded_down(value)
    assert Fraction(math.nextafter(up, 0)) < value <= Fraction(up)
    assert Fraction(down) <= value < Fraction(math.nextafter(down, math.inf))


@pytest.mark.parametrize(("wrong", "right"), list(itertools.permutations(RowChange)))
def test_control_the_rate_of_the_other_change_is_not_what_the_event_states(
    wrong: RowChange, right: RowChange
) -> None:
    """A monotone rate for replaced rows costs twice what is stated; the other way round, noise is wasted."""
    for mechanism in (ReportNoisyMax(), PrivatePrediction(), InvisibleInk()):
        release = mechanism.start(draws(20, wrong), 3.0)
        if isinstance(mechanism, ReportNoisyMax):
            stated, found = Fraction(1, 3), right.rows * _core.grid * release.rate
        else:
            stated, found = Fraction(2, 3), range_of_exponents(release, right)
        assert found / stated == pytest.approx(2 if wrong is RowChange.ADDED else 0.5, rel=1e-5)
