"""The choice of one composition's tilt, grid and window.

The order of the tilt is the one at which the tilted mean of the composed loss is near the answer; the window
is where the transform computes. A poor choice costs tightness or digits, never validity: only the Chernoff
bounds on what lies outside of the window must be exact (docs/proofs/accounting.md, 3).

Koskela, Jälkö, Honkela 2020 introduced the FFT accountant; Gopi, Lee, Wutschitz 2021 its error analysis. The
tilt makes its accuracy relative to δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scipy.fft import next_fast_len

from dpfewshot.accounting.grid import Cumulants, GridLoss, Step, aligned, discretised

BEYOND_WINDOW: Final = 1e-7  # relative to δ: what the truncation of the window may add
ABOVE_GRID: Final = 1e-7  # the same for the top of a step's grid
LONGEST_WINDOW: Final = 2**20

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

_LEAST_ORDER: Final = 1e-2  # in units of 1 / standard deviation and of log(1/δ) / largest loss
_NEWTON_STEPS: Final = 30
_CLOSE: Final = 0.02  # relative precision of the order
_NEAR_ONE: Final = 0.5  # the least δ that may lie far below the losses
_TILTED_AWAY: Final = 10.0  # natural logarithm of the factor by which the tilt may then miss the answer
_FAR_BELOW: Final = 5.0  # standard deviations from the mean to the losses below the answer

_STEPS_UP: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 7.0)  # orders of Chernoff bounds, in 1 / deviations
_SADDLES_UP: Final = (0.06, 0.15, 0.35, 0.7, 1.2)  # the same in saddle-point orders, for heavy tails
_STEPS_DOWN: Final = (0.0, 1.0, 2.5, 4.0, 6.0, 9.0)
_LEAST_DEVIATION: Final = 1e-6  # of a tilted loss, in units of the spacing


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the curve must be accurate: near the ε at `delta`.

    Attributes:
        delta: δ in (0, 1).
        tolerance: the relative excess of ε that the grid may cause.
        of_delta: whether the tolerance applies to δ instead.
    """

    delta: float
    tolerance: float
    of_delta: bool = False

    def order(self, cumulants: Cumulants, largest: float, near: float) -> float:
        """The order whose tilted mean is near the answer: an approximate saddle point."""
        variance = cumulants.derivatives(0.0)[2] + _TINY
        cost = -math.log(self.delta)
        top = max(abs(float(loss.losses[-1])) for loss in cumulants.losses) + _TINY
        least = min(_LEAST_ORDER / math.sqrt(variance), _LEAST_ORDER * cost / top, largest)
        order = near or min(max(math.sqrt(2 * cost / variance), least), largest)
        order = _solve(cumulants, cost, order, least, largest)
        if self.delta < _NEAR_ONE:
            return order
        # H(ε) = E[(1 - e^{ε - loss})⁺] ≤ 1 - e^{ε - loss}: the answer lies log 1/(1-δ) below most losses.
        below = _FAR_BELOW * math.sqrt(variance) - math.log1p(-self.delta)
        return min(order, max(_TILTED_AWAY / below, least))


def _solve(cumulants: Cumulants, cost: float, order: float, least: float, largest: float) -> float:
    """The order s at which s·K'(s) - K(s), which increases, is `cost` less the prefactor, approximately.

    By Newton's method in log s.
    """
    low, high = least, largest
    for _ in range(_NEWTON_STEPS):
        order = min(max(order, low), high)
        value, mean, variance = cumulants.derivatives(order)
        # log of the factor by which e^{K(s) - s·K'(s)} overstates δ at K'(s): a normal approximation
        prefactor = math.log1p(math.sqrt(2 * math.pi * variance) * order * (1 + order))
        at, target = order * mean - value, max(cost - prefactor, 0.1)
        if abs(at - target) <= _CLOSE * target:
            break
        low, high = (order, high) if at < target else (low, order)
        if high - low <= _CLOSE * _CLOSE * low:
            break
        power = order * order * variance / at if at > 0 else 1.0
        step = math.log(target / at) / max(power, 0.3) if at > 0 else math.log(2)
        proposed = order * math.exp(min(max(step, -2.0), 2.0))
        order = proposed if low < proposed < high else math.sqrt(low * high)
    return order


@dataclass(frozen=True, slots=True)
class Tilt:
    """How one composition is computed: the tilt's order, the grid and the window.

    Attributes:
        cumulants: of the finite part of the composed loss, with the discretised steps.
        order: λ > 0 of the tilt.
        saddle: the order whose tilted mean is `centre`, at least λ.
        centre: a loss near the answer.
        answer: the ε from which the window is accurate.
        scale: the δ near which the result must be accurate.
        low: the first index of the window, in grid steps.
        length: the number of grid points in the window.
        mass_above: bound on the mass of composed losses above the window (Chernoff).
        wrapped_below: bound on the weight that losses below the window gain by wrapping round.
        wrap_order: an order s > λ that suits the losses that wrap round from above the window.
        highest: an upper end of all finite composed losses.
        crowding: the window's preferred length over the longest allowed.
    """

    cumulants: Cumulants
    order: float
    saddle: float
    centre: float
    answer: float
    scale: float
    low: int
    length: int
    mass_above: float
    wrapped_below: float
    wrap_order: float
    highest: float
    crowding: float


