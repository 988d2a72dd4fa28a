"""Rényi moments of events: (ε, δ) of what is known through zCDP, and divergences that accounts add up.

With K(s) = s·D_{1+s} the log moment of the privacy loss at order α = 1 + s, every s > 0 certifies

    log δ ≤ K(s) - s·ε + s·log s - (1+s)·log(1+s)

(Canonne, Kamath, Steinke 2020, Proposition 12, in the notation of docs/proofs/zcdp.md). Orders are
continuous. Every order is valid, so the search for the best one needs no proof.

D_α(P‖Q) = log E_Q (P/Q)^α / (α-1) of all steps of an event, in both directions of its pair, is bounded by
`renyi_divergence` (docs/proofs/filter.md, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

from dpfewshot.accounting.curves import FloatArray
from dpfewshot.accounting.events import (
    Composition,
    Event,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    Query,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.accounting.grid import Cumulants, Step, aligned, discretised
from dpfewshot.errors import InvalidPlan

LEAST_ORDER: Final = 2
LARGEST_ORDER: Final = 2**15
"""The range of α for which divergences are bounded."""

_LOG_ORDERS: Final = np.linspace(math.log(1e-7), math.log(1e7), 141)
_CELLS: Final = 4000  # of the grid of a step that has a curve
_OUTSIDE: Final = 1e-9, 1e-30  # masses below and above that grid
_MOST_CELLS: Final = 2**18
_OF_SUMS: Final = 1e-12  # relative rounding of a sum of moments
_ROUNDING: Final = 2.0**-48  # relative: 32 roundings of a divergence's largest term
_LARGE: Final = 30.0  # e^x - 1 equals e^x above it


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a composition: Σ steps·ρ of its zCDP events, and its discretised steps, if any."""

    rho: float
    cumulants: Cumulants

    def epsilon(self, delta: float) -> float:
        """A certified ε ≥ 0 at `delta`."""
        allowed = delta - self.cumulants.infinite_mass  # all of which counts towards δ
        if allowed <= 0:
            return math.inf
        if not self.cumulants.losses and math.sqrt(self.rho / 2) <= delta:
            return 0.0  # Pinsker: D_1 ≤ ρ, so the total variation is at most √(ρ/2)
        value = _least(lambda order: (self._excess(order) - math.log(allowed)) / order)
        return max(value + _OF_SUMS * (1 + abs(value)), 0.0)

    def delta(self, epsilon: float) -> float:
        """A certified δ ≤ 1 at `epsilon`."""
        value = _least(lambda order: self._excess(order) - order * epsilon)
        bound = math.exp(min(value + _OF_SUMS * (1 + abs(value)), 0.0))
        if not self.cumulants.losses:
            bound = min(bound, math.sqrt(self.rho / 2) * (1 + _OF_SUMS))
        return min(bound + self.cumulants.infinite_mass, 1.0)

    def _excess(self, order: float) -> float:
        """An upper bound of log δ + s·ε at s = `order`, rounded up."""
        terms = (
            self.rho * order * (1 + order),
            self.cumulants.log_moment(order),
            -order * math.log1p(1 / order),
            -math.log1p(order),
        )
        return sum(terms) + _OF_SUMS * (1 + sum(map(abs, terms))) + self.cumulants.rounding(order)


def moments(rho: float, steps: Sequence[Step]) -> Moments:
    """The moments of ρ-zCDP and of `steps`, which are discretised as for a composed curve."""
    ranges = [pair.loss_range(*_OUTSIDE) for pair, _ in steps]
    widths = [max(high - low, 1e-6 * abs(high)) for low, high in ranges]
    spacing = max(aligned(steps, max(widths) / _CELLS), max(widths) / _MOST_CELLS) if widths else 1.0
    return Moments(rho, discretised(steps, ranges, spacing))


def _least(function: Callable[[float], float]) -> float:
    """The smallest value found over orders: a grid search, then a refinement."""
    values = [function(math.exp(at)) for at in _LOG_ORDERS]
    best = int(np.argmin(values))
    low, high = _LOG_ORDERS[max(best - 1, 0)], _LOG_ORDERS[min(best + 1, len(values) - 1)]
    refined = minimize_scalar(lambda at: function(math.exp(at)), bounds=(low, high), method="bounded")
    return min(values[best], float(refined.fun))


