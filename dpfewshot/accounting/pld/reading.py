"""Reads a composed curve: certified ε at a δ, and δ at an ε."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from dpfewshot.accounting.pld.compose import ComposedCurve

_ROUNDING: Final = 1e-14  # relative, of the final logarithm and sum


class EpsilonBounds(NamedTuple):
    """lower ≤ ε ≤ upper for the exact ε of an event at a δ. `upper` is the certified guarantee."""

    lower: float
    upper: float


class DeltaBounds(NamedTuple):
    """lower ≤ δ ≤ upper for the exact δ of an event at an ε. `upper` is the certified guarantee."""

    lower: float
    upper: float


def upper_epsilon(curve: ComposedCurve, delta: float) -> float:
    """The smallest ε ≥ 0 at which the upper bound of H is at most delta."""
    above = np.flatnonzero(~(curve.upper() <= delta))  # NaN fits no δ
    if len(above) == 0:
        return max(float(curve.losses[0]) + curve.slack, 0.0)
    last = int(above[-1])
    if last + 1 == len(curve.losses):
        return math.inf
    head = curve.heads[last + 1] * (1 + curve.relative) + curve.noise[last] + curve.missing - delta
    return max(_in_cell(curve, last, head, 1 - curve.relative), 0.0)


def lower_epsilon(curve: ComposedCurve | None, delta: float) -> float:
    """The largest ε at which the lower bound of H is at least delta, or 0."""
    if curve is None:
        return 0.0
    lower = curve.lower()
    reached = np.flatnonzero(lower >= delta)
    if len(reached) == 0:
        return 0.0
    last = int(reached[-1])
    if last + 1 == len(curve.losses):
        return max((float(curve.losses[last]) - curve.slack) * (1 - _ROUNDING), 0.0)
    shortfall = float(curve.shortfall()[last])
    head = curve.heads[last + 1] * (1 - curve.relative) - shortfall - delta
    solution = _in_cell(curve, last, head, 1 + curve.relative)
    within = max(solution - 4 * _ROUNDING * (1 + abs(solution)), float(curve.losses[last]))
    return max((within - 2 * curve.slack) * (1 - _ROUNDING), 0.0)


def _in_cell(curve: ComposedCurve, last: int, head: float, factor: float) -> float:
    """The ε with head = e^{ε - l}·tail·factor in the cell above losses[last], where l is its upper end."""
    low, high = float(curve.losses[last]), float(curve.losses[last + 1])
    tail = float(curve.tails[last + 1]) * factor
    if head <= 0 or tail <= 0:
        return (low if head <= 0 else high) + curve.slack
    solution = high + math.log(head / tail)
    return (min(max(solution + _ROUNDING * (1 + abs(solution)), low), high) + curve.slack) * (1 + _ROUNDING)


def delta_bounds(curve: ComposedCurve, epsilon: float) -> DeltaBounds:
    """Bounds of H(epsilon)."""
    cell = int(np.searchsorted(curve.losses, epsilon, side="left"))
    if cell == 0:
        return DeltaBounds(max(float(curve.lower()[0]), 0.0), 1.0)
    if cell == len(curve.losses):
        rounded = (curve.slack + _ROUNDING * abs(epsilon)) * float(curve.heads[-1])
        return DeltaBounds(0.0, min(float(curve.missing) + rounded, 1.0))
    lost = math.exp(epsilon - curve.losses[cell]) * curve.tails[cell]
    moved = 2 * curve.slack * lost
    kept, noise = curve.heads[cell], curve.noise[cell - 1] + curve.missing
    upper = kept * (1 + curve.relative) - lost * (1 - curve.relative) + noise + moved
    lower = kept * (1 - curve.relative) - lost * (1 + curve.relative) - curve.shortfall()[cell - 1] - moved
    return DeltaBounds(min(max(float(lower), 0.0), 1.0), min(max(float(upper), 0.0), 1.0))
