"""Hockey-stick curves of the dominating pairs of one query, and of subsampled ones.

A pair (P, Q) has the curve H(ε) = sup_S P(S) - e^ε·Q(S) (Zhu, Dong, Wang 2022). Every curve states bounds on
its own round-off.

Sources: Balle and Wang 2018 (the Gaussian curve); Zhu, Dong, Wang 2022, Theorem 11 (Poisson subsampling);
Balle, Barthe, Gaboardi 2018 (fixed-size draws); Kairouz, Oh, Viswanath 2015 (randomised response dominates
every ε₀-DP mechanism); Dong, Durfee, Rogers 2020 (bounded range).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtr, ndtri

FloatArray: TypeAlias = NDArray[np.float64]

UNIT_ROUNDOFF: Final = 2.0**-53
ROUNDING: Final = 8 * UNIT_ROUNDOFF
"""A generous bound on the elementary roundings in each term of a curve."""

_OF_PLACES: Final = 2 * ROUNDING  # of t and s, and of the place at which the pair's own curve is read

LARGE: Final = 700.0
"""e^700 is a float."""

_FARTHEST: Final = 40.0  # beyond this many standard deviations a normal tail is below any float
_FLAT: Final = 9.0  # standard deviations below the mean at which a tail is 1, whatever z is
_UNDERFLOW: Final = 1e-300  # smaller terms may be lost altogether
_HUGE: Final = 500.0  # e^500 is a float, times any sampling rate
_CLOSE_TO_ONE: Final = 0.5


class Curve(NamedTuple):
    """A hockey-stick curve at given ε. All arrays have one length.

    Attributes:
        values: H(ε) as computed.
        errors: bounds on |values - H(ε)|.
        scaled_mass: e^ε·Q(loss > ε), which is -dH/dε; H(ε) + scaled_mass = P(loss > ε).
    """

    values: FloatArray
    errors: FloatArray
    scaled_mass: FloatArray


class Lattice(NamedTuple):
    """Where P's point masses lie, if it has no others: losses `first` + k·`gap` for whole k."""

    first: float
    gap: float


class DominatingPair(Protocol):
    """One direction of one step. The privacy loss is log dP/dQ under P."""

    @property
    def lattice(self) -> Lattice | None:
        """The losses, if they are finitely many and equally spaced; None for a density."""
        return None

    def curve(self, epsilons: FloatArray, /) -> Curve:
        """The hockey-stick curve at increasing epsilons, of either sign."""

    def loss_range(self, below: float, above: float, /) -> tuple[float, float]:
        """Losses with a P-mass of about `below` under them and `above` over them. A guide, not a bound."""


