"""A pair's curve at grid points, checked against the properties of every hockey-stick curve.

As a function of y = e^ε a curve is 1 at y = 0, convex, non-increasing, and at least 1 - y (Zhu, Dong, Wang
2022). A wrong formula rarely has all of these, so the check catches it (docs/proofs/accounting.md, 2).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dpfewshot.accounting.pairs.curve import UNIT_ROUNDOFF, Curve, DominatingPair, FloatArray
from dpfewshot.errors import AccountingError

LARGEST_GROWTH: Final = 700.0
"""e^h of a longer spacing would overflow."""

_CHECK_ROUNDINGS: Final = 8 * UNIT_ROUNDOFF  # of the checks themselves, relative
_UNDERFLOW: Final = 1e-300


def curve_on_grid(pair: DominatingPair, losses: FloatArray, offset: float, spacing: float) -> Curve:
    """The curve of `pair` at the exact grid points, to which `losses` are the nearest floats.

    Args:
        pair: one direction of one step.
        losses: whole multiples of `spacing`, each plus `offset`, as floats.
        offset: the shift of the grid.
        spacing: h, above 0.

    Raises:
        AccountingError: the values violate a property by more than their stated errors. That is a fault of
            the program, and nothing is certified.
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
            raise AccountingError(
                f"a privacy curve is {what}: this is a fault of the accountant, which certifies nothing "
                "here; please report the event: it holds public numbers only"
            )
