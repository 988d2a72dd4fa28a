"""The least noise whose certified ε fits a privacy target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dpfewshot.accounting.bounds import FINE, epsilon_upper
from dpfewshot.accounting.events import LEAST_NOISE, Event
from dpfewshot.errors import InvalidPlan

MOST_NOISE: Final = 2.0**40
"""Range of the search: noise multipliers of a token, of which one draw may hold many."""

_COARSE: Final = 2e-3  # relative excess of ε while the search is far from the target
_CLOSE_ENOUGH: Final = 5e-5  # relative distance of ε below its target
_NARROW_ENOUGH: Final = 1e-6  # width of the bracket in log σ
_LEAST_EXCESS: Final = 1e-300
_EVALUATIONS: Final = 60
_STALL: Final = 4  # every fourth turn halves the bracket in place of interpolating


@dataclass(frozen=True, slots=True)
class _Bracket:
    """A log σ that is too small and one that fits, each with log(ε / target) there."""

    small: float
    excess: float
    fits: float
    slack: float

    def proposal(self) -> float:
        """The next log σ: interpolated, a little into the fitting side, or the middle where that fails."""
        width = self.fits - self.small
        if not (math.isfinite(self.excess) and math.isfinite(self.slack)):
            return self.small + width / 2
        share = (self.excess + _CLOSE_ENOUGH / 2) / (self.excess - self.slack)
        return self.small + width * min(max(share, 0.02), 0.98)


def calibrate(event_at: Callable[[float], Event], *, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier σ at which `event_at(σ)` is certified (epsilon, delta)-DP.

    The returned σ satisfies `epsilon(event_at(σ), delta).upper <= epsilon` by construction. A σ smaller by
    a relative 10⁻⁴ or so does not fit, unless σ is LEAST_NOISE.

    Args:
        event_at: the event at a noise multiplier; more noise must not cost more. If it raises InvalidPlan for
            a multiplier, that multiplier counts as too small.
        epsilon: the target, ε > 0, finite.
        delta: the target, 0 < δ < 1.

    Raises:
        InvalidPlan: a target outside its range, or no noise up to MOST_NOISE reaches it.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InvalidPlan(f"epsilon must be a positive number, not {epsilon}")

    def excess_at(tolerance: float) -> Callable[[float], float]:
        """log(ε / target) at a log σ, on a grid of this tolerance: positive where σ does not fit."""

        def excess(log_sigma: float) -> float:
            try:
                event = event_at(_noise(log_sigma))
            except InvalidPlan:
                if log_sigma >= math.log(MOST_NOISE):
                    raise  # nothing fits, and this error says why
                return math.inf
            spent = epsilon_upper(event, delta, tolerance)
            if not math.isfinite(spent):  # a coarse grid may leave a mass above δ beyond it
                spent = epsilon_upper(event, delta, FINE)
            found = math.log(spent / epsilon) if spent > 0 else -math.inf
            return max(found, _LEAST_EXCESS) if spent > epsilon else min(found, 0.0)

        return excess

    coarse = _bracket(excess_at(_COARSE), 0.0, math.log(2.0))
    coarse = _narrow(excess_at(_COARSE), coarse, _COARSE)
    fine = _bracket(excess_at(FINE), coarse.fits, 2 * _COARSE)
    return _noise(_narrow(excess_at(FINE), fine, _CLOSE_ENOUGH).fits)


def _noise(log_sigma: float) -> float:
    return min(max(math.exp(log_sigma), LEAST_NOISE), MOST_NOISE)


def _bracket(excess: Callable[[float], float], start: float, step: float) -> _Bracket:
    """Walk from `start` in growing steps until the last two points enclose the target."""
    at, value = start, excess(start)
    lowest, highest = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    direction = 1.0 if value > 0 else -1.0
    for _ in range(_EVALUATIONS):
        if value <= 0 and at <= lowest:
            return _Bracket(at, value, at, value)
        if value > 0 and at >= highest:
            raise InvalidPlan(f"no noise multiplier up to {MOST_NOISE:.3g} reaches this epsilon and delta")
        following = min(max(at + direction * step, lowest), highest)
        following_value = excess(following)
        if (following_value > 0) != (value > 0):
            (small, over), (fits, under) = sorted([(at, value), (following, following_value)])
            return _Bracket(small, over, fits, under)
        at, value, step = following, following_value, step * 1.6
    raise InvalidPlan("epsilon does not fall as the noise multiplier grows")


def _narrow(excess: Callable[[float], float], bracket: _Bracket, close: float) -> _Bracket:
    """Shrink the bracket until its fitting end is close to the target."""
    for turn in range(_EVALUATIONS):
        if bracket.slack >= -close or bracket.fits - bracket.small <= _NARROW_ENOUGH:
            break
        stalled = turn % _STALL == _STALL - 1
        at = (bracket.small + bracket.fits) / 2 if stalled else bracket.proposal()
        value = excess(at)
        if value > 0:
            bracket = _Bracket(at, value, bracket.fits, bracket.slack)
        else:
            bracket = _Bracket(bracket.small, bracket.excess, at, value)
    return bracket
