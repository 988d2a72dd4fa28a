"""Certified ε at a δ, and δ at an ε, of any event."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from dpfewshot.accounting.events import (
    LEAST_NOISE,
    MOST_NOISE,
    Composition,
    Event,
    PoissonGaussian,
    PoissonProduct,
    Tightest,
    ZeroConcentrated,
    flattened,
)
from dpfewshot.accounting.pairs.registry import dominated_pairs, dominating_pairs
from dpfewshot.accounting.pld.compose import ComposedCurve
from dpfewshot.accounting.pld.direction import ROUGH, direction_delta, direction_epsilon, total_variation
from dpfewshot.accounting.pld.reading import DeltaBounds, EpsilonBounds, lower_epsilon
from dpfewshot.accounting.pld.saddle_point import Goal
from dpfewshot.accounting.pld.tilting import Step
from dpfewshot.accounting.renyi import moment_delta, moment_epsilon, moments
from dpfewshot.errors import AccountingError, InvalidPlan

FINE: Final = 4e-5
"""Relative excess of a reported ε that the grid may cause."""

_FAR: Final = 30.0  # ε is rarely 0 where the sum of total variations exceeds δ by this factor
_LAST_DIGITS: Final = 1e-9  # relative, by which the two bounds of one number may cross
_LOOSE: Final = 0.9  # of lower / upper: below this a finer grid improves the lower bound


def epsilon(event: Event, delta: float) -> EpsilonBounds:
    """Bounds of the ε ≥ 0 of `event` at `delta`, for every relation that the event covers.

    A zCDP event states only bounds on its moments: `lower` is then that of a Gaussian with these moments.

    Args:
        event: one event or a Composition.
        delta: δ in (0, 1).

    Raises:
        InvalidPlan: delta outside its range, or an event that the accountant does not know.
    """
    _check_delta(delta)
    if isinstance(event, Tightest):
        return min((epsilon(each, delta) for each in event.events), key=lambda bounds: bounds.upper)
    split = _split(event)
    if split.rho > 0:
        lower = split.with_gaussian(lambda event: epsilon(event, delta).lower)
        upper = epsilon_upper(event, delta)
        return EpsilonBounds(*_ordered("ε", lower, upper))
    upper, curve = _largest_epsilon(split.directions(), delta, FINE)
    if split.has_product:
        _, curve = _largest_epsilon(split.directions(lower=True), delta, FINE)
    lower = lower_epsilon(curve, delta)
    if lower < _LOOSE * upper:
        _, curve = _largest_epsilon(split.directions(lower=True), delta, FINE / 25)
        lower = max(lower, lower_epsilon(curve, delta))
    return EpsilonBounds(*_ordered("ε", lower, upper))


def epsilon_upper(event: Event, delta: float, tolerance: float = FINE) -> float:
    """The certified upper bound alone, on a grid that causes a relative excess of about `tolerance`."""
    _check_delta(delta)
    if isinstance(event, Tightest):
        return min(epsilon_upper(each, delta, tolerance) for each in event.events)
    split = _split(event)
    if split.rho > 0:
        return max(moment_epsilon(moments(split.rho, steps), delta) for steps in split.directions())
    return _largest_epsilon(split.directions(), delta, tolerance)[0]


def delta(event: Event, epsilon: float) -> DeltaBounds:
    """Bounds of the δ of `event` at `epsilon`, for every relation that the event covers.

    Args:
        event: one event or a Composition.
        epsilon: ε ≥ 0, finite.

    Raises:
        InvalidPlan: epsilon outside its range, or an event that the accountant does not know.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InvalidPlan(f"epsilon must be a finite number of at least 0, not {epsilon}")
    if isinstance(event, Tightest):
        return min((delta(each, epsilon) for each in event.events), key=lambda bounds: bounds.upper)
    split = _split(event)
    if split.rho > 0:
        lower = split.with_gaussian(lambda event: delta(event, epsilon).lower)
        upper = max(moment_delta(moments(split.rho, steps), epsilon) for steps in split.directions())
        return DeltaBounds(*_ordered("δ", lower, upper))
    found = [direction_delta(steps, epsilon) for steps in split.directions()]
    below = found
    if split.has_product:
        below = [direction_delta(steps, epsilon) for steps in split.directions(lower=True)]
    ordered = [_ordered("δ", low.lower, high.upper) for low, high in zip(below, found, strict=True)]
    return DeltaBounds(
        max((lower for lower, _ in ordered), default=0.0), max((upper for _, upper in ordered), default=0.0)
    )


