"""The privacy loss of one step on a grid, and the exponential moments of composed losses.

"Connect the dots" (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022): the discretised loss has the pair's
own hockey-stick curve at every grid point, and is linear in e^ε between them, so it dominates the pair.
Round-off moves mass only to higher losses (docs/proofs/accounting.md, 2).

As a function of y = e^ε a curve is 1 at y = 0, convex, non-increasing, and at least 1 - y (Zhu, Dong, Wang
2022). A wrong formula rarely has all of these, so every curve is checked for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpfewshot.accounting.curves import LARGE, ROUNDING, UNIT_ROUNDOFF, Curve, DominatingPair, FloatArray
from dpfewshot.errors import AccountingError

Step = tuple[DominatingPair, int]
"""A pair, and how often it is repeated."""

HAIR: Final = 4 * ROUNDING
"""Distance of a grid point above its point mass: more than the error of either."""

_LONGEST_LOG: Final = 760.0  # bound on |log| of a float mass plus the log of the number of masses
_ALIGNED: Final = 1e-12  # relative distance of a point mass from its grid point
_CHECK_ROUNDINGS: Final = 8 * UNIT_ROUNDOFF  # of the checks themselves, relative
_UNDERFLOW: Final = 1e-300


@dataclass(frozen=True, slots=True)
class GridLoss:
    """The discretised privacy loss of one step, which is repeated `steps` times.

    Attributes:
        spacing: h, the distance of grid points.
        start: the lowest grid point is h·start + offset.
        offset: 0, or the shift that puts point masses on grid points.
        losses: the grid points.
        log_masses: log of the P-mass on each grid point.
        infinite_mass: P-mass at an infinite loss.
        coarse_log_masses: the same at 2h, on every second grid point; None where all point masses lie on
            grid points, so that the grid adds no error.
        curve: the pair's own curve at the grid points, with its errors.
        steps: T.
    """

    spacing: float
    start: int
    offset: float
    losses: FloatArray
    log_masses: FloatArray
    infinite_mass: float
    coarse_log_masses: FloatArray | None
    curve: Curve
    steps: int


def discretise(pair: DominatingPair, steps: int, spacing: float, low: float, high: float) -> GridLoss:
    """The loss of `pair` on grid points that cover [low, high].

    Grid points are multiples of `spacing`. For point masses they are shifted so that the first lies on one.
    """
    lattice = pair.lattice
    offset = 0.0
    if lattice is not None:  # a hair higher, so that round-off puts no mass above the last point mass
        above = HAIR * (1 + abs(lattice.first) + lattice.gap)
        offset = math.remainder(lattice.first + above, spacing)
    exact = lattice is not None and abs(math.remainder(lattice.gap, spacing)) <= _ALIGNED * lattice.gap
    start = math.floor((low - offset) / spacing)
    count = math.ceil((high - offset) / spacing) - start
    if lattice is not None:  # round-off may move the first and the last point mass past their grid points
        start, count = start - 1, count + 2
    count = max(count + count % 2, 2)  # even, so that every second grid point includes the last
    losses = spacing * np.arange(start, start + count + 1, dtype=np.float64) + offset
    curve = curve_on_grid(pair, losses, offset, spacing)
    upper = np.minimum(curve.values + curve.errors, 1.0)
    lower = np.maximum(curve.values - curve.errors, 0.0)
    return GridLoss(
        spacing=spacing,
        start=start,
        offset=offset,
        losses=losses,
        log_masses=_log_masses(upper, lower, spacing),
        infinite_mass=float(upper[-1]),
        coarse_log_masses=None if exact else _log_masses(upper[::2], lower[::2], 2 * spacing),
        curve=curve,
        steps=steps,
    )


def hair_of(loss: GridLoss) -> float:
    """Bound on the distance of point masses below their grid points."""
    return 2 * HAIR * (1 + 2 * float(np.abs(loss.losses).max()) + loss.spacing)


def _log_masses(upper: FloatArray, lower: FloatArray, spacing: float) -> FloatArray:
    """Masses whose sum from any grid point upwards is at least that of the exact discretisation.

    For a curve f that is linear in e^ε between grid points, the mass at ε_{i+1} and above is
    f_i + (f_i - f_{i+1}) / (e^h - 1). A smaller divisor only adds mass.
    """
    from_top = np.empty_like(upper)
    from_top[0] = 1.0  # mass below the grid is rounded up to its lowest point
    from_top[1:] = upper[:-1] + (upper[:-1] - lower[1:]) / math.expm1(min(spacing, LARGE))
    from_top = np.maximum.accumulate(from_top[::-1])[::-1]
    from_top = np.minimum(from_top * (1 + 8 * UNIT_ROUNDOFF), 1.0)
    masses = from_top.copy()
    masses[:-1] -= from_top[1:]
    masses[-1] = max(masses[-1] - upper[-1], 0.0)
    masses *= 1 + 4 * UNIT_ROUNDOFF
    return np.log(masses, out=np.full_like(masses, -np.inf), where=masses > 0)


@dataclass(frozen=True, slots=True)
class Cumulants:
    """K(s) = Σ steps·log Σ mass·e^{s·loss} of the finite part of the composed loss.

    K'(s) and K''(s) are the mean and the variance of the composed loss after tilting by e^{s·loss}.
    """

    losses: tuple[GridLoss, ...]

    @property
    def spacing(self) -> float:
        """The spacing of the grid, h, which all steps share."""
        return self.losses[0].spacing

    @property
    def infinite_mass(self) -> float:
        """Upper bound of the P-mass at an infinite loss."""
        return sum(loss.steps * loss.infinite_mass for loss in self.losses)

    @property
    def exact(self) -> bool:
        """Whether the grid adds no error."""
        return all(loss.coarse_log_masses is None for loss in self.losses)

    @property
    def origin(self) -> float:
        """The composed losses are multiples of the spacing, shifted by this."""
        return sum(loss.steps * loss.offset for loss in self.losses)

    def log_moment(self, order: float) -> float:
        """K(order), for any real order."""
        return sum(loss.steps * _log_sum(order * loss.losses + loss.log_masses) for loss in self.losses)

    def rounding(self, order: float) -> float:
        """Bound on the round-off of K(order), in each exponent and in the sums."""
        ends = [(loss.steps, max(-float(loss.losses[0]), float(loss.losses[-1]))) for loss in self.losses]
        terms = (steps * (_LONGEST_LOG + abs(order) * end) for steps, end in ends)
        return 8 * UNIT_ROUNDOFF * math.fsum(terms)

    def derivatives(self, order: float) -> tuple[float, float, float]:
        """K, K' and K'' at `order`."""
        total, mean, variance = 0.0, 0.0, 0.0
        for loss in self.losses:
            exponents = order * loss.losses + loss.log_masses
            shift = float(np.maximum.reduce(exponents))
            tilted = np.exp(exponents - shift)
            mass = float(np.add.reduce(tilted))
            tilted /= mass
            step_mean = float(np.add.reduce(tilted * loss.losses))  # not BLAS: its threads cost more
            total += loss.steps * (shift + math.log(mass))
            mean += loss.steps * step_mean
            variance += loss.steps * float(np.add.reduce(tilted * np.square(loss.losses - step_mean)))
        return total, mean, variance

    def grid_excess(self, order: float) -> float:
        """Estimate of the grid's share of K(order): a third of what doubling the spacing adds."""
        added = 0.0
        for loss in self.losses:
            if loss.coarse_log_masses is not None:
                coarse = _log_sum(order * loss.losses[::2] + loss.coarse_log_masses)
                added += loss.steps * (coarse - _log_sum(order * loss.losses + loss.log_masses))
        return added / 3


