"""Certified ε at a δ, and δ at an ε, of any event.

An event is split into its zCDP steps, of which only moments are known, and the steps that have a curve. These
are composed in each direction (every step removes the unit, or every step adds it), and the result is read:
the larger ε of the directions counts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np

from dpfewshot.accounting.compose import ComposedCurve, compose
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
from dpfewshot.accounting.grid import Step, fault_of_the_accountant
from dpfewshot.accounting.pairs import dominating_pairs
from dpfewshot.accounting.renyi import moments
from dpfewshot.accounting.tilting import Goal, Tilt, choose_tilt, deviation_at, fit_window, renyi_epsilon
from dpfewshot.errors import InvalidPlan
from dpfewshot.values import as_float

T = TypeVar("T")

FINE: Final = 4e-5
"""Relative excess of a reported ε that the grid may cause."""

_ROUGH: Final = 0.02  # the same in a first look
_FAR: Final = 30.0  # ε is rarely 0 where the sum of total variations exceeds δ by this factor
_LAST_DIGITS: Final = 1e-9  # relative, by which the two bounds of one number may cross
_LOOSE: Final = 0.9  # of lower / upper: below this a finer grid improves the lower bound
_DELTA_TOLERANCE: Final = 2e-5  # relative excess of δ that the grid may cause
_SMALLER: Final = (0.5, 0.25, 0.12, 0.06)  # shares of the saddle point's order, for another reading
_REREADINGS: Final = 4
_FINER: Final = 16.0  # factor by which each reading lowers the tolerance; the spacing falls by its root
_WORTHWHILE: Final = 2e-3  # relative gain of ε that justifies one more reading
_DELTA_WORTHWHILE: Final = 1e-4  # the same for δ
_RETURNS: Final = 3
_NEAR: Final = 4.0  # log of the tolerated excess over a negligible mass that wraps round
_BELOW: Final = 0.7  # share of the last answer for which the next window is made
_FAR_BELOW: Final = 0.2  # share of the tilted mean below which an answer is read again
_MOST_DELTA: Final = 0.999  # the largest δ for which a window is made
_LEAST_LOG_DELTA: Final = -640.0
_LOG_DELTA_WIDTH: Final = 0.5
_REACHES: Final = (8.0, 25.0)  # standard deviations below the expected answer, in turn
_ROUNDING: Final = 1e-14  # relative, of the final logarithm and sum


class EpsilonBounds(NamedTuple):
    """lower ≤ ε ≤ upper for the exact ε of an event at a δ. `upper` is the certified guarantee."""

    lower: float
    upper: float


class DeltaBounds(NamedTuple):
    """lower ≤ δ ≤ upper for the exact δ of an event at an ε. `upper` is the certified guarantee."""

    lower: float
    upper: float


def epsilon(event: Event, delta: float) -> EpsilonBounds:
    """Bounds of the ε ≥ 0 of `event` at `delta`, for every relation that the event covers.

    A zCDP event states only bounds on its moments: `lower` is then that of a Gaussian with these moments.

    Args:
        event: one event or a Composition.
        delta: δ in (0, 1).

    Raises:
        InvalidPlan: delta outside its range, or an event that the accountant does not know.
    """
    return _remembered(_epsilon, event, as_float("delta", delta))


def epsilon_upper(event: Event, delta: float, tolerance: float = FINE) -> float:
    """The certified upper bound alone, on a grid that causes a relative excess of about `tolerance`."""
    return _remembered(_epsilon_upper, event, as_float("delta", delta), tolerance)


def _remembered(bound: Callable[..., T], event: Event, *numbers: float) -> T:
    """A bound that was computed before: plans of labels of one size, or of the same settings, ask again.

    Numbers that are equal may differ in their types, and NumPy computes in its own: so these are floats.
    """
    try:
        hash(event)
    except TypeError:
        bound = inspect.unwrap(bound)
    return bound(event, *numbers)


@lru_cache(maxsize=1024)
def _epsilon(event: Event, delta: float) -> EpsilonBounds:
    _check_delta(delta)
    if isinstance(event, Tightest):
        return min((epsilon(each, delta) for each in event.events), key=lambda bounds: bounds.upper)
    split = _split(event)
    if split.rho > 0:
        gaussian = split.with_gaussian()
        lower = epsilon(gaussian, delta).lower if gaussian else 0.0
        return EpsilonBounds(*_ordered("ε", lower, epsilon_upper(event, delta)))
    upper, curve = _largest_epsilon(split.directions(), delta, FINE)
    if split.has_product:
        _, curve = _largest_epsilon(split.directions(lower=True), delta, FINE)
    lower = lower_epsilon(curve, delta)
    if lower < _LOOSE * upper:
        _, curve = _largest_epsilon(split.directions(lower=True), delta, FINE / 25)
        lower = max(lower, lower_epsilon(curve, delta))
    return EpsilonBounds(*_ordered("ε", lower, upper))


@lru_cache(maxsize=1024)
def _epsilon_upper(event: Event, delta: float, tolerance: float) -> float:
    _check_delta(delta)
    if isinstance(event, Tightest):
        return min(epsilon_upper(each, delta, tolerance) for each in event.events)
    split = _split(event)
    if split.rho > 0:
        return max(moments(split.rho, steps).epsilon(delta) for steps in split.directions())
    return _largest_epsilon(split.directions(), delta, tolerance)[0]


def delta(event: Event, epsilon: float) -> DeltaBounds:
    """Bounds of the δ of `event` at `epsilon`, for every relation that the event covers.

    Args:
        event: one event or a Composition.
        epsilon: ε ≥ 0, finite.

    Raises:
        InvalidPlan: epsilon outside its range, or an event that the accountant does not know.
    """
    epsilon = as_float("epsilon", epsilon)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InvalidPlan(f"epsilon must be a finite number of at least 0, not {epsilon}")
    if isinstance(event, Tightest):
        return min((delta(each, epsilon) for each in event.events), key=lambda bounds: bounds.upper)
    split = _split(event)
    if split.rho > 0:
        gaussian = split.with_gaussian()
        lower = delta(gaussian, epsilon).lower if gaussian else 0.0
        upper = max(moments(split.rho, steps).delta(epsilon) for steps in split.directions())
        return DeltaBounds(*_ordered("δ", lower, upper))
    above = below = [_direction_delta(steps, epsilon) for steps in split.directions()]
    if split.has_product:
        below = [_direction_delta(steps, epsilon) for steps in split.directions(lower=True)]
    ordered = [_ordered("δ", low.lower, high.upper) for low, high in zip(below, above, strict=True)]
    return DeltaBounds(*map(max, zip(*ordered, strict=True)))


def _ordered(name: str, lower: float, upper: float) -> tuple[float, float]:
    """Both bounds of one number. They are computed in two ways, so their order checks both."""
    if not lower <= upper * (1 + _LAST_DIGITS):
        raise fault_of_the_accountant(
            f"the lower bound of {name}, {lower}, is above its upper bound, {upper}"
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

        With `lower`, curves of products are bounded from below.
        """
        pairs = [(dominating_pairs(each, lower=lower), each.steps) for each in self.events]
        removed, added = ([(pair[way], steps) for pair, steps in pairs] for way in (0, 1))
        return [removed] if removed == added else [removed, added]

    def with_gaussian(self) -> Composition | None:
        """The event with a Gaussian mechanism in place of its zCDP events: exactly ρ-zCDP, rounded down.

        None if that mechanism's noise is outside the accountant's range.
        """
        noise = math.nextafter((2 * self.rho) ** -0.5, math.inf) * (1 + 1e-15)
        if not LEAST_NOISE <= noise <= MOST_NOISE:
            return None
        return Composition((PoissonGaussian(1.0, noise, 1), *self.events))


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
        total = _total_variation(steps)
        if total < _FAR * delta and _direction_epsilon(steps, Goal(delta, _ROUGH), 0.0)[0] == 0:
            continue
        found = _direction_epsilon(steps, Goal(delta, tolerance), best[0])
        if found[0] > best[0]:
            best = found
    return best


