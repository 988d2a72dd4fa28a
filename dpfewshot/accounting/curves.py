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
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtr, ndtri

FloatArray: TypeAlias = NDArray[np.float64]

UNIT_ROUNDOFF: Final = 2.0**-53
ROUNDING: Final = 8 * UNIT_ROUNDOFF
"""A generous bound on the elementary roundings in each term of a curve."""

LARGE: Final = 700.0
"""e^700 is a float."""

_FARTHEST: Final = 40.0  # beyond this many standard deviations a normal tail is below any float
_FLAT: Final = 9.0  # standard deviations below the mean at which a tail is 1, whatever z is
_UNDERFLOW: Final = 1e-300  # smaller terms may be lost altogether
_NEGLIGIBLE_COST: Final = 500.0  # ε₀ above which randomised response has hardly any mass at 0
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
        ...

    def curve(self, epsilons: FloatArray, /) -> Curve:
        """The hockey-stick curve at increasing epsilons, of either sign."""
        ...

    def loss_range(self, below: float, above: float, /) -> tuple[float, float]:
        """Losses with a P-mass of about `below` under them and `above` over them. A guide, not a bound."""
        ...


# ---- the Gaussian mechanism ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoveGaussian:
    """The unit is in P: P = (1-q)·N(0, σ²) + q·N(1, σ²) against Q = N(0, σ²).

    The loss L(x) = log(1 - q + q·w(x)) with w(x) = exp((2x - 1) / 2σ²) increases in x and stays above
    log(1-q). With t = e^ε - 1 + q and x at L(x) = ε: H(ε) = q·Pr[N(1, σ²) > x] - t·Pr[N(0, σ²) > x]. Where
    t ≤ 0 every loss is above ε, and H(ε) = 1 - e^ε.
    """

    sampling_rate: float
    noise_multiplier: float
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. Computed in logarithms for ε > 1, where e^ε may overflow."""
        q, sigma = self.sampling_rate, self.noise_multiplier
        near = epsilons <= 1
        growth = np.expm1(np.minimum(epsilons, 1.0))
        doubt = ROUNDING * (q + np.abs(growth))
        t = growth + q - doubt  # below the exact t: the curve is too high by at most doubt·tail
        all_above = t <= 0
        large = np.maximum(epsilons, 1.0)
        log_damping = np.log1p(-(1 - q) * np.exp(-large))  # log of t·e^-ε
        log_t = np.where(near, np.log(np.where(all_above, q, t)), large + log_damping)
        z = np.maximum(0.5 / sigma + sigma * (log_t - math.log(q)), -_FARTHEST)
        z_in = z - 1 / sigma
        log_tail = log_ndtr(-z)
        tail = np.exp(log_tail)
        big_tail = np.exp(np.where(near, -np.inf, large + log_tail))
        kept = q * ndtr(-z_in)
        lost = np.where(near, t * tail, big_tail * np.exp(log_damping))
        errors = kept * _tail_roundings(z_in, sigma)
        errors += lost * (1 + np.square(np.maximum(z, 0.0)) + np.abs(epsilons))
        errors = ROUNDING * errors + np.where(near, 2 * doubt * tail, 0.0) + _UNDERFLOW
        return Curve(
            np.where(all_above, -growth, np.maximum(kept - lost, 0.0)),
            np.where(all_above, 2 * doubt, errors),
            np.where(near, (1 + growth) * np.where(all_above, 1.0, tail), big_tail),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        q, sigma = self.sampling_rate, self.noise_multiplier
        top = max(1 - sigma * _quantile(above / q), -sigma * _quantile(above))
        return _loss(sigma * _quantile(below), q, sigma), _loss(top, q, sigma)


@dataclass(frozen=True, slots=True)
class AddGaussian:
    """The unit is in Q: P = N(0, σ²) against Q = (1-q)·N(0, σ²) + q·N(1, σ²).

    The loss -L(x) decreases in x and stays below -log(1-q). With s = q - (1-q)·(e^ε - 1) and x at
    L(x) = -ε: H(ε) = s·Pr[N(0, σ²) < x] - q·e^ε·Pr[N(1, σ²) < x]. Where s ≤ 0 no loss is above
    ε, and H(ε) = 0. Needed only for q < 1: with q = 1 RemoveGaussian is its own reverse.
    """

    sampling_rate: float
    noise_multiplier: float
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair."""
        q, sigma = self.sampling_rate, self.noise_multiplier
        growth = np.expm1(np.minimum(epsilons, LARGE))
        doubt = ROUNDING * (q + (1 - q) * np.abs(growth))
        slack = q - (1 - q) * growth + doubt  # above the exact s: the curve is too high by at most doubt·head
        some_above = slack > 0
        log_ratio = np.log(np.where(some_above, slack, q)) - epsilons - math.log(q)
        z = np.maximum(0.5 / sigma + sigma * log_ratio, -_FARTHEST)
        z_in = np.maximum(z - 1 / sigma, -_FARTHEST)
        head, head_in = ndtr(z), ndtr(z_in)
        kept, lost = slack * head, q * (1 + growth) * head_in
        errors = kept * (1 + np.square(np.minimum(z, 0.0))) + lost * _tail_roundings(-z_in, sigma)
        errors = ROUNDING * errors + 2 * doubt * head + _UNDERFLOW
        scaled_mass = (1 + growth) * ((1 - q) * head + q * head_in)
        return Curve(
            np.where(some_above, np.maximum(kept - lost, 0.0), 0.0),
            np.where(some_above, errors, 0.0),
            np.where(some_above, scaled_mass, 0.0),
        )

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair."""
        q, sigma = self.sampling_rate, self.noise_multiplier
        return -_loss(-sigma * _quantile(below), q, sigma), -_loss(sigma * _quantile(above), q, sigma)


@dataclass(frozen=True, slots=True)
class ReplaceGaussian:
    """One unit of a fixed-size draw is replaced: the symmetrised curve of removing the unit.

    For ε ≥ 0 the curve is RemoveGaussian's at q = m/n. For ε < 0 it follows by symmetry:
    H(ε) = 1 - e^ε + e^ε·H(-ε) (docs/proofs/accounting.md, 8).
    """

    sampling_rate: float
    noise_multiplier: float
    lattice: ClassVar[None] = None

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair."""
        removed = RemoveGaussian(self.sampling_rate, self.noise_multiplier)
        below = int(np.searchsorted(epsilons, 0.0))
        above = removed.curve(epsilons[below:])
        mirrored = removed.curve(-epsilons[:below][::-1])
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
        removed = RemoveGaussian(self.sampling_rate, self.noise_multiplier)
        return -removed.loss_range(below, below)[1], removed.loss_range(below, above)[1]


