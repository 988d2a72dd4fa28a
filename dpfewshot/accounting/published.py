"""The papers' own accounting, to reproduce their figures. No certified plan uses it.

Each bound holds for what it states, and is looser than `dpfewshot.accounting.epsilon`. `AS_IF_POISSON` is the
exception: it prices fixed-size draws as Poisson ones, which certifies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from scipy.special import comb

from dpfewshot.accounting.calibration import calibrate
from dpfewshot.accounting.events import (
    LEAST_NOISE,
    MOST_NOISE,
    FixedSizeGaussian,
    PoissonGaussian,
    PublishedAccounting,
    ZeroConcentrated,
)
from dpfewshot.errors import InvalidPlan

_ICLINF_ORDERS: Final = range(2, 101)  # Tables 4 to 6
_ADADPSYN_ORDERS: Final = range(2, 201)
_NARROW: Final = 1e-9  # the relative width at which a bisection ends
_SMALL: Final = 0.01  # variance below which e^{1/σ²} - 1 equals e^{1/σ²}, which may overflow


class OrderedEpsilon(NamedTuple):
    """ε, and the integer order α that gave it."""

    epsilon: float
    order: int


def integer_order_epsilon(event: ZeroConcentrated, delta: float) -> OrderedEpsilon:
    """ε = Nρα + log((α-1)/α) - (log δ + log α)/(α-1), the least over α in 2..100 (Li et al., ICLInf)."""
    return _least_over(_ICLINF_ORDERS, lambda order: event.steps * event.rho * order, delta)


def fixed_size_renyi_epsilon(event: FixedSizeGaussian, delta: float) -> OrderedEpsilon:
    """AdaDPSyn's own accounting: Rényi moments of fixed-size draws, converted at integer orders."""
    return _least_over(_ADADPSYN_ORDERS, lambda order: event.steps * fixed_size_renyi(event, order), delta)


def published_multiplier(
    accounting: PublishedAccounting,
    sample_size: int,
    population: int,
    steps: int,
    *,
    epsilon: float,
    delta: float,
) -> float:
    """The least noise multiplier that a paper's own accounting of fixed-size draws allows.

    AdaDPSyn's is bisected from 2⁻⁶ to 2²⁰, to a relative 10⁻⁹: its ε falls as noise grows, though not to 0.

    Args:
        accounting: the paper's.
        sample_size, population, steps: as in `FixedSizeGaussian`.
        epsilon: the target, ε > 0.
        delta: δ in (0, 1).

    Raises:
        InvalidPlan: a value outside its range, or no multiplier fits.
    """
    if accounting is PublishedAccounting.AS_IF_POISSON:
        rate = sample_size / population
        return calibrate(lambda noise: PoissonGaussian(rate, noise, steps), epsilon=epsilon, delta=delta)
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise InvalidPlan("epsilon must be a positive number and delta must lie between 0 and 1")

    def fits(multiplier: float) -> bool:
        event = FixedSizeGaussian(sample_size, population, multiplier, steps)
        return fixed_size_renyi_epsilon(event, delta).epsilon <= epsilon

    small, enough = LEAST_NOISE, MOST_NOISE
    if not fits(enough):
        raise InvalidPlan(f"no noise multiplier up to {enough:.3g} reaches this epsilon and delta")
    if fits(small):
        return small
    while enough / small > 1 + _NARROW:
        middle = math.sqrt(small * enough)
        small, enough = (small, middle) if fits(middle) else (middle, enough)
    return enough


def fixed_size_renyi(event: FixedSizeGaussian, order: int) -> float:
    """An upper bound of one step's D_α (Wang, Balle, Kasiviswanathan 2019, Theorem 9, for the Gaussian).

    (1/(α-1))·log(1 + γ²·C(α,2)·min{4(e^{ε(2)} - 1), 2e^{ε(2)}} + 2·Σ_{j=3}^α γ^j·C(α,j)·e^{(j-1)ε(j)}) with
    γ = m/n and ε(j) = j/(2σ²), under replacement of one unit. α is an integer of at least 2.
    """
    log_rate, variance = math.log(event.sampling_rate), event.noise_multiplier**2
    twice = min(
        math.log(4) + (1 / variance if variance < _SMALL else math.log(math.expm1(1 / variance))),
        math.log(2) + 1 / variance,
    )
    j = np.arange(2, order + 1)
    terms = j * log_rate + np.log(comb(order, j)) + math.log(2) + j * (j - 1) / (2 * variance)
    terms[0] = 2 * log_rate + math.log(math.comb(order, 2)) + twice
    largest = max(float(terms.max()), 0.0)
    total = math.exp(-largest) + float(np.exp(terms - largest).sum())
    return (largest + math.log(total)) / (order - 1)


def _least_over(orders: range, renyi: Callable[[int], float], delta: float) -> OrderedEpsilon:
    def converted(order: int) -> float:
        mass = (math.log(delta) + math.log(order)) / (order - 1)
        return renyi(order) + math.log((order - 1) / order) - mass

    return min(OrderedEpsilon(converted(order), order) for order in orders)
