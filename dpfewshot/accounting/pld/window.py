"""The window of one composition: where the transform computes, and bounds on what lies outside.

Its sizes are heuristics, which affect tightness only. The proof rests on the Chernoff bounds
(docs/proofs/accounting.md, 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from scipy.fft import next_fast_len

from dpfewshot.accounting.pld.discretise import Cumulants

NEGLIGIBLE: Final = 1e-7  # relative to δ: what each truncation may add
LONGEST_WINDOW: Final = 2**20
_STEPS_UP: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 7.0)  # orders of Chernoff bounds, in 1 / deviations
_SADDLES_UP: Final = (0.06, 0.15, 0.35, 0.7, 1.2)  # the same in saddle-point orders, for heavy tails
_STEPS_DOWN: Final = (0.0, 1.0, 2.5, 4.0, 6.0, 9.0)
_LEAST_DEVIATION: Final = 1e-6  # of a tilted loss, in units of the spacing


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


def fit_window(
    cumulants: Cumulants,
    saddle: float,
    share: float,
    scale: float,
    *,
    reach: float = 3.0,
    answer: float = math.inf,
) -> Tilt:
    """The shortest window whose truncations are negligible at `answer` and above.

    Args:
        cumulants: of the composition.
        saddle: the order whose tilted mean is near the answer.
        share: λ over `saddle`.
        scale: δ.
        reach: least number of deviations that the window extends below the tilted mean.
        answer: an ε below which no accuracy is needed, if known.
    """
    order = share * saddle
    centre = cumulants.derivatives(saddle)[1]
    deviation = deviation_at(cumulants, order)
    spacing = cumulants.losses[0].spacing
    log_tau = math.log(NEGLIGIBLE) + math.log(scale)
    orders = [order + step / deviation for step in _STEPS_UP] + [
        order + step * saddle for step in _SADDLES_UP
    ]
    thetas = [step / deviation for step in _STEPS_DOWN]
    values = cumulants.log_moments(orders + [-theta for theta in thetas])
    moments = list(zip(orders, values[: len(orders)], strict=True))
    top, chernoff_order, chernoff = min(((moment - log_tau) / s, s, moment) for s, moment in moments)
    answer = min(answer, centre - deviation)
    # Tilted mass from above the window wraps round to a window's width lower: it must land below ε.
    width, wrap_order = min(((moment - s * answer - log_tau) / (s - order), s) for s, moment in moments)
    highest = sum(loss.steps * float(loss.losses[-1]) for loss in cumulants.losses) + spacing
    top = min(max(top, centre + 2 * deviation), highest)
    bottom, theta, left = max(
        ((log_tau + order * top - moment) / (order + t), t, moment)
        for t, moment in zip(thetas, values[len(orders) :], strict=True)
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
    return max(math.sqrt(variance), _LEAST_DEVIATION * cumulants.losses[0].spacing)


def _exp(exponent: float) -> float:
    return math.exp(min(exponent + 1e-9 * (1 + abs(exponent)), 700.0))
