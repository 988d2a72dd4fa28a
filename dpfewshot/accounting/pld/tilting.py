"""The choice of one composition's tilt, grid and window.

A poor choice costs tightness, never validity: only the Chernoff bounds must be exact. Koskela, Jälkö, Honkela
2020 introduced the FFT accountant; Gopi, Lee, Wutschitz 2021 its error analysis. The tilt makes its accuracy
relative to δ (docs/proofs/accounting.md, 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dpfewshot.accounting.pairs.curve import DominatingPair
from dpfewshot.accounting.pld.discretise import Cumulants, GridLoss, discretise
from dpfewshot.accounting.pld.saddle_point import Goal
from dpfewshot.accounting.pld.window import LONGEST_WINDOW, NEGLIGIBLE, Tilt, fit_window

Step = tuple[DominatingPair, int]
"""A pair, and how often it is repeated."""

_FIRST_CELLS: Final = 600  # of the first grid of a step
_MOST_CELLS: Final = 2**18  # of one step's grid
_REFINEMENTS: Final = 6
_BELOW_GRID: Final = 1e-9
_SOLUTIONS: Final = 2  # grids on which the order is solved for again
_FINE_ENOUGH: Final = 0.8
_SHARES: Final = (0.85, 0.7, 0.55, 0.4)
_SPARE_DIGITS: Final = 14.0  # natural logarithm of the factor by which the tilt may miss the answer
_NARROWEST: Final = 1e-9  # the narrowest range of losses for which a grid is made
_EXACT_TILT: Final = 30.0  # the largest order, in units of 1 / spacing, where the grid adds no error
_TINY: Final = 1e-300


def choose_tilt(steps: Sequence[Step], goal: Goal, enough: float = 0.0) -> Tilt | None:
    """Order, grid and window for `goal`; None if a moment already certifies ε ≤ `enough`."""
    total = sum(count for _, count in steps)
    tails = _BELOW_GRID / total, NEGLIGIBLE * goal.delta / total
    ranges = [pair.loss_range(*tails) for pair, _ in steps]
    spacing = max(max(high - low, 1e-6 * abs(high), _NARROWEST) for low, high in ranges) / _FIRST_CELLS
    spacing = aligned(steps, spacing)
    order, share = 0.0, 0.0
    for turn in range(_REFINEMENTS):
        cumulants = _discretise_all(steps, ranges, spacing)
        exact = cumulants.exact
        if turn < _SOLUTIONS:
            order = goal.order(cumulants, (_EXACT_TILT if exact else 2) / spacing, order)
        if renyi_epsilon(cumulants, order, goal.delta) <= enough:
            return None
        share = share or _best_share(cumulants, order, goal.delta)
        finer = aligned(steps, _finer_spacing(cumulants, goal, order, ranges))
        ranges = [
            pair.loss_range(*tails) if pair.lattice else _raised(pair.loss_range(*tails), loss, order, total)
            for (pair, _), loss in zip(steps, cumulants.losses, strict=True)
        ]
        if exact or finer >= _FINE_ENOUGH * spacing:
            break
        spacing = finer
    tilt = fit_window(cumulants, order, share, goal.delta)
    if tilt.crowding > 1:  # the window would be too long: a coarser grid is looser, but valid
        spacing = 1.1 * tilt.crowding * cumulants.losses[0].spacing
        cumulants = _discretise_all(steps, ranges, spacing)
        tilt = fit_window(cumulants, order, share, goal.delta)
    return tilt


def aligned(steps: Sequence[Step], spacing: float) -> float:
    """About `spacing`, so that the lattice with the widest gaps lies on the grid and adds no grid error."""
    gaps = [pair.lattice.gap if pair.lattice else 0.0 for pair, _ in steps]
    gap = max(gaps)
    if gap < spacing:
        return spacing
    if min(gaps) == gap:
        return gap  # no point mass lies between
    return gap / math.ceil(gap / spacing)


def _best_share(cumulants: Cumulants, order: float, scale: float) -> float:
    """The share of the saddle point's order that needs the shortest window.

    Rare large losses make the tilted loss heavy-tailed, and a smaller order helps. It costs digits:
    e^{K(λ) - λε} is then further above δ, and δ must stay well within the transform's precision.
    """
    centre = cumulants.derivatives(order)[1]
    best, best_length = 1.0, fit_window(cumulants, order, 1.0, scale).length
    for share in _SHARES:
        digits = cumulants.log_moment(share * order) - share * order * centre - math.log(scale)
        if digits > _SPARE_DIGITS:
            break
        length = fit_window(cumulants, order, share, scale).length
        if length < 0.9 * best_length:
            best, best_length = share, length
    return best


def renyi_epsilon(cumulants: Cumulants, order: float, delta: float) -> float:
    """A certified ε at `delta` from one moment: H(ε) ≤ e^{K(λ) - λε} + the mass at infinity."""
    infinite = sum(loss.steps * loss.infinite_mass for loss in cumulants.losses)
    if infinite >= delta:
        return math.inf
    value = cumulants.log_moment(order) + cumulants.rounding(order)
    return max(value - math.log(delta - infinite), 0.0) / order * (1 + 1e-12)


def _discretise_all(
    steps: Sequence[Step], ranges: Sequence[tuple[float, float]], spacing: float
) -> Cumulants:
    return Cumulants(
        tuple(
            discretise(pair, count, spacing, low, high)
            for (pair, count), (low, high) in zip(steps, ranges, strict=True)
        )
    )


def _raised(outer: tuple[float, float], loss: GridLoss, order: float, total: int) -> tuple[float, float]:
    """The range with its lower end raised to where the tilt makes mass negligible; losses below round up."""
    step = Cumulants((loss,)).log_moment(order) / loss.steps
    low = (step + math.log(NEGLIGIBLE / total)) / order
    return min(max(outer[0], low), outer[1] - 8 * loss.spacing), outer[1]


def _finer_spacing(
    cumulants: Cumulants, goal: Goal, order: float, ranges: Sequence[tuple[float, float]]
) -> float:
    """The spacing that meets the tolerance if the excess is proportional to its square."""
    spacing = cumulants.losses[0].spacing
    _, centre, variance = cumulants.derivatives(order)
    allowed = goal.tolerance
    if not goal.of_delta:
        allowed *= order * max(centre, 0.1 * math.sqrt(variance))
    excess = cumulants.grid_excess(max(order, 1 / (math.sqrt(variance) + _TINY)))
    if excess <= allowed:
        return spacing
    wanted = spacing * max(0.9 * math.sqrt(allowed / excess), 1 / 32)
    widest = max(high - low for low, high in ranges)
    longest = 10 * math.sqrt(variance)
    return max(wanted, widest / _MOST_CELLS, longest / LONGEST_WINDOW)