# ---- one direction ----------------------------------------------------------------------------------------


def _total_variation(steps: list[Step]) -> float:
    """An upper bound of δ at ε = 0: total variation is subadditive."""
    total = 0.0
    for pair, count in steps:
        at_zero = pair.curve(np.zeros(1))
        total += count * float(at_zero.values[0] + at_zero.errors[0])
    return total * (1 + 1e-12)


def _direction_epsilon(steps: list[Step], goal: Goal, enough: float) -> tuple[float, ComposedCurve | None]:
    """A certified ε, or 0 if it is at most `enough`; and the curve that it was read from."""
    if _total_variation(steps) <= goal.delta:
        return 0.0, None
    tilt = choose_tilt(steps, goal, enough)
    if tilt is None:
        return 0.0, None
    upper, curve = _read(tilt, goal.delta)
    if 0 < upper < _FAR_BELOW * tilt.centre:
        return _reread(steps, goal, tilt, (upper, curve))
    return upper, curve


def _read(tilt: Tilt, delta: float) -> tuple[float, ComposedCurve]:
    """Compose in a window that reaches down to the answer, and read the certified ε."""
    curve = compose(tilt)
    deviation, reach = deviation_at(tilt.cumulants, tilt.order), 0.0
    share = tilt.order / tilt.saddle
    for reach in (*_REACHES, 1 + tilt.centre / deviation):
        if curve.upper()[0] > delta or curve.losses[0] <= 0:
            break
        curve = compose(fit_window(tilt.cumulants, tilt.saddle, share, delta, reach=reach))
    found = _upper_epsilon(curve, delta)
    for _ in range(_RETURNS):
        missed = (curve.tilt.answer - found) * (curve.tilt.wrap_order - curve.tilt.order)
        if missed <= _NEAR or found == 0:
            break
        # Mass from above the window wrapped round to above ε: the bound is valid, but loose.
        window = fit_window(tilt.cumulants, tilt.saddle, share, delta, reach=reach, answer=_BELOW * found)
        if window.crowding > 1:
            break
        curve = compose(window)
        found = _upper_epsilon(curve, delta)
    return min(found, renyi_epsilon(tilt.cumulants, tilt.order, delta)), curve


