"""Dominating pairs of the subsampled Gaussian mechanism.

Sources: Balle and Wang 2018 (the Gaussian curve), Zhu, Dong, Wang 2022, Theorem 11 (Poisson subsampling),
Balle, Barthe, Gaboardi 2018 (fixed-size draws).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from dpfewshot.accounting.pairs.curve import ROUNDINGS, UNIT_ROUNDOFF, Curve, FloatArray

_FARTHEST: Final = 40.0  # beyond this many standard deviations a normal tail is below any float
_FLAT: Final = 9.0  # standard deviations below the mean at which a tail is 1, whatever z is
_LARGE: Final = 700.0  # e^700 is a float
_TINY: Final = 1e-300
_UNDERFLOW: Final = 1e-300  # smaller terms may be lost altogether
_ROUNDING: Final = ROUNDINGS * UNIT_ROUNDOFF


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
        doubt = _ROUNDING * (q + np.abs(growth))
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
        errors = _ROUNDING * errors + np.where(near, 2 * doubt * tail, 0.0) + _UNDERFLOW
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
        growth = np.expm1(np.minimum(epsilons, _LARGE))
        doubt = _ROUNDING * (q + (1 - q) * np.abs(growth))
        slack = q - (1 - q) * growth + doubt  # above the exact s: the curve is too high by at most doubt·head
        some_above = slack > 0
        log_ratio = np.log(np.where(some_above, slack, q)) - epsilons - math.log(q)
        z = np.maximum(0.5 / sigma + sigma * log_ratio, -_FARTHEST)
        z_in = np.maximum(z - 1 / sigma, -_FARTHEST)
        head, head_in = ndtr(z), ndtr(z_in)
        kept, lost = slack * head, q * (1 + growth) * head_in
        errors = kept * (1 + np.square(np.minimum(z, 0.0))) + lost * _tail_roundings(-z_in, sigma)
        errors = _ROUNDING * errors + 2 * doubt * head + _UNDERFLOW
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
            ratio * errors + _ROUNDING * (np.abs(epsilons[:below]) * ratio + 1 - ratio + ratio * values),
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
    return float(ndtri(min(max(probability, _TINY), 0.5)))


def _loss(x: float, q: float, sigma: float) -> float:
    exponent = (2 * x - 1) / (2 * sigma**2)
    if exponent > 1:
        return exponent + math.log(q) + math.log1p((1 - q) / q * math.exp(-exponent))
    return math.log1p(q * math.expm1(exponent)) if q < 1 else exponent
