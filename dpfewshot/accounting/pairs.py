"""The dominating pairs of each event, of several queries on one draw too.

The accountant needs only the curve H(ε) = sup_S P(S) - e^ε·Q(S) of a pair (P, Q), so a new event needs one
class with a curve, and one case in `dominating_pairs`.

Several queries on one Poisson draw cost the subsampled product of their pairs (docs/proofs/product.md). Their
losses are composed at several tilts, each of which is accurate where the curve has about its scale. At every
grid point the smallest upper bound counts. Masses that are rounded upwards make a convex curve of these
bounds, which is therefore that of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from dpfewshot.accounting.compose import ComposedCurve, compose, discounted_from_top
from dpfewshot.accounting.curves import (
    LARGE,
    ROUNDING,
    UNIT_ROUNDOFF,
    Added,
    Curve,
    DominatingPair,
    FloatArray,
    GaussianPair,
    RangePair,
    Removed,
    Replaced,
    responses,
)
from dpfewshot.accounting.events import (
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Query,
)
from dpfewshot.accounting.grid import Step, aligned, discretised, hair_of
from dpfewshot.accounting.tilting import Goal, deviation_at, fit_window
from dpfewshot.errors import InvalidPlan

Pairs = tuple[DominatingPair, DominatingPair]

_ROUNDING: Final = 2 * ROUNDING  # of a product's curve
_TAIL: Final = 1e-40  # P-mass of a query's losses beyond its grid
_FIRST_CELLS: Final = 600
_MOST_CELLS: Final = 2**17
_CELLS_PER_DEVIATION: Final = 64.0  # the grid then adds a relative 4e-5 to the variance of a loss
_SCALES: Final = (1e-3, 1e-8, 1e-16, 1e-28)  # of the curve, one for each tilt
_BULK: Final = 0.1, 40.0  # the order and the reach, in deviations, of the tilt for ordinary losses
_DROPPED: Final = tuple(10.0**-digits for digits in range(1, 16))  # by each line of the lower curve
_ORDERS: Final = 2.0, 30.0  # the largest orders, in units of 1 / spacing: with and without grid error


def dominating_pairs(event: Event, *, lower: bool = False) -> Pairs:
    """The pairs of one step of `event`, no composition: with the unit removed, and with it added.

    Both are the same for a symmetric relation, as replace-one is. With `lower`, curves of products, which are
    known through bounds, are at most the exact ones.
    """
    match event:
        case PoissonGaussian(sampling_rate=q, noise_multiplier=sigma):
            return _sampled(q, GaussianPair(sigma))
        case PoissonBoundedRange(sampling_rate=q, epsilon=cost):
            return _sampled(q, RangePair(cost))
        case PoissonRandomizedResponse(sampling_rate=q, epsilon=cost):
            return responses(q, cost)
        case FixedSizeGaussian(sampling_rate=q, noise_multiplier=sigma):
            pair = Replaced(Removed(q, GaussianPair(sigma)))
            return pair, pair
        case PoissonProduct(sampling_rate=q, merged=queries):
            if len(queries) == 1 and queries[0].steps == 1:
                return dominating_pairs(replace(queries[0], sampling_rate=q))
            product = _product(queries)[lower]
            return Removed(q, product), Added(q, product)
    raise InvalidPlan(f"no dominating pair is known for {type(event).__name__}")


def _sampled(rate: float, pair: DominatingPair) -> Pairs:
    """Both directions of a pair that is its own reverse. Where every unit is drawn they are the same."""
    return (pair, pair) if rate == 1 else (Removed(rate, pair), Added(rate, pair))


@lru_cache(maxsize=64)
def _product(queries: tuple[Query, ...]) -> tuple[UpperProduct, LowerProduct]:
    curves = composed_queries([(dominating_pairs(query)[0], query.steps) for query in queries])
    upper = upper_product(curves)
    return upper, lower_product(curves, upper)


@dataclass(frozen=True, slots=True, eq=False)
class UpperProduct(DominatingPair):
    """A curve that is linear in e^ε between grid points: convex, and above the product's own.

    Attributes:
        losses: increasing grid points. Below the first the curve runs straight to 1 at e^ε = 0; above the
            last it is constant.
        heights: the curve there, in [0, 1].
    """

    losses: FloatArray
    heights: FloatArray

    def curve(self, epsilons: FloatArray) -> Curve:
        """See DominatingPair. Interpolates; all terms are positive, so round-off stays relative."""
        last = len(self.losses) - 1
        cell = np.searchsorted(self.losses, epsilons, side="left")
        upper, lower = np.minimum(cell, last), np.clip(cell - 1, 0, last)
        end, start = self.losses[upper], np.where(cell == 0, -np.inf, self.losses[lower])
        high, low = self.heights[upper], np.where(cell == 0, 1.0, self.heights[lower])
        below_end = np.maximum(end - epsilons, 0.0)
        width = np.where(cell <= last, -np.expm1(np.minimum(start - end, 0.0)), 1.0)  # above the last: flat
        share = np.minimum(-np.expm1(-below_end) / width, 1.0)
        values = high * (1 - share) + low * share
        scaled_mass = np.exp(-below_end) * ((low - high) / width)
        reach = 1 + np.abs(epsilons) + np.abs(end)
        return Curve(values, _ROUNDING * (values + scaled_mass * reach), scaled_mass)

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See DominatingPair. Wide enough for the losses under B too, which mirror those under A."""
        low, high = np.searchsorted(-self.heights, [-below, -above]).clip(max=len(self.losses) - 1)
        return -float(self.losses[low]), float(self.losses[high])