def choose_tilt(steps: Sequence[Step], goal: Goal, enough: float = 0.0) -> Tilt | None:
    """Order, grid and window for `goal`; None if a moment already certifies ε ≤ `enough`."""
    total = sum(count for _, count in steps)
    tails = _BELOW_GRID / total, ABOVE_GRID * goal.delta / total
    ranges = [pair.loss_range(*tails) for pair, _ in steps]
    spacing = max(max(high - low, 1e-6 * abs(high), _NARROWEST) for low, high in ranges) / _FIRST_CELLS
    spacing = aligned(steps, spacing)
    order, share = 0.0, 0.0
    for turn in range(_REFINEMENTS):
        cumulants = discretised(steps, ranges, spacing)
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
        spacing = 1.1 * tilt.crowding * cumulants.spacing
        cumulants = discretised(steps, ranges, spacing)
        tilt = fit_window(cumulants, order, share, goal.delta)
    return tilt


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
    if cumulants.infinite_mass >= delta:
        return math.inf
    value = cumulants.log_moment(order) + cumulants.rounding(order)
    return max(value - math.log(delta - cumulants.infinite_mass), 0.0) / order * (1 + 1e-12)


def _raised(outer: tuple[float, float], loss: GridLoss, order: float, total: int) -> tuple[float, float]:
    """The range with its lower end raised to where the tilt makes mass negligible; losses below round up."""
    step = Cumulants((loss,)).log_moment(order) / loss.steps
    low = (step + math.log(ABOVE_GRID / total)) / order
    return min(max(outer[0], low), outer[1] - 8 * loss.spacing), outer[1]


def _finer_spacing(
    cumulants: Cumulants, goal: Goal, order: float, ranges: Sequence[tuple[float, float]]
) -> float:
    """The spacing that meets the tolerance if the excess is proportional to its square."""
    spacing = cumulants.spacing
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


def fit_window(
    cumulants: Cumulants,
    saddle: float,
    share: float,
    scale: float,
    *,
    reach: float = 3.0,
    answer: float = math.inf,
) -> Tilt:
    """The shortest window whose truncations are negligible at `answer` and above, beside a δ of `scale`.

    Args:
        saddle: the order whose tilted mean is near the answer.
        share: λ over `saddle`.
        reach: least number of deviations that the window extends below the tilted mean.
        answer: an ε below which no accuracy is needed, if known.
    """
    order = share * saddle
    centre = cumulants.derivatives(saddle)[1]
    deviation = deviation_at(cumulants, order)
    spacing = cumulants.spacing
    log_tau = math.log(BEYOND_WINDOW) + math.log(scale)
    orders = [order + step / deviation for step in _STEPS_UP]
    orders += [order + step * saddle for step in _SADDLES_UP]
    moments = [(s, cumulants.log_moment(s)) for s in orders]
    top, chernoff_order, chernoff = min(((moment - log_tau) / s, s, moment) for s, moment in moments)
    answer = min(answer, centre - deviation)
    # Tilted mass from above the window wraps round to a window's width lower: it must land below ε.
    width, wrap_order = min(((moment - s * answer - log_tau) / (s - order), s) for s, moment in moments)
    highest = sum(loss.steps * float(loss.losses[-1]) for loss in cumulants.losses) + spacing
    top = min(max(top, centre + 2 * deviation), highest)
    thetas = [step / deviation for step in _STEPS_DOWN]
    left_moments = [(t, cumulants.log_moment(-t)) for t in thetas]
    bottom, theta, left = max(
        ((log_tau + order * top - moment) / (order + t), t, moment) for t, moment in left_moments
    )
    lowest = sum(loss.steps * loss.start for loss in cumulants.losses)
    origin = cumulants.origin
    bottom = min(bottom, centre - reach * deviation)
    low = max(math.floor((bottom - origin) / spacing), lowest)
    cells = max((top - origin) / spacing - low, width / spacing) + 2
    length = int(next_fast_len(math.ceil(min(max(cells, 64), LONGEST_WINDOW)), real=True))
    width = length * spacing
    end = (low + length) * spacing + origin
    chernoff += cumulants.rounding(chernoff_order)
    above = 0.0 if end >= highest else _exp(chernoff - chernoff_order * end)
    log_below = left + cumulants.rounding(theta) + theta * (low * spacing + origin) - order * width
    below = 0.0 if low == lowest else _exp(log_below) / -math.expm1(-(order + theta) * width)
    return Tilt(
        cumulants=cumulants,
        order=order,
        saddle=saddle,
        centre=centre,
        answer=answer,
        scale=scale,
        low=low,
        length=length,
        mass_above=above,
        wrapped_below=below,
        wrap_order=wrap_order,
        highest=highest,
        crowding=cells / LONGEST_WINDOW,
    )


def deviation_at(cumulants: Cumulants, order: float) -> float:
    """The standard deviation of the tilted loss, kept above 0 where one point mass holds nearly all of it."""
    variance = cumulants.derivatives(order)[2]
    return max(math.sqrt(variance), _LEAST_DEVIATION * cumulants.spacing)


def _exp(exponent: float) -> float:
    return math.exp(min(exponent + 1e-9 * (1 + abs(exponent)), 700.0))
