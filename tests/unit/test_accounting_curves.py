"""Every pair's curve against many digits, and the refusal of functions that are no curve.

A curve may be off by no more than it says, over the whole range that events accept: at both ends of the
losses, one float beside them, and far outside.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import dpfewshot
from dpfewshot.accounting import PoissonGaussian, bounds, epsilon
from dpfewshot.accounting.curves import (
    AddBoundedRange,
    AddGaussian,
    Curve,
    DominatingPair,
    RemoveBoundedRange,
    RemoveGaussian,
    ReplaceGaussian,
    added_response,
    removed_response,
)
from dpfewshot.accounting.events import LEAST_NOISE, MOST_NOISE
from dpfewshot.accounting.grid import curve_on_grid
from dpfewshot.errors import AccountingError
from tests.support.exact_curves import Exact, bounded_range, gaussian, replaced_gaussian, response

SETTINGS = 80
SOAKED = 5_000
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
            Case("remove", RemoveGaussian(q, sigma), gaussian(q, sigma, removed=True), (rest,)),
            Case("add", AddGaussian(q, sigma), gaussian(q, sigma, removed=False), (-rest,)),
            Case("replace", ReplaceGaussian(q, sigma), replaced_gaussian(q, sigma), (rest,)),
            Case("removed response", removed_response(q, width), response(q, width, removed=True), ()),
            Case("added response", added_response(q, width), response(q, width, removed=False), ()),
            Case("remove range", RemoveBoundedRange(q, width), bounded_range(q, width, removed=True), ()),
            Case("add range", AddBoundedRange(q, width), bounded_range(q, width, removed=False), ()),
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


def hold_curves(count: int, seed: int) -> None:
    source = random.Random(seed)
    for case in cases(count, seed):
        assert worst_ratio(case, source) <= 1, case


def test_every_curve_is_within_its_stated_error() -> None:
    hold_curves(SETTINGS, seed=1)


@pytest.mark.soak
def test_every_curve_is_within_its_stated_error_in_many_settings() -> None:
    hold_curves(SOAKED, seed=2)


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

    case = Case("low", Changed(RemoveGaussian(0.1, 1.0), less), gaussian(0.1, 1.0, removed=True), ())
    assert worst_ratio(case, random.Random(1)) > 1


# ---- what no curve can be -------------------------------------------------------------------------------

PAIR = RemoveGaussian(0.1, 1.0)
LOSSES = np.arange(-40, 41) * 0.05

FAULTS = {
    "below 1 - e^ε": lambda at, curve: curve._replace(values=np.where(at < 0, 0.1, curve.values)),
    "increasing": lambda at, curve: curve._replace(values=curve.values + np.where(at > 1, 0.01, 0.0)),
    "not convex": lambda _, curve: curve._replace(values=curve.values + 1e-3 * at_point(30)),
    "above its chord": lambda _, curve: curve._replace(values=curve.values + 0.05 * at_point(0)),
}


def at_point(index: int) -> np.ndarray:
    return np.where(np.arange(len(LOSSES)) == index, 1.0, 0.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_curve_is_refused(fault: str) -> None:
    with pytest.raises(AccountingError, match=re.escape(f"is {fault}")):
        curve_on_grid(Changed(PAIR, FAULTS[fault]), LOSSES, 0.0, 0.05)


def test_what_is_not_a_number_is_refused() -> None:
    changed = Changed(PAIR, lambda _, curve: curve._replace(values=curve.values * math.nan))
    with pytest.raises(AccountingError):
        curve_on_grid(changed, LOSSES, 0.0, 0.05)


def test_the_curve_that_broke_the_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was about q where every loss is above ε, and 1 - e^ε is the truth: ε was 0.02 in place of 2315."""

    def about_q(at: np.ndarray, curve: Curve) -> Curve:
        return curve._replace(values=np.where(at < math.log1p(-1e-5), 1e-5, curve.values))

    changed = Changed(RemoveGaussian(1e-5, 0.025), about_q)
    monkeypatch.setattr(bounds, "dominating_pairs", lambda _: (changed, changed))
    with pytest.raises(AccountingError):
        epsilon(PoissonGaussian(1e-5, 0.025, 2000), 1e-6)


def test_bounds_that_cross_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "lower_epsilon", lambda *_: 1e9)
    with pytest.raises(dpfewshot.AccountingError, match="lower bound"):
        epsilon(PoissonGaussian(0.1, 1.0, 5), 1e-5)


def test_floats_of_grid_points_count() -> None:
    """The truth may lie at either end of what a grid point's float stands for."""
    pair = removed_response(0.3, 2.0)
    h, offset = 0.1, 1e3 + pair.high % 0.1  # a large shift: its multiples are rounded the more
    losses = h * np.arange(-10_020, -9_980) + offset
    curve = curve_on_grid(pair, losses, offset, h)
    exact = response(0.3, 2.0, removed=True)
    for loss, value, error in zip(losses, curve.values, curve.errors, strict=True):
        for away in (-2e-13, 2e-13):
            assert abs(float(exact(float(loss) + away)) - value) <= error + 1e-18