def _ordered(name: str, lower: float, upper: float) -> tuple[float, float]:
    """Both bounds of one number. They are computed in two ways, so their order checks both.

    Raises:
        AccountingError: the lower bound exceeds the upper one by more than the last digits.
    """
    if not lower <= upper * (1 + _LAST_DIGITS):
        raise AccountingError(
            f"the lower bound of {name}, {lower}, is above its upper bound, {upper}: this is a fault of the "
            "accountant, which certifies nothing here; please report the event: it holds public numbers only"
        )
    return min(lower, upper), upper


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InvalidPlan(f"delta must lie between 0 and 1, not {delta}")


class _Split(NamedTuple):
    """An event by what is known of it: Σ steps·ρ of its zCDP events, and the events that have a curve."""

    rho: float
    events: tuple[Event, ...]

    @property
    def has_product(self) -> bool:
        """Whether the pairs of some event are known through bounds alone."""
        return any(isinstance(event, PoissonProduct) for event in self.events)

    def directions(self, *, lower: bool = False) -> list[list[Step]]:
        """The steps with the unit removed and with it added; one list where both are the same.

        Args:
            lower: whether to bound the curves of products from below.
        """
        pairs_of = dominated_pairs if lower else dominating_pairs
        pairs = [pairs_of(each) for each in self.events]
        counts = [each.steps for each in self.events]
        removed = list(zip((pair[0] for pair in pairs), counts, strict=True))
        added = list(zip((pair[1] for pair in pairs), counts, strict=True))
        return [removed] if removed == added else [removed, added]

    def with_gaussian(self, lower: Callable[[Event], float]) -> float:
        """`lower` with a Gaussian mechanism in place of the zCDP events: exactly ρ-zCDP, rounded down.

        0 if that mechanism's noise is outside the accountant's range.
        """
        noise = math.nextafter((2 * self.rho) ** -0.5, math.inf) * (1 + 1e-15)
        if not LEAST_NOISE <= noise <= MOST_NOISE:
            return 0.0
        return lower(Composition((PoissonGaussian(1.0, noise, 1), *self.events)))


def _split(event: Event) -> _Split:
    leaves = flattened(event)
    if any(isinstance(leaf, Tightest) for leaf in leaves):
        raise InvalidPlan("a Tightest cannot be part of a composition: compose each of its descriptions")
    rho = math.fsum(leaf.steps * leaf.rho for leaf in leaves if isinstance(leaf, ZeroConcentrated))
    with_curve = tuple(leaf for leaf in leaves if not isinstance(leaf, ZeroConcentrated))
    return _Split(rho * (1 + 1e-15) if rho else 0.0, with_curve)


def _largest_epsilon(
    directions: list[list[Step]], delta: float, tolerance: float
) -> tuple[float, ComposedCurve | None]:
    """The larger upper bound of the directions, and the curve that it was read from."""
    best: tuple[float, ComposedCurve | None] = 0.0, None
    for steps in directions:
        total = total_variation(steps)
        if total < _FAR * delta and direction_epsilon(steps, Goal(delta, ROUGH), 0.0)[0] == 0:
            continue
        found = direction_epsilon(steps, Goal(delta, tolerance), best[0])
        if found[0] > best[0]:
            best = found
    return best
