"""The order of the tilt: the one at which the tilted mean of the composed loss is near the answer.

A poor order costs tightness or digits, never validity (docs/proofs/accounting.md, 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dpfewshot.accounting.pld.discretise import Cumulants

_LEAST_ORDER: Final = 1e-2  # in units of 1 / standard deviation and of log(1/δ) / largest loss
_NEWTON_STEPS: Final = 30
_CLOSE: Final = 0.02  # relative precision of the order
_TINY: Final = 1e-300
_NEAR_ONE: Final = 0.5  # the least δ that may lie far below the losses
_TILTED_AWAY: Final = 10.0  # natural logarithm of the factor by which the tilt may then miss the answer
_FAR_BELOW: Final = 5.0  # standard deviations from the mean to the losses below the answer


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the curve must be accurate: near the ε at `delta`.

    Attributes:
        delta: δ in (0, 1).
        tolerance: the relative excess of ε that the grid may cause.
        of_delta: whether the tolerance applies to δ instead.
    """

    delta: float
    tolerance: float
    of_delta: bool = False

    def order(self, cumulants: Cumulants, largest: float, near: float) -> float:
        """The order whose tilted mean is near the answer: an approximate saddle point."""
        variance = cumulants.derivatives(0.0)[2] + _TINY
        cost = -math.log(self.delta)
        top = max(abs(float(loss.losses[-1])) for loss in cumulants.losses) + _TINY
        least = min(_LEAST_ORDER / math.sqrt(variance), _LEAST_ORDER * cost / top, largest)
        order = near or min(max(math.sqrt(2 * cost / variance), least), largest)
        order = _solve(cumulants, cost, order, least, largest)
        if self.delta < _NEAR_ONE:
            return order
        # H(ε) = E[(1 - e^{ε - loss})⁺] ≤ 1 - e^{ε - loss}: the answer lies log 1/(1-δ) below most losses.
        below = _FAR_BELOW * math.sqrt(variance) - math.log1p(-self.delta)
        return min(order, max(_TILTED_AWAY / below, least))


def _solve(cumulants: Cumulants, cost: float, order: float, least: float, largest: float) -> float:
    """The order s at which s·K'(s) - K(s), which increases, is `cost` less the prefactor, approximately.

    By Newton's method in log s.
    """
    low, high = least, largest
    for _ in range(_NEWTON_STEPS):
        order = min(max(order, low), high)
        value, mean, variance = cumulants.derivatives(order)
        at, target = order * mean - value, max(cost - _log_prefactor(variance, order), 0.1)
        if abs(at - target) <= _CLOSE * target:
            break
        low, high = (order, high) if at < target else (low, order)
        if high - low <= _CLOSE * _CLOSE * low:
            break
        power = order * order * variance / at if at > 0 else 1.0
        step = math.log(target / at) / max(power, 0.3) if at > 0 else math.log(2)
        proposed = order * math.exp(min(max(step, -2.0), 2.0))
        order = proposed if low < proposed < high else math.sqrt(low * high)
    return order


def _log_prefactor(variance: float, order: float) -> float:
    """Log of the factor by which e^{K(s) - s·K'(s)} overstates δ at K'(s): a normal approximation."""
    return math.log1p(math.sqrt(2 * math.pi * variance) * order * (1 + order))
