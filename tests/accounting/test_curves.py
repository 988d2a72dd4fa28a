"""Every pair's curve against many digits, and the refusal of functions that are no curve.

A curve may be off by no more than it says, over the whole range that events accept: at both ends of the
losses, one float beside them, and far outside."""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import dpfewshot
from dpfewshot.accounting import PoissonBoundedRange, PoissonGaussian, bounds, epsilon
from dpfewshot.accounting.compose import discretisation_gaps
from dpfewshot.accounting.curves import (
    Added,
    Curve,
    DominatingPair,
    GaussianPair,
    RangePair,
    Removed,
    Replaced,
    responses,
)
from dpfewshot.accounting.events import LEAST_NOISE, MOST_NOISE
from dpfewshot.accounting.grid import curve_on_grid, discretise
from dpfewshot.accounting.pairs import dominating_pairs
from dpfewshot.errors import AccountingError
from tests.support.exact_curves import Exact, bounded_range, gaussian, replaced_gaussian, response

RATES = st.floats(-4.5, 0).map(lambda exponent: 10**exponent)
NOISES = st.floats(math.log(0.35), math.log(40)).map(math.exp)
UNDERFLOW = 1e-305


class Case(NamedTuple):
    """A pair, its curve at many digits, and the ε between which its losses are nearly all."""

    name: str
    pair: DominatingPair
    exact: Exact
    edges: tuple[float, ...]


def cases(count: int, seed: int) -> Iterator[Case]:
    source = random.Random(seed)
    for _ in range(count):
        q = source.choice([10 ** source.uniform(-9, 0), 1 - 10 ** source.uniform(-9, -1), source.random()])
        sigma = math.exp(source.uniform(math.log(LEAST_NOISE), math.log(MOST_NOISE)))
        width = source.choice([10 ** source.uniform(-5, 2.3), source.uniform(0, 200)])
        rest = math.log1p(-q) if q < 1 else 0.0
        yield from (
            Case("remove", Removed(q, GaussianPair(sigma)), gaussian(q, sigma, removed=True), (rest,)),
            Case("add", Added(q, GaussianPair(sigma)), gaussian(q, sigma, removed=False), (-rest,)),
            Case("replace", Replaced(Removed(q, GaussianPair(sigma))), replaced_gaussian(q, sigma), (rest,)),
            Case("gaussian", GaussianPair(sigma), gaussian(1.0, sigma, removed=True), ()),
            Case("range", RangePair(width), bounded_range(1.0, width, removed=True), ()),
            Case("removed response", responses(q, width)[0], response(q, width, removed=True), ()),
            Case("added response", responses(q, width)[1], response(q, width, removed=False), ()),
            Case("remove range", Removed(q, RangePair(width)), bounded_range(q, width, removed=True), ()),
            Case("add range", Added(q, RangePair(width)), bounded_range(q, width, removed=False), ()),
        )


def places(case: Case, source: random.Random) -> np.ndarray:
    """Epsilons between the ends, beside them, and far below."""
    low, high = case.pair.loss_range(1e-12, 1e-16)
    found = [source.uniform(low, high), -(10 ** source.uniform(-3, 2.8))]
    for edge in (low, high, 0.0, *case.edges):
        away = (high - low) * source.choice([-1, 1]) * 10 ** source.uniform(-17, -1)
        found += [edge, edge + away, math.nextafter(edge, -math.inf), math.nextafter(edge, math.inf)]
    return np.sort(np.array(found))


def worst_ratio(case: Case, source: random.Random) -> float:
    """The largest error beside the one stated."""
    at = places(case, source)
    values, errors, _ = case.pair.curve(at)
    found = [abs(case.exact(float(e)) - v) for e, v in zip(at, values, strict=True)]
    return max(
        float(f / (e + UNDERFLOW)) if f > UNDERFLOW else 0.0 for f, e in zip(found, errors, strict=True)
    )


@pytest.mark.parametrize(("count", "seed"), [(80, 1), pytest.param(5_000, 2, marks=pytest.mark.soak)])
def test_every_curve_is_within_its_stated_error(count: int, seed: int) -> None:
    source = random.Random(seed)
    for case in cases(count, seed):
        assert worst_ratio(case, source) <= 1, case


@dataclass(frozen=True)
class Changed:
    """A pair with another curve."""

    pair: DominatingPair
    change: Any
    lattice: None = None

    def curve(self, epsilons: np.ndarray) -> Curve:
        return self.change(epsilons, self.pair.curve(epsilons))

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        return self.pair.loss_range(below, above)


def test_the_check_of_errors_catches_one_in_a_million() -> None:
    def less(_: np.ndarray, curve: Curve) -> Curve:
        return curve._replace(values=curve.values * (1 - 1e-6))

    case = Case("low", Changed(Removed(0.1, GaussianPair(1.0)), less), gaussian(0.1, 1.0, removed=True), ())
    assert worst_ratio(case, random.Random(1)) > 1


PAIR = Removed(0.1, GaussianPair(1.0))
LOSSES = np.arange(-40, 41) * 0.05
FAULTS = {
    "is below 1 - e^ε": lambda at, curve: curve._replace(values=np.where(at < 0, 0.1, curve.values)),
    "is increasing": lambda at, curve: curve._replace(values=curve.values + np.where(at > 1, 0.01, 0.0)),
    "is not convex": lambda _, curve: curve._replace(values=curve.values + 1e-3 * at_point(30)),
    "is above its chord": lambda _, curve: curve._replace(values=curve.values + 0.05 * at_point(0)),
    "certifies nothing": lambda _, curve: curve._replace(values=curve.values * math.nan),
}


