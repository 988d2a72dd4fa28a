"""Certified ε and δ of one direction: every step removes the unit, or every step adds it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dpfewshot.accounting.pld.compose import ComposedCurve, compose
from dpfewshot.accounting.pld.reading import DeltaBounds, delta_bounds, upper_epsilon
from dpfewshot.accounting.pld.saddle_point import Goal
from dpfewshot.accounting.pld.tilting import Step, choose_tilt, renyi_epsilon
from dpfewshot.accounting.pld.window import Tilt, deviation_at, fit_window

ROUGH: Final = 0.02
"""Relative excess of ε that the grid may cause in a first look."""

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


def total_variation(steps: list[Step]) -> float:
    """An upper bound of δ at ε = 0: total variation is subadditive."""
    total = 0.0
    for pair, count in steps:
        at_zero = pair.curve(np.zeros(1))
        total += count * float(at_zero.values[0] + at_zero.errors[0])
    return total * (1 + 1e-12)


def direction_epsilon(steps: list[Step], goal: Goal, enough: float) -> tuple[float, ComposedCurve | None]:
    """A certified ε, or 0 if it is at most `enough`; and the curve that it was read from."""
    if total_variation(steps) <= goal.delta:
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
    found = upper_epsilon(curve, delta)
    for _ in range(_RETURNS):
        missed = (curve.tilt.answer - found) * (curve.tilt.wrap_order - curve.tilt.order)
        if missed <= _NEAR or found == 0:
            break
        # Mass from above the window wrapped round to above ε: the bound is valid, but loose.
        window = fit_window(tilt.cumulants, tilt.saddle, share, delta, reach=reach, answer=_BELOW * found)
        if window.crowding > 1:
            break
        curve = compose(window)
        found = upper_epsilon(curve, delta)
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


def direction_delta(steps: list[Step], epsilon: float) -> DeltaBounds:
    """Bounds of δ at `epsilon`: finds a δ whose ε is close, and reads its curve at `epsilon` itself."""
    low, high = _LEAST_LOG_DELTA, 0.0  # δ = 1 always holds
    at = -20.0
    while high - low > _LOG_DELTA_WIDTH:
        fits = direction_epsilon(steps, Goal(math.exp(at), ROUGH), 0.0)[0] <= epsilon
        low, high = (low, at) if fits else (at, high)
        at = max((low + high) / 2, 2 * high - 5) if fits else (low + high) / 2
    best = DeltaBounds(0.0, math.exp(high))
    near = min(best.upper, _MOST_DELTA)
    tolerance = _DELTA_TOLERANCE
    for _ in range(_REREADINGS):
        tilt = choose_tilt(steps, Goal(near, tolerance, of_delta=True))
        if tilt is None:
            break
        before = best.upper
        best = _delta_reading(tilt, epsilon, best)
        if epsilon >= _FAR_BELOW * tilt.centre or best.upper >= before * (1 - _DELTA_WORTHWHILE):
            break
        tolerance /= _FINER
    return best


def _delta_reading(tilt: Tilt, epsilon: float, best: DeltaBounds) -> DeltaBounds:
    deviation = deviation_at(tilt.cumulants, tilt.order)
    reach = 1 + max((tilt.centre - epsilon) / deviation, 2.0)
    shares = (tilt.order / tilt.saddle, *(_SMALLER if epsilon < _FAR_BELOW * tilt.centre else ()))
    for share in shares:
        window = fit_window(tilt.cumulants, tilt.saddle, share, tilt.scale, reach=reach, answer=epsilon)
        found = delta_bounds(compose(window), epsilon)
        best = DeltaBounds(max(best.lower, found.lower), min(best.upper, found.upper))
    return best