# ---- divergences ------------------------------------------------------------------------------------------


def renyi_divergence(event: Event, order: int) -> float:
    """An upper bound of D_α(P‖Q) and D_α(Q‖P) of all steps of `event`, in nats; infinite if none is known.

    Raises:
        InvalidPlan: an order outside 2..`LARGEST_ORDER`.
    """
    if not LEAST_ORDER <= order <= LARGEST_ORDER:
        raise InvalidPlan(f"the Rényi order must lie in {LEAST_ORDER}..{LARGEST_ORDER}, not {order}")
    if isinstance(event, Tightest):
        return min(renyi_divergence(each, order) for each in event.events)
    if isinstance(event, Composition):
        return math.fsum(renyi_divergence(each, order) for each in event.events) * (1 + _ROUNDING)
    return event.steps * _of_step(event, order) * (1 + _ROUNDING)


def _of_step(event: Event, order: int) -> float:
    if isinstance(event, ZeroConcentrated):
        return event.rho * order
    if isinstance(event, PoissonProduct):
        return _of_draw(event.sampling_rate, event.queries, order)
    if isinstance(event, Query):
        return _of_draw(event.sampling_rate, (replace(event, steps=1),), order)
    return math.inf


def _of_draw(rate: float, queries: tuple[Query, ...], order: int) -> float:
    """D_α of all queries on one Poisson draw: of their subsampled product, and at most that of their sum."""
    apart = math.fsum(query.steps * _without_sampling(query, order) for query in queries) * (1 + _ROUNDING)
    return apart if rate == 1 else min(apart, _subsampled(rate, queries, order))


def _without_sampling(query: Query, order: int) -> float:
    found = float(_log_moments(query, np.array([float(order)]))[0]) / (order - 1)
    if isinstance(query, PoissonBoundedRange):
        return min(found, order * query.epsilon**2 / 8)  # docs/proofs/zcdp.md, Lemma 1
    return found


def _subsampled(rate: float, queries: tuple[Query, ...], order: int) -> float:
    """D_α of the subsampled product, rounded up (after Mironov, Talwar, Zhang 2019, Theorems 4 and 5).

    log Σ_k C(α,k)·(1-q)^{α-k}·q^k·m_k / (α-1) bounds both directions, with m_k = E_B (A/B)^k of the product
    (A, B). As the binomial weights add up to 1, the sum is 1 + Σ_{k≥2} C(α,k)·(1-q)^{α-k}·q^k·(m_k - 1),
    which has no cancellation.
    """
    k = np.arange(2, order + 1, dtype=np.float64)
    growth = sum((query.steps * _log_moments(query, k) for query in queries), np.zeros_like(k))
    growth *= 1 + _ROUNDING * len(queries)
    logs = np.where(growth > _LARGE, growth, np.log(np.expm1(np.minimum(growth, _LARGE))))
    logs += gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    logs += k * math.log(rate) + (order - k) * math.log1p(-rate)
    sizes = float(gammaln(order + 1)) + order * (1 - math.log(rate) - math.log1p(-rate)) + float(growth[-1])
    shift = float(logs.max())
    log_sum = shift + math.log(float(np.exp(logs - shift).sum())) + _ROUNDING * (order + sizes)
    return float(np.logaddexp(0.0, log_sum)) / (order - 1) * (1 + _ROUNDING)


def _log_moments(query: Query, k: FloatArray) -> FloatArray:
    """Logarithms of E_B (A/B)^k of one answer to `query` without sampling, rounded up, at every k ≥ 2."""
    if isinstance(query, PoissonGaussian):
        return k * (k - 1) / (2 * query.noise_multiplier**2) * (1 + _ROUNDING)
    wide, narrow = (2 * k - 1) * query.epsilon, query.epsilon
    if isinstance(query, PoissonBoundedRange):  # sinh(wide/2) / ((2k-1)·sinh(narrow/2))
        ratio = np.log(np.expm1(-wide) / ((2 * k - 1) * math.expm1(-narrow)))
    else:  # cosh(wide/2) / cosh(narrow/2)
        ratio = np.log1p(np.exp(-wide)) - math.log1p(math.exp(-narrow))
    moments: FloatArray = (k - 1) * query.epsilon + ratio
    return moments + _ROUNDING * (1 + wide + np.log(2 * k))
