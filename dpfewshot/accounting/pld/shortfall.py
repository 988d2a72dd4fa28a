"""How far the discretised composed curve may lie above the exact one: what the lower bound gives up.

Telescoping over the steps: replacing one step's exact pair by its discretisation raises H(ε) by the mean gap
between the two curves at ε - l, where l is the loss of the other steps. Functions convex in e^l bound the
gap, and the composed curve bounds their means (docs/proofs/accounting.md, 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from dpfewshot.accounting.pairs.curve import UNIT_ROUNDOFF, FloatArray
from dpfewshot.accounting.pld.curve_on_grid import LARGEST_GROWTH
from dpfewshot.accounting.pld.discretise import Cumulants, GridLoss, hair_of
from dpfewshot.accounting.pld.window import Tilt

_MASS_ROUNDING: Final = 1e-11  # relative, of scaled_mass: its exponents reach 10³, and 10³·u is smaller
_TINY: Final = 1e-300  # keeps a quotient of two zeros defined
_SLACK: Final = 1 + 1e-6  # covers the roundings in the bounds below
_FIRST_GROUP: Final = 0.1  # in units of 1/slope; each further group of cells reaches twice as high
_REACHES: Final = (0.7, 2.0)  # in units of 1/slope: distances of a hinge above its cells


def discretisation_shortfall(tilt: Tilt, at: FloatArray, upper: FloatArray) -> FloatArray:
    """A bound, decreasing in ε, on what discretisation adds to H(ε) at the grid points `at`.

    Args:
        tilt: of the composition.
        at: the grid points of its window.
        upper: upper bounds of H there, decreasing.
    """
    spacing = tilt.cumulants.losses[0].spacing
    answer = min(int(np.searchsorted(-upper, -tilt.scale)), len(at) - 2)
    slope = math.log((upper[answer] + _TINY) / (upper[answer + 1] + _TINY)) / spacing
    curve = _Composed(at, upper, min(max(slope, 0.1 * tilt.order), 10 * tilt.saddle), spacing)
    total = np.zeros_like(upper)
    for loss in tilt.cumulants.losses:
        ends, gaps = discretisation_gaps(loss)
        exponentials = list(_exponentials(loss, tilt))
        for start, stop in _groups(ends, curve.slope):
            total += loss.steps * _least_bound(ends[start:stop], gaps[start:stop], curve, exponentials)
        total += loss.steps * mass_above_grid(loss)
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
        best = np.minimum(best, np.exp(np.minimum(exponents, 700.0)))
    return best


def discretisation_gaps(loss: GridLoss) -> tuple[FloatArray, FloatArray]:
    """How far the discretised curve may lie above the pair's own, between grid points.

    Returns:
        The upper ends of the cells, the first of which holds everything below the grid; and for each cell
        an upper bound of its gap: the chord less the tangents at both ends (f is convex in e^ε), plus what
        round-off added at this grid point and above.
    """
    values, errors, scaled_mass = loss.curve
    growth = math.expm1(min(loss.spacing, LARGEST_GROWTH))
    secant = (values[:-1] - values[1:]) / growth
    noise = 2 * (errors[:-1] + errors[1:]) / growth + _MASS_ROUNDING * scaled_mass[:-1]
    left = np.maximum(scaled_mass[:-1] - secant, 0.0) + noise
    right = np.maximum(secant - scaled_mass[1:] * math.exp(-loss.spacing), 0.0) + noise
    chord = left / (left + right + _TINY) * right * growth
    if loss.coarse_log_masses is None:
        chord = _gaps_at_point_masses(loss)
    elif loss.spacing >= LARGEST_GROWTH:
        chord = values[:-1] + errors[:-1]  # no more than the curve itself
    below = max(1 - values[0] - scaled_mass[0] * (1 - _MASS_ROUNDING), 0.0) + float(errors[0])
    from_round_off = 4 * np.cumsum((errors + 16 * UNIT_ROUNDOFF * values)[::-1])[::-1]
    return loss.losses, np.concatenate([[below], chord]) + np.append(from_round_off[:1], from_round_off[:-1])


def _gaps_at_point_masses(loss: GridLoss) -> FloatArray:
    """Point masses lie a hair below their grid points, where the curve's slope is at most the mass above."""
    above = np.cumsum(np.exp(loss.log_masses)[::-1])[::-1]
    return np.asarray(hair_of(loss) * above[1:], dtype=np.float64)


def mass_above_grid(loss: GridLoss) -> float:
    """Upper bound of the pair's own P-mass above the highest grid point."""
    values, errors, scaled_mass = loss.curve
    return float(values[-1] + errors[-1] + scaled_mass[-1] * (1 + _MASS_ROUNDING))
