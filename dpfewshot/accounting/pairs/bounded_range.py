"""Dominating pairs of Poisson-subsampled mechanisms whose privacy loss has a bounded range.

A mechanism has range ε₀ if, for any neighbours, all losses log(P/Q) lie in some interval of length ε₀. The
exponential mechanism does (Durfee, Rogers 2019). The largest δ of such mechanisms at γ is

    H(γ) = (e^{ε₀/2} - e^{γ/2})² / (e^{ε₀} - 1)   for |γ| ≤ ε₀

(after Dong, Durfee, Rogers 2020). It is convex in e^γ, so it is the curve of a pair. That pair is its own
reverse, and its curve lies below randomised response's (docs/proofs/bounded-range.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpfewshot.accounting.pairs.curve import ROUNDINGS, UNIT_ROUNDOFF, Curve, FloatArray
from dpfewshot.accounting.pairs.randomized_response import extreme_losses

_LARGE = 700.0  # e^700 is a float


@dataclass(frozen=True, slots=True)
class RemoveBoundedRange:
    """The unit is in P: P = (1-q)·B + q·A against Q = B, for the pair (A, B) of range ε₀.

    With t = e^ε - 1 + q the curve is (√q·e^{ε₀/2} - √t)² / (e^{ε₀} - 1) between the extreme losses.
    """

    sampling_rate: float
    epsilon: float
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair."""
        q, growth = self.sampling_rate, np.expm1(np.minimum(epsilons, _LARGE))
        low, high = self.loss_range(0.0, 0.0)
        top = math.sqrt(q) * math.exp(self.epsilon / 2)
        within = np.maximum(growth + q, q * math.exp(-self.epsilon))
        root = np.sqrt(within)
        return _curve(
            epsilons,
            (low, high),
            reach=top - root,
            slope=(1 + growth) / root,
            terms=top + root,
            argument=np.abs(growth) + q,
            steepness=1 / root,
            scale=math.expm1(self.epsilon),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair. The extreme losses, though they have no mass."""
        del below, above
        return extreme_losses(self.sampling_rate, self.epsilon)


@dataclass(frozen=True, slots=True)
class AddBoundedRange:
    """The unit is in Q: P = B against Q = (1-q)·B + q·A, for the pair (A, B) of range ε₀.

    With s = 1 - (1-q)·e^ε the curve is (√s·e^{ε₀/2} - √(q·e^ε))² / (e^{ε₀} - 1) between the extreme losses.
    """

    sampling_rate: float
    epsilon: float
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair."""
        q, growth = self.sampling_rate, np.expm1(np.minimum(epsilons, _LARGE))
        low, high = self.loss_range(0.0, 0.0)
        factor = math.exp(self.epsilon / 2)
        slack = q - (1 - q) * growth
        slack = np.maximum(slack, q * (1 + growth) * math.exp(-self.epsilon))  # equal at the largest loss
        root, other = np.sqrt(slack), np.sqrt(q * (1 + growth))
        return _curve(
            epsilons,
            (low, high),
            reach=factor * root - other,
            slope=factor * (1 - q) * (1 + growth) / root + other,
            terms=factor * root + other,
            argument=(1 - q) * np.abs(growth) + q,
            steepness=factor / root,
            scale=math.expm1(self.epsilon),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair. The extreme losses, though they have no mass."""
        del below, above
        low, high = extreme_losses(self.sampling_rate, self.epsilon)
        return -high, -low


def _curve(
    epsilons: FloatArray,
    losses: tuple[float, float],
    *,
    reach: FloatArray,
    slope: FloatArray,
    terms: FloatArray,
    argument: FloatArray,
    steepness: FloatArray,
    scale: float,
) -> Curve:
    """The curve reach² / scale between the extreme losses, 1 - e^ε below them and 0 above.

    Args:
        epsilons: where the curve is evaluated.
        losses: the smallest and the largest loss.
        reach: the square root of the curve times `scale`.
        slope: -2·d(reach)/dε.
        terms: the sum of the two terms whose difference is `reach`; their round-off is proportional to it.
        argument: the same for t or s under the first root. The curve's slope in t or s is at most 1.
        steepness: an upper bound of the slope of `reach` in t or s.
        scale: e^{ε₀} - 1.
    """
    below = epsilons < losses[0]
    rounding = ROUNDINGS * UNIT_ROUNDOFF
    above = epsilons > losses[1] + rounding * (1 + abs(losses[1]))  # no loss is larger: H is exactly 0
    between = ~(below | above)
    ratio = np.exp(np.minimum(epsilons, 0.0))
    reach = np.maximum(reach, 0.0)
    values = np.where(below, -np.expm1(np.minimum(epsilons, 0.0)), np.where(between, reach**2 / scale, 0.0))
    moved = rounding * (terms + argument * steepness)
    errors = rounding * values + (2 * reach + moved) * moved / scale
    gently = (2 * reach + rounding * terms) * rounding * terms / scale
    # Near the root of 0 the bound by the curve's slope is the smaller one.
    errors = np.minimum(errors, rounding * (values + argument) + gently)
    errors = np.where(below, rounding * (values + (np.abs(epsilons) + 1) * ratio), errors)
    errors[above] = 0.0
    mass = np.where(below, ratio, np.where(between, reach * slope / scale, 0.0))
    return Curve(values, errors, mass)