def _log_sum(exponents: FloatArray) -> float:
    shift = float(np.maximum.reduce(exponents))
    return shift + math.log(float(np.add.reduce(np.exp(exponents - shift))))


def discretised(steps: Sequence[Step], ranges: Sequence[tuple[float, float]], spacing: float) -> Cumulants:
    """The moments of all steps on one grid, each over its own range of losses."""
    each = zip(steps, ranges, strict=True)
    return Cumulants(tuple(discretise(pair, count, spacing, *ends) for (pair, count), ends in each))


def aligned(steps: Sequence[Step], spacing: float) -> float:
    """About `spacing`, so that the lattice with the widest gaps lies on the grid and adds no grid error."""
    gaps = [pair.lattice.gap if pair.lattice else 0.0 for pair, _ in steps]
    gap = max(gaps)
    if gap < spacing:
        return spacing
    if min(gaps) == gap:
        return gap  # no point mass lies between
    return gap / math.ceil(gap / spacing)


def curve_on_grid(pair: DominatingPair, losses: FloatArray, offset: float, spacing: float) -> Curve:
    """The curve of `pair` at the exact grid points, whole multiples of `spacing` > 0, each plus `offset`.

    `losses` are the floats nearest to them. Values that violate a property by more than their stated errors
    are an AccountingError.
    """
    curve = pair.curve(losses)
    values, errors, scaled_mass = curve
    floor = -np.expm1(np.minimum(losses, 0.0))
    errors = errors + _rounding_of_grid_points(pair, losses, offset, spacing, curve)
    _check(values - errors, values + errors, floor, spacing)
    return Curve(np.clip(values, floor, 1.0), errors, scaled_mass)