def _reread(
    steps: list[Step], goal: Goal, tilt: Tilt, best: tuple[float, ComposedCurve]
) -> tuple[float, ComposedCurve]:
    """Read again, on finer grids and at smaller orders: rare large losses put the mean far above the answer.

    The moment at the tilt says little about the grid's excess so far below, so the grid becomes finer until
    that no longer pays.
    """
    tolerance = goal.tolerance * best[0] / (_FAR_BELOW * tilt.centre)
    for _ in range(_REREADINGS):
        before = best[0]
        finer = choose_tilt(steps, Goal(goal.delta, tolerance)) or tilt
        for share in (finer.order / finer.saddle, *_SMALLER):
            window = fit_window(finer.cumulants, finer.saddle, share, goal.delta)
            if window.crowding > 1:
                break
            found = _read(window, goal.delta)
            if found[0] >= best[0] * (1 - goal.tolerance):
                break
            best = found
        if best[0] >= before * (1 - _WORTHWHILE):
            break
        tolerance /= _FINER
    return best


def _direction_delta(steps: list[Step], epsilon: float) -> DeltaBounds:
    """Bounds of δ at `epsilon`: finds a δ whose ε is close, and reads its curve at `epsilon` itself."""
    low, high = _LEAST_LOG_DELTA, 0.0  # δ = 1 always holds
    at = -20.0
    while high - low > _LOG_DELTA_WIDTH:
        fits = _direction_epsilon(steps, Goal(math.exp(at), _ROUGH), 0.0)[0] <= epsilon
        low, high = (low, at) if fits else (at, high)
        at = max((low + high) / 2, 2 * high - 5) if fits else (low + high) / 2
    best = DeltaBounds(0.0, math.exp(high))
    near = min(best.upper, _MOST_DELTA)
    tolerance = _DELTA_TOLERANCE
    for _ in range(_REREADINGS):
        tilt = choose_tilt(steps, Goal(near, tolerance, of_delta=True))
        if tilt is None:
            break
        before, far_below = best.upper, epsilon < _FAR_BELOW * tilt.centre
        reach = 1 + max((tilt.centre - epsilon) / deviation_at(tilt.cumulants, tilt.order), 2.0)
        for share in (tilt.order / tilt.saddle, *(_SMALLER if far_below else ())):
            window = fit_window(tilt.cumulants, tilt.saddle, share, near, reach=reach, answer=epsilon)
            found = _delta_bounds(compose(window), epsilon)
            best = DeltaBounds(max(best.lower, found.lower), min(best.upper, found.upper))
        if not far_below or best.upper >= before * (1 - _DELTA_WORTHWHILE):
            break
        tolerance /= _FINER
    return best


