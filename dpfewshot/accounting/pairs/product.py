"""Dominating pairs of several queries on one Poisson draw: the subsampled product of their pairs.

With H the curve of the product (A, B), which is its own reverse, and y = e^ε, the curves are

    removed, (1-q)·B + q·A against B:   q·H(log t)            with t = (y - 1 + q)/q
    added,   B against (1-q)·B + q·A:   s·H(log(q·y/s))       with s = 1 - (1-q)·y

Where t ≤ 0 every loss is above ε, and where s ≤ 0 none is. Source: Zhu, Dong, Wang 2022, Theorem 11
(docs/proofs/product.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np

from dpfewshot.accounting.pairs.curve import ROUNDINGS, UNIT_ROUNDOFF, Curve, FloatArray

_ROUNDING: Final = 2 * ROUNDINGS * UNIT_ROUNDOFF
_LARGE: Final = 700.0  # e^700 is a float


class Product(Protocol):
    """The curve of a product of pairs, without sampling."""

    def curve(self, epsilons: FloatArray) -> Curve:
        """The hockey-stick curve at increasing epsilons, of either sign."""
        ...

    def highest_loss(self, above: float) -> float:
        """A loss with a P-mass of about `above` over it. A guide, not a bound."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class UpperProduct:
    """A curve that is linear in e^ε between grid points: convex, and above the product's own.

    Attributes:
        losses: increasing grid points. Below the first the curve runs straight to 1 at e^ε = 0; above the
            last it is constant.
        heights: the curve there, in [0, 1].
    """

    losses: FloatArray
    heights: FloatArray

    def curve(self, epsilons: FloatArray) -> Curve:
        """See Product. Interpolates; all terms are positive, so round-off stays relative."""
        last = len(self.losses) - 1
        cell = np.searchsorted(self.losses, epsilons, side="left")
        upper, lower = np.minimum(cell, last), np.clip(cell - 1, 0, last)
        end, start = self.losses[upper], np.where(cell == 0, -np.inf, self.losses[lower])
        high, low = self.heights[upper], np.where(cell == 0, 1.0, self.heights[lower])
        below_end = np.maximum(end - epsilons, 0.0)
        width = -np.expm1(np.minimum(start - end, 0.0))
        inside = cell <= last
        share = np.where(inside, -np.expm1(-below_end) / np.where(inside, width, 1.0), 0.0)
        share = np.minimum(share, 1.0)
        values = high * (1 - share) + low * share
        fall = np.where(inside, (low - high) / np.where(inside, width, 1.0), 0.0)
        scaled_mass = np.exp(-below_end) * fall
        reach = 1 + np.abs(epsilons) + np.abs(end)
        return Curve(values, _ROUNDING * (values + scaled_mass * reach), scaled_mass)

    def highest_loss(self, above: float) -> float:
        """See Product."""
        return _highest(self.losses, self.heights, above)


@dataclass(frozen=True, slots=True, eq=False)
class LowerProduct:
    """A curve below the product's own: the largest of several multiples of the upper one, each lowered.

    Attributes:
        upper: the upper curve.
        shift: by how far losses move down, in nats: at least the upper curve's spacing.
        lines: pairs of a share in [0, 1] and of what is dropped, at least 0: share·H - dropped.
    """

    upper: UpperProduct
    shift: float
    lines: tuple[tuple[float, float], ...]

    def curve(self, epsilons: FloatArray) -> Curve:
        """See Product. No curve is below 1 - e^ε and 0, so this one is not."""
        upper = self.upper.curve(epsilons + self.shift)
        ratio = np.exp(np.minimum(epsilons, 0.0))
        values = -np.expm1(np.minimum(epsilons, 0.0))
        mass = np.where(epsilons < 0, ratio, 0.0)
        for share, dropped in self.lines:
            moved = share * upper.values - dropped
            mass = np.where(moved > values, share * upper.scaled_mass, mass)
            values = np.maximum(values, moved)
        errors = upper.errors + _ROUNDING * (upper.values + np.abs(epsilons) * ratio)
        return Curve(values, errors, mass)

    def highest_loss(self, above: float) -> float:
        """See Product."""
        return self.upper.highest_loss(above)


@dataclass(frozen=True, slots=True)
class RemoveProduct:
    """The unit is in P: P = (1-q)·B + q·A against Q = B."""

    sampling_rate: float
    product: Product
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. The stated errors contain those of t."""
        q = self.sampling_rate
        growth = np.expm1(np.minimum(epsilons, 1.0))
        doubt = _ROUNDING * (q + np.abs(growth))
        t = growth + q - doubt  # below the exact t: the curve is too high by at most doubt·B(loss > log t)
        all_above = t <= 0
        log_near = np.log(np.where(all_above, q, t))
        large = np.maximum(epsilons, 1.0)
        log_damping = np.log1p(-(1 - q) * np.exp(-large))  # log of q·t·e^-ε
        at = np.where(epsilons <= 1, log_near, large + log_damping) - math.log(q)
        values, errors, scaled_mass = self.product.curve(at)
        tail = np.minimum(scaled_mass * np.exp(np.minimum(-at, _LARGE)), 1.0)  # B(loss > log t)
        ratio = np.where(epsilons <= 1, (1 + growth) * tail, scaled_mass * q * np.exp(-log_damping))
        errors = q * (errors + _ROUNDING * (values + scaled_mass * (1 + np.abs(at))))
        return Curve(
            np.where(all_above, -growth, q * values),
            np.where(all_above, 2 * doubt, errors + np.where(epsilons <= 1, 2 * doubt * tail, 0.0)),
            np.where(all_above, 1 + growth, ratio),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        q = self.sampling_rate
        high = self.product.highest_loss(above / q)
        return _mixed(-self.product.highest_loss(below), q), _mixed(high, q)


@dataclass(frozen=True, slots=True)
class AddProduct:
    """The unit is in Q: P = B against Q = (1-q)·B + q·A."""

    sampling_rate: float
    product: Product
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. The stated errors contain those of s."""
        q = self.sampling_rate
        growth = np.expm1(np.minimum(epsilons, _LARGE))
        doubt = _ROUNDING * (q + (1 - q) * np.abs(growth))
        slack = q - (1 - q) * growth + doubt  # above the exact s: the curve is too high by at most doubt
        some_above = slack > 0
        at = math.log(q) + epsilons - np.log(np.where(some_above, slack, q))
        values, errors, scaled_mass = self.product.curve(at)
        kept = slack * values
        errors = slack * (errors + _ROUNDING * (values + scaled_mass * (1 + np.abs(at) + np.abs(epsilons))))
        errors += 2 * doubt * np.minimum(values + scaled_mass, 1.0)
        return Curve(
            np.where(some_above, kept, 0.0),
            np.where(some_above, errors, 0.0),
            np.where(some_above, (1 - q) * (1 + growth) * values + scaled_mass, 0.0),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        q = self.sampling_rate
        return -_mixed(self.product.highest_loss(below), q), -_mixed(-self.product.highest_loss(above), q)


def _highest(losses: FloatArray, heights: FloatArray, above: float) -> float:
    """The lowest grid point at which the curve is below `above`, or the highest."""
    index = int(np.searchsorted(-heights, -above))
    return float(losses[min(index, len(losses) - 1)])


def _mixed(loss: float, q: float) -> float:
    """log(1 - q + q·e^loss)."""
    if loss > 1:
        return loss + math.log(q) + math.log1p((1 - q) / q * math.exp(-loss))
    return math.log1p(q * math.expm1(loss)) if q < 1 else loss