@dataclass(frozen=True, slots=True, eq=False)
class LowerProduct(DominatingPair):
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
        """See DominatingPair. No curve is below 1 - e^ε and 0, so this one is not."""
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

    def loss_range(self, below: float, above: float) -> tuple[float, float]:
        """See UpperProduct."""
        return self.upper.loss_range(below, above)


# ---- the curves of a product ------------------------------------------------------------------------------


def composed_queries(steps: Sequence[Step]) -> list[ComposedCurve]:
    """The product's curve in several windows of one grid, each accurate at another scale.

    Each pair is its own reverse. The product's deviation decides the grid.
    """
    farthest = [pair.loss_range(_TAIL, _TAIL)[1] for pair, _ in steps]
    ranges = [(-high, high) for high in farthest]  # the losses of both sides of each pair
    widest = 2 * max(farthest)
    first = discretised(steps, ranges, aligned(steps, widest / _FIRST_CELLS))
    deviation = math.sqrt(first.derivatives(0.0)[2] / sum(count for _, count in steps))
    spacing = aligned(steps, max(deviation / _CELLS_PER_DEVIATION, widest / _MOST_CELLS))
    cumulants = discretised(steps, ranges, spacing)
    order, reach = _BULK
    windows = [fit_window(cumulants, order / deviation_at(cumulants, 0.0), 1.0, _SCALES[0], reach=reach)]
    for scale in _SCALES:
        saddle = Goal(scale, 0.0).order(cumulants, _ORDERS[cumulants.exact] / spacing, 0.0)
        windows.append(fit_window(cumulants, saddle, 1.0, scale))
    return [compose(window) for window in windows]


def upper_product(curves: Sequence[ComposedCurve]) -> UpperProduct:
    """A convex curve that is at least the product's."""
    losses, bounds = _merged(curves, lower=False)
    spacing = curves[0].tilt.cumulants.spacing
    growth = math.expm1(min(spacing, LARGE))
    above = np.empty_like(bounds)  # P(loss ≥ grid point)
    above[0] = 1.0
    above[1:] = bounds[:-1] + (bounds[:-1] - bounds[1:] + ROUNDING * bounds[:-1]) / growth
    above = np.maximum.accumulate(above[::-1])[::-1] * (1 + ROUNDING * len(above))
    first = int(np.flatnonzero(above >= 1)[-1])
    above = np.append(np.minimum(above[first:], 1.0), bounds[-1] / -math.expm1(-spacing))
    heights = -math.expm1(-spacing) * discounted_from_top(above, spacing)[1:]
    return UpperProduct(losses[first:] + curves[0].slack, np.minimum(heights, 1.0))


def lower_product(curves: Sequence[ComposedCurve], upper: UpperProduct) -> LowerProduct:
    """A convex curve that is at most the product's: multiples of the upper one, moved by a cell."""
    losses, bounds = _merged(curves, lower=True)
    bounds = np.maximum(bounds, -np.expm1(np.minimum(losses, 0.0)))
    slack = curves[0].slack + ROUNDING * float(np.abs(losses).max())
    heights, errors, _ = upper.curve(losses - slack)
    lines = []
    for dropped in _DROPPED:
        share = float(np.min((bounds + dropped) / (heights + errors + UNIT_ROUNDOFF * dropped)))
        lines.append((min(max(share * (1 - 1e-12), 0.0), 1.0), dropped))
    cumulants = curves[0].tilt.cumulants
    farthest = cumulants.spacing  # how far below a grid point the curve may bend
    if cumulants.exact:  # then only by a hair below each point mass
        farthest = 2 * sum(loss.steps * hair_of(loss) for loss in cumulants.losses)
    return LowerProduct(upper, farthest + 4 * slack, tuple(lines))


def _merged(curves: Sequence[ComposedCurve], *, lower: bool) -> tuple[FloatArray, FloatArray]:
    """The union of the windows' grid points, and the best bound at each: decreasing."""
    first = min(curve.tilt.low for curve in curves)
    count = max(curve.tilt.low + curve.tilt.length for curve in curves) - first
    cumulants = curves[0].tilt.cumulants
    losses = cumulants.spacing * np.arange(first, first + count, dtype=np.float64) + cumulants.origin
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