# ---- pairs without sampling that are their own reverse -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class GaussianPair(DominatingPair):
    """A = N(1, σ²) against B = N(0, σ²). The map x -> 1 - x makes it its own reverse.

    The loss at x is (2x - 1) / 2σ². With x at the loss ε: H(ε) = Pr[N(1, σ²) > x] - e^ε·Pr[N(0, σ²) > x].
    """

    noise_multiplier: float

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. The second term is formed from logarithms: e^ε may overflow."""
        sigma = self.noise_multiplier
        z = np.maximum(0.5 / sigma + sigma * epsilons, -_FARTHEST)
        z_in = z - 1 / sigma
        kept, lost = ndtr(-z_in), np.exp(np.minimum(epsilons + log_ndtr(-z), 0.0))
        # The logarithm of a tail has a slope of at most 1 + max(z, 0), which is negligible far below 0. It
        # multiplies the roundings of z_in = (x - 1)/σ, a difference, and those of e^{-z²/2}.
        slope = np.where(z_in > -_FLAT, 1 + np.maximum(z_in, 0.0), 0.0)
        errors = kept * (1 + slope * (1 + np.abs(z_in) + 1 / sigma))
        errors += lost * (1 + np.square(np.maximum(z, 0.0)) + np.abs(epsilons))
        return Curve(np.maximum(kept - lost, 0.0), ROUNDING * errors + _UNDERFLOW, lost)

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        sigma = self.noise_multiplier
        ends = 1 + sigma * _quantile(below), 1 - sigma * _quantile(above)
        low, high = ((2 * x - 1) / (2 * sigma**2) for x in ends)
        return low, high


def _quantile(probability: float) -> float:
    return float(ndtri(min(max(probability, _UNDERFLOW), 0.5)))


@dataclass(frozen=True, slots=True)
class RangePair(DominatingPair):
    """The pair of mechanisms of range ε₀: all their losses lie in some interval of that length.

    Their largest δ at γ is H(γ) = (1 - e^{(γ - ε₀)/2})² / (1 - e^{-ε₀}) for |γ| ≤ ε₀. It is convex in e^γ, so
    it is the curve of a pair, which is its own reverse; it lies below that of randomised response
    (docs/proofs/bounded-range.md).
    """

    epsilon: float

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair."""
        width = self.epsilon
        below = epsilons < -width
        above = epsilons > width + ROUNDING * (1 + width)  # no loss is larger: H is exactly 0
        ratio = np.exp(np.minimum(epsilons, 0.0))
        half = np.minimum(epsilons - width, 0.0) / 2
        gap, root, scale = -np.expm1(half), np.exp(half), -math.expm1(-width)
        moved = ROUNDING * (1 + np.abs(epsilons) + width) * root
        errors = ROUNDING * gap**2 + (2 * gap + moved) * moved
        return Curve(
            np.where(below, -np.expm1(np.minimum(epsilons, 0.0)), gap**2 / scale),
            np.where(above, 0.0, np.where(below, ROUNDING * (1 + np.abs(epsilons) * ratio), errors / scale)),
            np.where(below, ratio, gap * root / scale),
        )

    def loss_range(self, _below: float, _above: float) -> tuple[float, float]:
        """See DominatingPair. The extreme losses, though they have no mass."""
        return -self.epsilon, self.epsilon


# ---- sampling ----------------------------------------------------------------------------------------------
#
# Zhu, Dong, Wang 2022, Theorem 11. With (A, B) a pair that is its own reverse, H its curve and y = e^ε:
#
#     removed, (1-q)·B + q·A against B:   q·H(log t)            with t = (y - 1 + q)/q
#     added,   B against (1-q)·B + q·A:   s·H(log(q·y/s))       with s = 1 - (1-q)·y
#
# Where t ≤ 0 every loss is above ε, and where s ≤ 0 none is (docs/proofs/product.md).


@dataclass(frozen=True, slots=True)
class Removed(DominatingPair):
    """The unit is in P: P = (1-q)·B + q·A against Q = B."""

    sampling_rate: float
    pair: DominatingPair

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. The stated errors contain those of t."""
        q = self.sampling_rate
        near = epsilons <= 1
        growth = np.expm1(np.minimum(epsilons, 1.0))
        doubt = ROUNDING * (q + np.abs(growth))
        t = growth + q - doubt  # q·t, below the exact one: H is too high by at most doubt·B(loss > ε')
        all_above = t <= 0
        large = np.maximum(epsilons, 1.0)
        log_damping = np.log1p(-(1 - q) * np.exp(-large))  # log of q·t·e^-ε
        at = np.where(near, np.log(np.where(all_above, q, t) / q), large + log_damping - math.log(q))
        values, errors, scaled_mass = self.pair.curve(at)
        tail = np.minimum(scaled_mass * np.exp(np.minimum(-at, LARGE)), 1.0)  # B(loss > log t)
        errors = q * (errors + _OF_PLACES * (values + scaled_mass * (1 + np.abs(at))))
        mass = np.where(near, (1 + growth) * tail, scaled_mass * q * np.exp(-log_damping))
        return Curve(
            np.where(all_above, -growth, q * values),
            np.where(all_above, 2 * doubt, errors + np.where(near, 2 * doubt * tail, 0.0)),
            np.where(all_above, 1 + growth, mass),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        q = self.sampling_rate
        _, farthest = self.pair.loss_range(below, below)
        low, high = self.pair.loss_range(above, above / q)
        return subsampled_loss(-farthest, q), subsampled_loss(max(high, -low), q)


@dataclass(frozen=True, slots=True)
class Added(DominatingPair):
    """The unit is in Q: P = B against Q = (1-q)·B + q·A."""

    sampling_rate: float
    pair: DominatingPair

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. The stated errors contain those of s."""
        q = self.sampling_rate
        growth = np.expm1(np.minimum(epsilons, LARGE))
        doubt = ROUNDING * (q + (1 - q) * np.abs(growth))
        slack = q - (1 - q) * growth + doubt  # above the exact s: the curve is too high by at most doubt
        some_above = slack > 0
        at = epsilons + np.log(q / np.where(some_above, slack, q))
        values, errors, scaled_mass = self.pair.curve(at)
        errors = slack * (errors + _OF_PLACES * (values + scaled_mass * (1 + np.abs(at) + np.abs(epsilons))))
        errors += 2 * doubt * np.minimum(values + scaled_mass, 1.0)
        mass = (1 - q) * (1 + growth) * values + scaled_mass
        found = slack * values, errors, mass
        return Curve(*(np.where(some_above, array, 0.0) for array in found))

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        q = self.sampling_rate
        low, high = self.pair.loss_range(below, above)
        return -subsampled_loss(-low, q), -subsampled_loss(-high, q)


