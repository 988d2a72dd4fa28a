"""Dominating pairs with two outcomes: Poisson-subsampled randomised response.

Sources: Kairouz, Oh, Viswanath 2015 (randomised response dominates every ε₀-DP mechanism), Zhu, Dong,
Wang 2022, Theorem 11 (Poisson subsampling). docs/proofs/accounting.md, 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import expit

from dpfewshot.accounting.pairs.curve import ROUNDINGS, UNIT_ROUNDOFF, Curve, FloatArray, Lattice

_CLOSE_TO_ONE: Final = 0.5
_LARGE: Final = 500.0  # e^ε₀ is a float below this; above it, its mass at 0 is negligible


@dataclass(frozen=True, slots=True)
class TwoPoint:
    """P has mass `mass` on the loss `high` and the rest on `low`: H(ε) = mass·(1 - e^{ε - high}) between.

    In y = e^ε the curve is the larger of its two lines, 1 - y and mass·(1 - y·e^{-high}), and of 0.
    """

    low: float
    high: float
    mass: float

    @property
    def lattice(self) -> Lattice:
        """See DominatingPair."""
        return Lattice(self.low, self.high - self.low)

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. The errors include the round-off of `mass` and `high`."""
        below = epsilons < self.low
        damping = np.exp(np.minimum(epsilons - self.high, 0.0))
        upper_line = -self.mass * np.expm1(np.minimum(epsilons - self.high, 0.0))
        values = np.maximum(upper_line, -np.expm1(np.minimum(epsilons, 0.0)))
        errors = values + np.abs(epsilons) * np.exp(np.minimum(epsilons, 0.0))
        errors += self.mass * damping * (abs(self.high) + np.abs(epsilons))
        scaled_mass = np.where(below, np.exp(np.minimum(epsilons, 0.0)), self.mass * damping)
        within = epsilons < self.high + ROUNDINGS * UNIT_ROUNDOFF * (1 + abs(self.high))
        return Curve(
            values,
            np.where(within, ROUNDINGS * UNIT_ROUNDOFF * errors, 0.0),
            np.where(epsilons < self.high, scaled_mass, 0.0),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair. Both losses, however small their masses."""
        del below, above
        return self.low, self.high


def removed_response(sampling_rate: float, epsilon: float) -> TwoPoint:
    """P = (1-q)·RR₀ + q·RR₁ against Q = RR₀; RR₁ puts e^ε₀ / (1 + e^ε₀) on the second outcome."""
    low, high = extreme_losses(sampling_rate, epsilon)
    return TwoPoint(
        low, high, (1 - sampling_rate) * float(expit(-epsilon)) + sampling_rate * float(expit(epsilon))
    )


def added_response(sampling_rate: float, epsilon: float) -> TwoPoint:
    """P = RR₀ against Q = (1-q)·RR₀ + q·RR₁."""
    low, high = extreme_losses(sampling_rate, epsilon)
    return TwoPoint(-high, -low, float(expit(epsilon)))


def extreme_losses(q: float, epsilon: float) -> tuple[float, float]:
    """log(1 - q + q·e^{-ε₀}) and log(1 - q + q·e^{ε₀}): the extreme losses with the unit removed."""
    if q == 1:
        return -epsilon, epsilon
    high = math.log1p(q * math.expm1(epsilon)) if epsilon < _LARGE else epsilon + math.log(q)
    exact = (1 - q) + q * math.exp(-epsilon)  # no cancellation, but its logarithm has no digits close to 1
    low = math.log1p(q * math.expm1(-epsilon)) if exact > _CLOSE_TO_ONE else math.log(exact)
    return low, high