def _tail_roundings(z: FloatArray, sigma: float) -> FloatArray:
    """Relative roundings in Pr[N(0, 1) > z]: those of z = (x - 1)/σ, a difference, and of e^{-z²/2}.

    The logarithm of the tail has a slope of at most 1 + max(z, 0), which is negligible far below 0.
    """
    return np.asarray(
        1 + np.where(z > -_FLAT, (1 + np.maximum(z, 0.0)) * (1 + np.abs(z) + 1 / sigma), 0.0),
        dtype=np.float64,
    )


def _quantile(probability: float) -> float:
    return float(ndtri(min(max(probability, _UNDERFLOW), 0.5)))


def _loss(x: float, q: float, sigma: float) -> float:
    return subsampled_loss((2 * x - 1) / (2 * sigma**2), q)


def subsampled_loss(loss: float, q: float) -> float:
    """log(1 - q + q·e^loss), for a q in (0, 1]."""
    if loss > 1:
        return loss + math.log(q) + math.log1p((1 - q) / q * math.exp(-loss))
    return math.log1p(q * math.expm1(loss)) if q < 1 else loss


# ---- randomised response ---------------------------------------------------------------------------------


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
        within = epsilons < self.high + ROUNDING * (1 + abs(self.high))
        return Curve(
            values,
            np.where(within, ROUNDING * errors, 0.0),
            np.where(epsilons < self.high, scaled_mass, 0.0),
        )

    def loss_range(self, _below: float, _above: float) -> tuple[float, float]:
        """See DominatingPair. Both losses, however small their masses."""
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
    high = math.log1p(q * math.expm1(epsilon)) if epsilon < _NEGLIGIBLE_COST else epsilon + math.log(q)
    exact = (1 - q) + q * math.exp(-epsilon)  # no cancellation, but its logarithm has no digits close to 1
    low = math.log1p(q * math.expm1(-epsilon)) if exact > _CLOSE_TO_ONE else math.log(exact)
    return low, high


# ---- bounded range ---------------------------------------------------------------------------------------
#
# A mechanism has range ε₀ if, for any neighbours, all losses log(P/Q) lie in some interval of length ε₀
# (Durfee, Rogers 2019). The largest δ of such mechanisms at γ is
#
#     H(γ) = (e^{ε₀/2} - e^{γ/2})² / (e^{ε₀} - 1)   for |γ| ≤ ε₀
#
# It is convex in e^γ, so it is the curve of a pair. That pair is its own reverse, and its curve lies below
# randomised response's (docs/proofs/bounded-range.md).


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
        q, growth = self.sampling_rate, np.expm1(np.minimum(epsilons, LARGE))
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

    def loss_range(self, _below: float, _above: float) -> tuple[float, float]:
        """See DominatingPair. The extreme losses, though they have no mass."""
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
        q, growth = self.sampling_rate, np.expm1(np.minimum(epsilons, LARGE))
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

    def loss_range(self, _below: float, _above: float) -> tuple[float, float]:
        """See DominatingPair. The extreme losses, though they have no mass."""
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
    above = epsilons > losses[1] + ROUNDING * (1 + abs(losses[1]))  # no loss is larger: H is exactly 0
    between = ~(below | above)
    ratio = np.exp(np.minimum(epsilons, 0.0))
    reach = np.maximum(reach, 0.0)
    values = np.where(below, -np.expm1(np.minimum(epsilons, 0.0)), np.where(between, reach**2 / scale, 0.0))
    moved = ROUNDING * (terms + argument * steepness)
    errors = ROUNDING * values + (2 * reach + moved) * moved / scale
    gently = (2 * reach + ROUNDING * terms) * ROUNDING * terms / scale
    # Near the root of 0 the bound by the curve's slope is the smaller one.
    errors = np.minimum(errors, ROUNDING * (values + argument) + gently)
    errors = np.where(below, ROUNDING * (values + (np.abs(epsilons) + 1) * ratio), errors)
    errors[above] = 0.0
    mass = np.where(below, ratio, np.where(between, reach * slope / scale, 0.0))
    return Curve(values, errors, mass)
