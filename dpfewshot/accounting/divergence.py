"""Certified Rényi divergences of events at one order, for accounts that add them up.

D_α(P‖Q) = log E_Q (P/Q)^α / (α-1). A bound covers all steps of an event and both directions of its pair.
Proof: docs/proofs/filter.md, 1.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import gammaln

from dpfewshot.accounting.events import (
    Composition,
    Event,
    PoissonBoundedRange,
    PoissonGaussian,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.accounting.pairs.curve import DominatingPair
from dpfewshot.accounting.pairs.registry import dominating_pairs
from dpfewshot.accounting.pld.discretise import Cumulants, discretise
from dpfewshot.accounting.pld.tilting import aligned
from dpfewshot.errors import InvalidPlan

LEAST_ORDER: Final = 2
LARGEST_ORDER: Final = 2**15
"""The range of α for which bounds are computed."""

_ROUNDING: Final = 2.0**-48  # relative: 16 units in the last place of a term's largest part
_CELLS: Final = 4000  # of the grid of a step that has a curve
_MOST_CELLS: Final = 2**18
_FINE: Final = 0.05  # of a grid's spacing times the order
_OUTSIDE: Final = 1e-9, 1e-30  # masses below and above that grid
_LARGE: Final = 30.0  # e^x - 1 equals e^x above it


def renyi_divergence(event: Event, order: int) -> float:
    """An upper bound of D_α(P‖Q) and D_α(Q‖P) of all steps of `event`, in nats; infinite if none is known.

    Args:
        event: one event, a Composition or a Tightest.
        order: α, a whole number from 2 to `LARGEST_ORDER`.

    Raises:
        InvalidPlan: an order outside its range, or an event that the accountant does not know.
    """
    if not LEAST_ORDER <= order <= LARGEST_ORDER:
        raise InvalidPlan(f"the Rényi order must lie in {LEAST_ORDER}..{LARGEST_ORDER}, not {order}")
    if isinstance(event, Tightest):
        return min(renyi_divergence(each, order) for each in event.events)
    if isinstance(event, Composition):
        return sum(renyi_divergence(each, order) for each in event.events) * (1 + _ROUNDING)
    return event.steps * _of_step(event, order) * (1 + _ROUNDING)


def _of_step(event: Event, order: int) -> float:
    if isinstance(event, ZeroConcentrated):
        return event.rho * order
    if isinstance(event, PoissonGaussian):
        return subsampled_gaussian(event.sampling_rate, event.noise_multiplier, order)
    found = max(_of_pair(pair, order) for pair in dominating_pairs(event))
    if isinstance(event, PoissonBoundedRange) and event.sampling_rate == 1:
        return min(found, order * event.epsilon**2 / 8)  # docs/proofs/zcdp.md, Lemma 1
    return found


def subsampled_gaussian(rate: float, noise: float, order: int) -> float:
    """D_α of one step of the Poisson-subsampled Gaussian, rounded up (Mironov, Talwar, Zhang 2019).

    log Σ_k C(α,k)·(1-q)^{α-k}·q^k·e^{k(k-1)/(2σ²)} / (α-1) bounds both directions. As the binomial weights
    add up to 1, the sum is 1 + Σ_{k≥2} C(α,k)·(1-q)^{α-k}·q^k·(e^{k(k-1)/(2σ²)} - 1), which has no
    cancellation.

    Args:
        rate: q in (0, 1].
        noise: σ > 0.
        order: α ≥ 2.
    """
    if rate == 1:
        return order / (2 * noise * noise) * (1 + _ROUNDING)
    k = np.arange(2, order + 1, dtype=np.float64)
    growth = k * (k - 1) / (2 * noise * noise)
    logs = np.where(growth > _LARGE, growth, np.log(np.expm1(np.minimum(growth, _LARGE))))
    logs += gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    logs += k * math.log(rate) + (order - k) * math.log1p(-rate)
    sizes = float(gammaln(order + 1)) + order * (1 - math.log(rate) - math.log1p(-rate)) + float(growth[-1])
    shift = float(logs.max())
    log_sum = shift + math.log(float(np.exp(logs - shift).sum())) + _ROUNDING * (order + sizes)
    return float(np.logaddexp(0.0, log_sum)) / (order - 1) * (1 + _ROUNDING)


def _of_pair(pair: DominatingPair, order: int) -> float:
    """D_α of a pair, from a discretisation that dominates it; infinite if its losses are not bounded."""
    tilt = order - 1
    low, high = pair.loss_range(*_OUTSIDE)
    width = max(high - low, 1e-6 * abs(high))
    spacing = aligned([(pair, 1)], max(min(width / _CELLS, _FINE / tilt), width / _MOST_CELLS))
    loss = discretise(pair, 1, spacing, low, high + 2 * spacing)  # no bounded loss lies above
    if loss.infinite_mass > 0:
        return math.inf
    moments = Cumulants((loss,))
    return max(moments.log_moment(tilt) + moments.rounding(tilt), 0.0) / tilt