def at_point(index: int) -> np.ndarray:
    return np.where(np.arange(len(LOSSES)) == index, 1.0, 0.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_curve_is_refused(fault: str) -> None:
    with pytest.raises(AccountingError, match=re.escape(fault)):
        curve_on_grid(Changed(PAIR, FAULTS[fault]), LOSSES, 0.0, 0.05)


def test_floats_of_grid_points_count() -> None:
    """The truth may lie at either end of what a grid point's float stands for."""
    pair, _ = responses(0.3, 2.0)
    h, offset = 0.1, 1e3 + pair.high % 0.1  # a large shift: its multiples are rounded the more
    losses = h * np.arange(-10_020, -9_980) + offset
    curve = curve_on_grid(pair, losses, offset, h)
    exact = response(0.3, 2.0, removed=True)
    for loss, value, error in zip(losses, curve.values, curve.errors, strict=True):
        for away in (-2e-13, 2e-13):
            assert abs(float(exact(float(loss) + away)) - value) <= error + 1e-18


def test_the_curve_that_broke_the_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was about q where every loss is above ε, and 1 - e^ε is the truth: ε was 0.02 in place of 2315."""

    def about_q(at: np.ndarray, curve: Curve) -> Curve:
        return curve._replace(values=np.where(at < math.log1p(-1e-5), 1e-5, curve.values))

    changed = Changed(Removed(1e-5, GaussianPair(0.025)), about_q)
    monkeypatch.setattr(bounds, "dominating_pairs", lambda *_, **__: (changed, changed))
    with pytest.raises(AccountingError):
        epsilon(PoissonGaussian(1e-5, 0.025, 2000), 1e-6)


def test_bounds_that_cross_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "lower_epsilon", lambda *_: 1e9)
    with pytest.raises(dpfewshot.AccountingError, match="lower bound"):
        epsilon(PoissonGaussian(0.1, 1.0, 5), 1e-5)


@pytest.mark.slow
@given(RATES, NOISES, st.sampled_from([1e-3, 1e-2, 0.1]))
@settings(max_examples=25)
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


@given(RATES, st.floats(0.3, 10))
@settings(max_examples=25)
def test_the_symmetrised_curve_is_the_curve_of_a_pair(q: float, sigma: float) -> None:
    """Convex and decreasing in e^ε, 1 at 0, symmetric, and above both directions of one step."""
    pair = Replaced(Removed(q, GaussianPair(sigma)))
    at = np.linspace(-6, 6, 2001)
    curve = pair.curve(at)
    slopes = np.diff(curve.values) / np.diff(np.exp(at))
    assert np.all(np.diff(slopes) >= -1e-9)
    assert np.all(slopes <= 1e-12)
    assert np.allclose(curve.values[::-1], 1 - np.exp(-at) + np.exp(-at) * curve.values, atol=1e-12)
    assert np.all(curve.values + curve.errors >= Removed(q, GaussianPair(sigma)).curve(at).values - 1e-15)
    away = at[np.abs(at) > 1e-3]
    numeric = (pair.curve(away - 1e-5).values - pair.curve(away + 1e-5).values) / 2e-5
    assert np.allclose(pair.curve(away).scaled_mass, numeric, rtol=1e-4, atol=1e-7)


ranges = st.floats(0.01, 12)
GRID = np.linspace(-14, 14, 561)


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([np.maximum(p - math.exp(at) * q, 0).sum() for at in GRID])


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@pytest.mark.slow
@given(ranges, st.one_of(st.just(1.0), st.floats(0.001, 1.0)), st.integers(2, 6), st.integers(0, 2**32))
def test_every_softmax_draw_is_below_its_curve(width: float, q: float, outcomes: int, seed: int) -> None:
    """Random scores and changes of the given range, at the extremes and between, both directions."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(0, 3, outcomes)
    ends, between = generator.integers(0, 2, outcomes), generator.random(outcomes)
    change = np.where(generator.random(outcomes) < 0.5, ends, between)
    without, with_unit = softmax(scores), softmax(scores + width * change)
    mixed = (1 - q) * without + q * with_unit
    for curve, found in (
        (Removed(q, RangePair(width)).curve(GRID), hockey_stick(mixed, without)),
        (Added(q, RangePair(width)).curve(GRID), hockey_stick(without, mixed)),
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
    assert Removed(1.0, RangePair(width)).curve(at).values[0] == pytest.approx(reached, rel=1e-9)
    narrower = Removed(1.0, RangePair(0.9 * width)).curve(at).values[0]
    assert narrower < reached, "the control: a range of a tenth less is exceeded"


@given(ranges, st.floats(0.001, 0.999), st.floats(-0.98, 0.98))
def test_the_mass_is_the_slope_and_the_pieces_join(width: float, q: float, place: float) -> None:
    for pair in (Removed(q, RangePair(width)), Added(q, RangePair(width))):
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
    for pair in (Removed(q, RangePair(width)), Added(q, RangePair(width))):
        low, high = pair.loss_range(0, 0)
        curve = pair.curve(np.linspace(low, high, 999))
        assert np.isfinite(curve.errors).all()
        assert curve.errors.max() < 1e-12
    bounds = epsilon(PoissonBoundedRange(q, width, 3), 1e-5)
    assert 0 <= bounds.lower <= bounds.upper <= 3 * width * (1 + 1e-6)


@pytest.mark.parametrize("pair", [RangePair(0.7), RangePair(9.0), GaussianPair(0.4), GaussianPair(3.0)])
def test_a_pair_without_sampling_is_its_own_reverse(pair: DominatingPair) -> None:
    """H(B, A; ε) = 1 - e^ε + e^ε·H(A, B; -ε), which sampling relies on."""
    at = GRID[np.abs(GRID) < 9]
    curve = pair.curve(at)
    assert np.allclose(curve.values, 1 - np.exp(at) + np.exp(at) * curve.values[::-1], atol=1e-11)
