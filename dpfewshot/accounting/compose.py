"""The composed hockey-stick curve near one ε: tilt, fast Fourier transform, certified errors.

H(ε) = e^{K(λ)}·Σ_{l > ε} e^{-λl}·g(l)·(1 - e^{ε-l}) with g the tilted composed masses. The errors of
truncation, wrap-around and round-off are bounded, and the bounds kept (docs/proofs/accounting.md, 3 to 5).

The shortfall is how far the discretised composed curve may lie above the exact one: what the lower bound
gives up. Telescoping over the steps: replacing one step's exact pair by its discretisation raises H(ε) by the
mean gap between the two curves at ε - l, where l is the loss of the other steps. Functions convex in e^l
bound the gap, and the composed curve bounds their means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from dpfewshot.accounting.curves import LARGE, UNIT_ROUNDOFF, FloatArray
from dpfewshot.accounting.grid import Cumulants, GridLoss, hair_of
from dpfewshot.accounting.tilting import Tilt

_FFT_ROUNDINGS: Final = 8.0  # a generous bound for each of the log2(N) levels of a transform
_POWER_ROUNDINGS: Final = 4.0  # of a complex product: sqrt(5) (Brent, Percival, Zimmermann 2007)
_Number = TypeVar("_Number", np.complex128, np.float64)

_LARGEST: Final = 300.0  # e^{±300} is a float

_MASS_ROUNDING: Final = 1e-11  # relative, of scaled_mass: its exponents reach 10³, and 10³·u is smaller
_TINY: Final = 1e-300  # keeps a quotient of two zeros defined
_SLACK: Final = 1 + 1e-6  # covers the roundings in the bounds below
_FIRST_GROUP: Final = 0.1  # in units of 1/slope; each further group of cells reaches twice as high
_REACHES: Final = (0.7, 2.0)  # in units of 1/slope: distances of a hinge above its cells


@dataclass(frozen=True, slots=True)
class ComposedCurve:
    """H(ε) in a window, with certified bounds.

    In the cell (losses[k-1], losses[k]] the curve is heads[k] - e^{ε - losses[k]}·tails[k].

    Attributes:
        losses: the grid points of the window.
        heads: P-mass at each grid point and above, within the window.
        tails: the same mass, weighted by e^{losses[k] - loss}.
        noise: bounds on the round-off in H at each grid point and above.
        relative: bound on the other, relative error of heads and tails.
        missing: bound on the mass outside the window and at infinity, which the upper bound includes.
        tilt: the order, grid and window that gave it.
    """

    losses: FloatArray
    heads: FloatArray
    tails: FloatArray
    noise: FloatArray
    relative: float
    missing: float
    tilt: Tilt

    @property
    def slack(self) -> float:
        """Bound on the round-off of `losses`."""
        return 8 * UNIT_ROUNDOFF * abs(self.tilt.cumulants.origin)

    def upper(self) -> FloatArray:
        """Upper bounds of H at the grid points."""
        kept, lost = self._above()
        within = np.maximum(kept * (1 + self.relative) - lost * (1 - self.relative), 0.0)
        return np.minimum(within + self.noise + self.missing, 1.0)

    def lower(self) -> FloatArray:
        """Lower bounds of H at the grid points; they may be negative."""
        kept, lost = self._above()
        return kept * (1 - self.relative) - lost * (1 + self.relative) - self.shortfall()

    def _above(self) -> tuple[FloatArray, FloatArray]:
        decay = math.exp(-self.tilt.cumulants.spacing)
        return np.append(self.heads[1:], 0.0), decay * np.append(self.tails[1:], 0.0)

    def shortfall(self) -> FloatArray:
        """What the lower bound gives up at each grid point. Decreasing."""
        return self.noise + self._wrapped() + discretisation_shortfall(self.tilt, self.losses, self.upper())

    def _wrapped(self) -> FloatArray:
        """Bound on the mass that wraps round: from below the window, and from above it to losses above ε."""
        tilt, order = self.tilt, self.tilt.wrap_order
        width = tilt.cumulants.spacing * tilt.length
        gap = (order - tilt.order) * width
        # One rounding is the moment's; the other terms of the exponent have less than three.
        value = tilt.cumulants.log_moment(order) + 4 * tilt.cumulants.rounding(order)
        above = np.exp(np.minimum(value - order * self.losses - gap, LARGE)) / -math.expm1(-gap)
        above[self.losses > tilt.highest - width] = 0.0  # no loss is high enough to wrap round to there
        return np.asarray(above * (1 + 1e-6) + tilt.wrapped_below, dtype=np.float64)


def compose(tilt: Tilt) -> ComposedCurve:
    """Compose the steps of `tilt` in its window."""
    cumulants, order, length = tilt.cumulants, tilt.order, tilt.length
    spacing = cumulants.spacing
    product = np.ones(length // 2 + 1, dtype=np.complex128)
    bound = np.ones(length // 2 + 1)
    relative_error = np.zeros(length // 2 + 1)
    rounding = _FFT_ROUNDINGS * UNIT_ROUNDOFF * math.log2(length)
    start, tilt_error, log_scale = 0, 0.0, 0.0
    for loss in cumulants.losses:
        folded, log_mass, error = _tilted(loss, order, length)
        transform = rfft(folded)
        magnitude = np.abs(transform) + 2 * rounding
        product *= _power(transform, loss.steps)
        bound *= _power(magnitude, loss.steps)
        relative_error += loss.steps * (2 * rounding / magnitude + _POWER_ROUNDINGS * UNIT_ROUNDOFF)
        start += loss.steps * loss.start
        tilt_error += loss.steps * error
        log_scale += loss.steps * log_mass
    masses = np.roll(irfft(product, length), (start - tilt.low) % length)
    frequency_error = bound * relative_error
    error = math.sqrt(2 / length * float(np.square(frequency_error).sum()))
    error += rounding * 2 / math.sqrt(length) * float((np.abs(product) + frequency_error).sum())
    losses = spacing * np.arange(tilt.low, tilt.low + length, dtype=np.float64) + cumulants.origin
    exponents = log_scale - order * losses
    weights = np.exp(np.minimum(exponents, _LARGEST))
    noise = np.where(exponents < _LARGEST, weights * error * _weight_norm(order, spacing, length), np.inf)
    composed = np.maximum(masses, 0.0) * weights
    reach = spacing * length + float(np.abs(losses).max()) + abs(cumulants.origin)
    largest = 8 + abs(log_scale) + (1 + order) * reach
    return ComposedCurve(
        losses=losses,
        heads=_from_top(composed),
        tails=discounted_from_top(composed, spacing),
        noise=noise,
        relative=2 * tilt_error + UNIT_ROUNDOFF * (4 * length + 8 * largest),
        missing=tilt.mass_above + cumulants.infinite_mass,
        tilt=tilt,
    )


def _tilted(loss: GridLoss, order: float, length: int) -> tuple[FloatArray, float, float]:
    """A step's tilted masses, normalised and folded into the window; the log of their sum; their error."""
    exponents = order * loss.losses + loss.log_masses
    shift = float(exponents.max())
    masses = np.exp(exponents - shift)
    total = float(masses.sum())
    masses /= total
    largest = float(np.abs(order * loss.losses).max()) + 700
    padded = np.zeros(-(-len(masses) // length) * length)
    padded[: len(masses)] = masses
    return padded.reshape(-1, length).sum(axis=0), shift + math.log(total), 4 * UNIT_ROUNDOFF * largest


def _power(base: NDArray[_Number], exponent: int) -> NDArray[_Number]:
    """base**exponent by squaring. In all, the error of at most 2·exponent products."""
    result: NDArray[_Number] | None = None
    while True:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if not exponent:
            return base if result is None else result
        base = base * base


def _from_top(masses: FloatArray) -> FloatArray:
    return np.asarray(np.cumsum(masses[::-1])[::-1], dtype=np.float64)


def discounted_from_top(masses: FloatArray, spacing: float) -> FloatArray:
    """Σ_{j ≥ k} masses[j]·e^{-(j-k)·spacing}, in chunks short enough that no exponential overflows."""
    result = np.empty_like(masses)
    chunk = max(int(_LARGEST / spacing), 1)
    carry = 0.0
    for stop in range(len(masses), 0, -chunk):
        start = max(stop - chunk, 0)
        decay = np.exp(-spacing * np.arange(stop - start, dtype=np.float64))
        summed = _from_top(masses[start:stop] * decay) / decay
        result[start:stop] = summed + carry * decay[::-1] * math.exp(-spacing)
        carry = float(result[start])
    return result


def _weight_norm(order: float, spacing: float, length: int) -> float:
    """Upper bound of the L2 norm over j ≥ 1 of e^{-λhj}·(1 - e^{-hj}), with min(1, hj) for the bracket."""
    ratio = math.exp(-2 * order * spacing)
    rest = -math.expm1(-2 * order * spacing)
    flat = ratio / rest if rest > 0 else math.inf
    linear = spacing**2 * ratio * (1 + ratio) / rest**3 if rest > 0 else math.inf
    return math.sqrt(min(flat, linear, length))


# ---- the shortfall ----------------------------------------------------------------------------------------


def discretisation_shortfall(tilt: Tilt, at: FloatArray, upper: FloatArray) -> FloatArray:
    """A bound, decreasing in ε, on what discretisation adds to H(ε) at the grid points `at`.

    `upper` are upper bounds of H there, decreasing.
    """
    spacing = tilt.cumulants.spacing
    answer = min(int(np.searchsorted(-upper, -tilt.scale)), len(at) - 2)
    slope = math.log((upper[answer] + _TINY) / (upper[answer + 1] + _TINY)) / spacing
    curve = _Composed(at, upper, min(max(slope, 0.1 * tilt.order), 10 * tilt.saddle), spacing)
    total = np.zeros_like(upper)
    for loss in tilt.cumulants.losses:
        ends, gaps = discretisation_gaps(loss)
        exponentials = list(_exponentials(loss, tilt))
        for start, stop in _groups(ends, curve.slope):
            total += loss.steps * _least_bound(ends[start:stop], gaps[start:stop], curve, exponentials)
        values, errors, scaled_mass = (float(array[-1]) for array in loss.curve)
        total += loss.steps * (values + errors + scaled_mass * (1 + _MASS_ROUNDING))  # mass above the grid
    return total * _SLACK


class _Composed(NamedTuple):
    """Upper bounds of H at the grid points `at`, and d log H / dε near the answer."""

    at: FloatArray
    upper: FloatArray
    slope: float
    spacing: float

    def raised(self, shift: int) -> FloatArray:
        """Upper bounds of H(ε - shift·spacing) at every grid point."""
        index = np.arange(len(self.upper)) - shift
        known = self.upper[np.clip(index, 0, len(self.upper) - 1)]
        return np.where(index < 0, 1.0, known)


def _exponentials(loss: GridLoss, tilt: Tilt) -> Iterator[tuple[float, float]]:
    """Orders s, each with K(s) of all steps but one of `loss`, rounded up."""
    step = Cumulants((loss,))
    for order in {tilt.order, tilt.saddle}:
        others = tilt.cumulants.log_moment(order) - step.log_moment(order) / loss.steps
        yield order, others + 4 * tilt.cumulants.rounding(order)  # of both, and of what is added to them


def _groups(ends: FloatArray, slope: float) -> Iterator[tuple[int, int]]:
    """Runs of cells; the upper end doubles from one to the next."""
    start, reach = 0, _FIRST_GROUP / slope
    while start < len(ends):
        stop = int(np.searchsorted(ends, reach, side="right"))
        if stop > start:
            yield start, stop
        start, reach = stop, 2 * reach


def _least_bound(
    ends: FloatArray,
    gaps: FloatArray,
    curve: _Composed,
    exponentials: list[tuple[float, float]],
) -> FloatArray:
    """The smallest of several bounds on the mean gap of these cells, at each grid point.

    The gap at e is at most C·(1 - e^{e-e0}), and at most c·e^{-se}. Both are convex and increasing in e^l at
    e = ε - l, so their means over the other steps are at most C·H(ε - e0) and c·e^{K(s)-sε}, with K of those
    steps. Exponents are added before they are cut: each may be large where their sum is not.
    """
    end = float(ends[-1])
    best = np.full_like(curve.upper, float(gaps.max()))
    for reach in (*(each / curve.slope for each in _REACHES), max(end, curve.spacing)):
        shift = math.ceil(min((end + reach) / curve.spacing, float(len(curve.at))))
        if (shift - 0.5) * curve.spacing > end:
            hinge = float(np.max(gaps / -np.expm1(ends - shift * curve.spacing)))
            best = np.minimum(best, hinge * curve.raised(shift))
    logs = np.log(gaps, out=np.full_like(gaps, -np.inf), where=gaps > 0)
    for order, others in exponentials:
        exponents = float(np.max(logs + order * ends)) + others - order * curve.at
        best = np.minimum(best, np.exp(np.minimum(exponents, LARGE)))
    return best


def discretisation_gaps(loss: GridLoss) -> tuple[FloatArray, FloatArray]:
    """The upper ends of the cells, and for each a bound on how far its curve may lie above the pair's own.

    The first cell holds everything below the grid. The bound is the chord less the tangents at both ends (f
    is convex in e^ε), plus what round-off added at this grid point and above.
    """
    values, errors, scaled_mass = loss.curve
    growth = math.expm1(min(loss.spacing, LARGE))
    secant = (values[:-1] - values[1:]) / growth
    noise = 2 * (errors[:-1] + errors[1:]) / growth + _MASS_ROUNDING * scaled_mass[:-1]
    left = np.maximum(scaled_mass[:-1] - secant, 0.0) + noise
    right = np.maximum(secant - scaled_mass[1:] * math.exp(-loss.spacing), 0.0) + noise
    chord = left / (left + right + _TINY) * right * growth
    if loss.coarse_log_masses is None:
        # Point masses lie a hair below their grid points, where the slope is at most the mass above.
        chord = hair_of(loss) * _from_top(np.exp(loss.log_masses))[1:]
    elif loss.spacing >= LARGE:
        chord = values[:-1] + errors[:-1]  # no more than the curve itself
    below = max(1 - values[0] - scaled_mass[0] * (1 - _MASS_ROUNDING), 0.0) + float(errors[0])
    from_round_off = 4 * _from_top(errors + 16 * UNIT_ROUNDOFF * values)
    return loss.losses, np.concatenate([[below], chord]) + np.append(from_round_off[:1], from_round_off[:-1])