def _rounding_of_grid_points(
    pair: DominatingPair, losses: FloatArray, offset: float, spacing: float, curve: Curve
) -> FloatArray:
    """Bounds on the change of the curve between a grid point and its float.

    By convexity in y, the slope in ε is at most that of the chord to the previous point. It is also at most
    1 - H(ε), since H(ε) and the slope add up to P(loss > ε).
    """
    away = 3 * UNIT_ROUNDOFF * (np.abs(losses) + abs(offset))
    slope = np.ones_like(losses)
    drop = np.maximum(curve.values[:-1] - curve.values[1:], 0.0) + curve.errors[:-1] + curve.errors[1:]
    slope[1:] = np.minimum(1.0, drop / -math.expm1(-spacing))
    zero = (curve.values == 0) & (curve.errors == 0)
    if zero.any():  # no loss lies above the float, nor above the exact point if H is 0 slightly below it
        first = int(np.argmax(zero))
        before = pair.curve(losses[first : first + 1] - 2 * away[first])
        if before.values[0] == 0 and before.errors[0] == 0:
            slope[first:] = 0.0
    return np.asarray(away * slope * (1 + 1e-6), dtype=np.float64)


def _check(lower: FloatArray, upper: FloatArray, floor: FloatArray, spacing: float) -> None:
    high = upper * (1 + _CHECK_ROUNDINGS) + _UNDERFLOW
    share = math.exp(-spacing) / (1 + math.exp(-spacing))  # weight of the later neighbour, by distance in y
    chords = (1 - share) * high[:-2] + share * high[2:]
    first_chord = -math.expm1(-spacing) + math.exp(-spacing) * high[1]  # from y = 0, where the curve is 1
    shapes = {
        "below 1 - e^ε": high >= floor,
        "increasing": lower[1:] <= high[:-1],
        "not convex": lower[1:-1] <= chords,
        "above its chord from 1": lower[0] <= first_chord,
    }
    for what, holds in shapes.items():  # `holds` is also false where a value is not a number
        if not np.all(holds):
            raise fault_of_the_accountant(f"a privacy curve is {what}")


def fault_of_the_accountant(what: str) -> AccountingError:
    """The error of a calculation that contradicts itself."""
    return AccountingError(
        f"{what}: this is a fault of the accountant, which certifies nothing here; please report the event: "
        "it holds public numbers only"
    )