@dataclass(frozen=True, slots=True)
class Replaced(DominatingPair):
    """One unit of a fixed-size draw is replaced: the symmetrised curve of removing it.

    For ε ≥ 0 the curve is that of `removed` at q = m/n. For ε < 0 it follows by symmetry:
    H(ε) = 1 - e^ε + e^ε·H(-ε) (docs/proofs/accounting.md, 8).
    """

    removed: DominatingPair

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair."""
        below = int(np.searchsorted(epsilons, 0.0))
        above = self.removed.curve(epsilons[below:])
        mirrored = self.removed.curve(-epsilons[:below][::-1])
        values, errors, scaled_mass = (array[::-1] for array in mirrored)
        ratio = np.exp(epsilons[:below])
        lower = Curve(
            -np.expm1(epsilons[:below]) + ratio * values,
            ratio * errors + ROUNDING * (np.abs(epsilons[:below]) * ratio + 1 - ratio + ratio * values),
            np.maximum(ratio * (1 - values - scaled_mass), 0.0),
        )
        return Curve(*(np.concatenate(arrays) for arrays in zip(lower, above, strict=True)))

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair. The mass below -ε is less than the mass above ε."""
        return -self.removed.loss_range(below, below)[1], self.removed.loss_range(below, above)[1]


def subsampled_loss(loss: float, q: float) -> float:
    """log(1 - q + q·e^loss), for a q in (0, 1]."""
    if q == 1:
        return loss
    if loss > _HUGE:
        return loss + math.log(q) + math.log1p((1 - q) / q * math.exp(-loss))
    exact = (1 - q) + q * math.exp(loss)  # no cancellation, but its logarithm has no digits close to 1
    return math.log1p(q * math.expm1(loss)) if exact > _CLOSE_TO_ONE else math.log(exact)


# ---- randomised response ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TwoPoint(DominatingPair):
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
        within = epsilons < self.high + ROUNDING * (1 + abs(self.high))
        return Curve(
            values,
            np.where(within, ROUNDING * errors, 0.0),
            np.where(epsilons < self.high, scaled_mass, 0.0),
        )

    def loss_range(self, _below: float, _above: float) -> tuple[float, float]:
        """See DominatingPair. Both losses, however small their masses."""
        return self.low, self.high


def responses(q: float, epsilon: float) -> tuple[TwoPoint, TwoPoint]:
    """(1-q)·RR₀ + q·RR₁ against RR₀, and the reverse; RR₁ puts e^ε₀ / (1 + e^ε₀) on the second outcome."""
    low, high = (subsampled_loss(sign * epsilon, q) for sign in (-1, 1))
    other, likelier = float(expit(-epsilon)), float(expit(epsilon))
    return TwoPoint(low, high, (1 - q) * other + q * likelier), TwoPoint(-high, -low, likelier)
