"""(ε, δ) from Rényi moments: for zCDP events, of which only moments are known, and plans that hold some.

With K(s) = s·D_{1+s} the log moment of the privacy loss at order α = 1 + s, every s > 0 certifies

    log δ ≤ K(s) - s·ε + s·log s - (1+s)·log(1+s)

(Canonne, Kamath, Steinke 2020, Proposition 12, in the notation of docs/proofs/zcdp.md). Orders are
continuous. Every order is valid, so the search for the best one needs no proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import minimize_scalar

from dpfewshot.accounting.pld.discretise import Cumulants, discretise
from dpfewshot.accounting.pld.tilting import Step, aligned

_LOG_ORDERS: Final = np.linspace(math.log(1e-7), math.log(1e7), 141)
_CELLS: Final = 4000  # of the grid of a step that has a curve
_OUTSIDE: Final = 1e-9, 1e-30  # masses below and above that grid
_MOST_CELLS: Final = 2**18
_ROUNDING: Final = 1e-12  # relative, of a sum of moments


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a composition: of its zCDP events together, and of its discretised steps.

    Attributes:
        rho: Σ steps·ρ.
        cumulants: of the steps that have a curve; may be empty.
    """

    rho: float
    cumulants: Cumulants

    @property
    def infinite_mass(self) -> float:
        """P-mass at an infinite loss, all of which counts towards δ."""
        return sum(loss.steps * loss.infinite_mass for loss in self.cumulants.losses)

    def excess(self, order: float) -> float:
        """An upper bound of log δ + s·ε at s = `order`, rounded up."""
        terms = (
            self.rho * order * (1 + order),
            self.cumulants.log_moment(order),
            -order * math.log1p(1 / order),
            -math.log1p(order),
        )
        return sum(terms) + _ROUNDING * (1 + sum(map(abs, terms))) + self.cumulants.rounding(order)


def moments(rho: float, steps: Sequence[Step]) -> Moments:
    """The moments of ρ-zCDP and of `steps`, which are discretised as for a composed curve."""
    ranges = [pair.loss_range(*_OUTSIDE) for pair, _ in steps]
    widths = [max(high - low, 1e-6 * abs(high)) for low, high in ranges]
    spacing = max(aligned(steps, max(widths) / _CELLS), max(widths) / _MOST_CELLS) if widths else 1.0
    losses = tuple(
        discretise(pair, count, spacing, low, high)
        for (pair, count), (low, high) in zip(steps, ranges, strict=True)
    )
    return Moments(rho, Cumulants(losses))


def moment_epsilon(found: Moments, delta: float) -> float:
    """A certified ε ≥ 0 at `delta`."""
    allowed = delta - found.infinite_mass
    if allowed <= 0:
        return math.inf
    if not found.cumulants.losses and math.sqrt(found.rho / 2) <= delta:
        return 0.0  # Pinsker: D_1 ≤ ρ, so the total variation is at most √(ρ/2)
    value = _least(lambda order: (found.excess(order) - math.log(allowed)) / order)
    return max(value + _ROUNDING * (1 + abs(value)), 0.0)


def moment_delta(found: Moments, epsilon: float) -> float:
    """A certified δ ≤ 1 at `epsilon`."""
    value = _least(lambda order: found.excess(order) - order * epsilon)
    bound = math.exp(min(value + _ROUNDING * (1 + abs(value)), 0.0))
    if not found.cumulants.losses:
        bound = min(bound, math.sqrt(found.rho / 2) * (1 + _ROUNDING))
    return min(bound + found.infinite_mass, 1.0)


def _least(function: Callable[[float], float]) -> float:
    """The smallest value found over orders: a grid search, then a refinement."""
    values = [function(math.exp(at)) for at in _LOG_ORDERS]
    best = int(np.argmin(values))
    low, high = _LOG_ORDERS[max(best - 1, 0)], _LOG_ORDERS[min(best + 1, len(values) - 1)]
    refined = minimize_scalar(lambda at: function(math.exp(at)), bounds=(low, high), method="bounded")
    return min(values[best], float(refined.fun))
