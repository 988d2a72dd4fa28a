"""The product of the pairs of several queries, as one curve: what they cost together on the same records.

The queries' losses are composed at several tilts, each of which is accurate where the curve has about its
scale. At every grid point the smallest upper bound counts. Masses that are rounded upwards make a convex
curve of these bounds, which is therefore that of a pair (docs/proofs/product.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from dpfewshot.accounting.pairs.curve import ROUNDINGS, UNIT_ROUNDOFF, FloatArray
from dpfewshot.accounting.pairs.product import LowerProduct, UpperProduct
from dpfewshot.accounting.pld.compose import ComposedCurve, compose, discounted_from_top
from dpfewshot.accounting.pld.curve_on_grid import LARGEST_GROWTH
from dpfewshot.accounting.pld.discretise import Cumulants, discretise, hair_of
from dpfewshot.accounting.pld.saddle_point import Goal
from dpfewshot.accounting.pld.tilting import Step, aligned
from dpfewshot.accounting.pld.window import deviation_at, fit_window

_TAIL: Final = 1e-40  # P-mass of a query's losses beyond its grid
_FIRST_CELLS: Final = 600
_MOST_CELLS: Final = 2**17
_CELLS_PER_DEVIATION: Final = 64.0  # the grid then adds a relative 4e-5 to the variance of a loss
_SCALES: Final = (1e-3, 1e-8, 1e-16, 1e-28)  # of the curve, one for each tilt
_BULK: Final = 0.1, 40.0  # the order and the reach, in deviations, of the tilt for ordinary losses
_DROPPED: Final = tuple(
    10.0**-digits for digits in range(1, 16)
)  # what each line of the lower curve gives up
_ORDERS: Final = 2.0, 30.0  # the largest orders, in units of 1 / spacing: with and without grid error


def composed_queries(steps: Sequence[Step]) -> list[ComposedCurve]:
    """The product's curve in several windows of one grid, each accurate at another scale.

    Args:
        steps: the pair of each query, and how often it is asked. Each pair is its own reverse.
    """
    cumulants = _discretised(steps)
    spacing = cumulants.losses[0].spacing
    order, reach = _BULK
    windows = [fit_window(cumulants, order / deviation_at(cumulants, 0.0), 1.0, _SCALES[0], reach=reach)]
    for scale in _SCALES:
        saddle = Goal(scale, 0.0).order(cumulants, _ORDERS[cumulants.exact] / spacing, 0.0)
        windows.append(fit_window(cumulants, saddle, 1.0, scale))
    return [compose(window) for window in windows]


def upper_product(curves: Sequence[ComposedCurve]) -> UpperProduct:
    """A convex curve that is at least the product's."""
    losses, bounds = _merged(curves, lower=False)
    growth = math.expm1(min(_spacing(curves), LARGEST_GROWTH))
    above = np.empty_like(bounds)  # P(loss ≥ grid point)
    above[0] = 1.0
    rounding = ROUNDINGS * UNIT_ROUNDOFF
    above[1:] = bounds[:-1] + (bounds[:-1] - bounds[1:] + rounding * bounds[:-1]) / growth
    above = np.maximum.accumulate(above[::-1])[::-1] * (1 + rounding * len(above))
    first = int(np.flatnonzero(above >= 1)[-1])
    above = np.append(np.minimum(above[first:], 1.0), bounds[-1] / -math.expm1(-_spacing(curves)))
    heights = -math.expm1(-_spacing(curves)) * discounted_from_top(above, _spacing(curves))[1:]
    return UpperProduct(losses[first:] + _slack(curves), np.minimum(heights, 1.0))


def lower_product(curves: Sequence[ComposedCurve], upper: UpperProduct) -> LowerProduct:
    """A convex curve that is at most the product's: multiples of the upper one, moved by a cell."""
    losses, bounds = _merged(curves, lower=True)
    bounds = np.maximum(bounds, -np.expm1(np.minimum(losses, 0.0)))
    slack = _slack(curves) + ROUNDINGS * UNIT_ROUNDOFF * float(np.abs(losses).max())
    heights, errors, _ = upper.curve(losses - slack)
    lines = []
    for dropped in _DROPPED:
        share = float(np.min((bounds + dropped) / (heights + errors + UNIT_ROUNDOFF * dropped)))
        lines.append((min(max(share * (1 - 1e-12), 0.0), 1.0), dropped))
    return LowerProduct(upper, _farthest_from_grid(curves) + 4 * slack, tuple(lines))


def _discretised(steps: Sequence[Step]) -> Cumulants:
    """The queries' losses on the grid that the product's deviation asks for."""
    ranges = [pair.loss_range(_TAIL, _TAIL) for pair, _ in steps]
    widest = max(high - low for low, high in ranges)

    def on_grid(near: float) -> Cumulants:
        spacing = aligned(steps, near)
        return Cumulants(
            tuple(
                discretise(pair, count, spacing, low, high)
                for (pair, count), (low, high) in zip(steps, ranges, strict=True)
            )
        )

    variance = on_grid(widest / _FIRST_CELLS).derivatives(0.0)[2]
    deviation = math.sqrt(variance / sum(count for _, count in steps))
    return on_grid(max(deviation / _CELLS_PER_DEVIATION, widest / _MOST_CELLS))


def _spacing(curves: Sequence[ComposedCurve]) -> float:
    return curves[0].tilt.cumulants.losses[0].spacing


def _slack(curves: Sequence[ComposedCurve]) -> float:
    return max(curve.slack for curve in curves)


def _farthest_from_grid(curves: Sequence[ComposedCurve]) -> float:
    """How far below a grid point the product's curve may bend: a cell, or a hair for exact point masses."""
    cumulants = curves[0].tilt.cumulants
    if not cumulants.exact:
        return _spacing(curves)
    return 2 * sum(loss.steps * hair_of(loss) for loss in cumulants.losses)


def _merged(curves: Sequence[ComposedCurve], *, lower: bool) -> tuple[FloatArray, FloatArray]:
    """The union of the windows' grid points, and the best bound at each: decreasing."""
    first = min(curve.tilt.low for curve in curves)
    count = max(curve.tilt.low + curve.tilt.length for curve in curves) - first
    losses = _spacing(curves) * np.arange(first, first + count, dtype=np.float64)
    losses += curves[0].tilt.cumulants.origin
    bounds = np.full(count, -np.inf if lower else 1.0)
    for curve in curves:
        window = slice(curve.tilt.low - first, curve.tilt.low - first + curve.tilt.length)
        if lower:
            bounds[window] = np.fmax(bounds[window], curve.lower())
        else:
            bounds[window] = np.fmin(bounds[window], curve.upper())
    if lower:
        return losses, np.maximum.accumulate(bounds[::-1])[::-1]
    return losses, np.minimum.accumulate(bounds)