# ---- reading a composed curve -----------------------------------------------------------------------------


def _upper_epsilon(curve: ComposedCurve, delta: float) -> float:
    """The smallest ε ≥ 0 at which the upper bound of H is at most delta."""
    above = np.flatnonzero(~(curve.upper() <= delta))  # NaN fits no δ
    if len(above) == 0:
        return max(float(curve.losses[0]) + curve.slack, 0.0)
    last = int(above[-1])
    if last + 1 == len(curve.losses):
        return math.inf
    head = curve.heads[last + 1] * (1 + curve.relative) + curve.noise[last] + curve.missing - delta
    return max(_in_cell(curve, last, head, 1 - curve.relative), 0.0)


def lower_epsilon(curve: ComposedCurve | None, delta: float) -> float:
    """The largest ε at which the lower bound of H is at least delta, or 0."""
    if curve is None:
        return 0.0
    lower = curve.lower()
    reached = np.flatnonzero(lower >= delta)
    if len(reached) == 0:
        return 0.0
    last = int(reached[-1])
    if last + 1 == len(curve.losses):
        return max((float(curve.losses[last]) - curve.slack) * (1 - _ROUNDING), 0.0)
    shortfall = float(curve.shortfall()[last])
    head = curve.heads[last + 1] * (1 - curve.relative) - shortfall - delta
    solution = _in_cell(curve, last, head, 1 + curve.relative)
    within = max(solution - 4 * _ROUNDING * (1 + abs(solution)), float(curve.losses[last]))
    return max((within - 2 * curve.slack) * (1 - _ROUNDING), 0.0)


def _in_cell(curve: ComposedCurve, last: int, head: float, factor: float) -> float:
    """The ε with head = e^{ε - l}·tail·factor in the cell above losses[last], where l is its upper end."""
    low, high = float(curve.losses[last]), float(curve.losses[last + 1])
    tail = float(curve.tails[last + 1]) * factor
    if head <= 0 or tail <= 0:
        return (low if head <= 0 else high) + curve.slack
    solution = high + math.log(head / tail)
    return (min(max(solution + _ROUNDING * (1 + abs(solution)), low), high) + curve.slack) * (1 + _ROUNDING)


def _delta_bounds(curve: ComposedCurve, epsilon: float) -> DeltaBounds:
    """Bounds of H(epsilon)."""
    cell = int(np.searchsorted(curve.losses, epsilon, side="left"))
    if cell == 0:
        return DeltaBounds(max(float(curve.lower()[0]), 0.0), 1.0)
    if cell == len(curve.losses):
        rounded = (curve.slack + _ROUNDING * abs(epsilon)) * float(curve.heads[-1])
        return DeltaBounds(0.0, min(float(curve.missing) + rounded, 1.0))
    lost = math.exp(epsilon - curve.losses[cell]) * curve.tails[cell]
    moved = 2 * curve.slack * lost
    kept, noise = curve.heads[cell], curve.noise[cell - 1] + curve.missing
    upper = kept * (1 + curve.relative) - lost * (1 - curve.relative) + noise + moved
    lower = kept * (1 - curve.relative) - lost * (1 + curve.relative) - curve.shortfall()[cell - 1] - moved
    return DeltaBounds(min(max(float(lower), 0.0), 1.0), min(max(float(upper), 0.0), 1.0))
