"""The window of one composition: where the transform computes, and bounds on what it leaves out.

Its sizes are heuristics and cost tightness only; the Chernoff bounds are what the proof rests on
(docs/proofs/accounting.md, 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from scipy.fft import next_fast_len

from dpfewshot.accounting.pld.discretise import Cumulants

NEGLIGIBLE: Final = 1e-7  # what each truncation may add to δ, relative
LONGEST_WINDOW: Final = 2**20
_STEPS_UP: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 7.0)  # orders of Chernoff bounds, in 1 / deviations
_PARTS_UP: Final = (0.06, 0.15, 0.35, 0.7, 1.2)  # and in units of the saddle point's, for heavy tails
_STEPS_DOWN: Final = (0.0, 1.0, 2.5, 4.0, 6.0, 9.0)
_LEAST_DEVIATION: Final = 1e-6  # of a tilted loss, in units of the spacing


@dataclass(frozen=True, slots=True)
class Tilt:
    """The plan of one composition.

    Attributes:
        cumulants: of the finite part of the composed loss, with the discretised steps.
        order: λ > 0 of the tilt.
        saddle: the order whose tilted mean is `centre`; λ or more.
        centre: a loss near the answer.
        answer: the ε from which on the window is accurate.
        scale: the δ near which the result must be accurate.
        low: the first index of the window, in units of the spacing.
        length: how many grid points the window has.
        mass_above: bounds the mass of composed losses above the window (Chernoff).
        wrapped_below: bounds the weight that losses below the window gain by wrapping round.
        wrap_order: an order s > λ that suits the losses which wrap round from above the window.
        highest: no finite composed loss lies above.
        crowding: the length that the window should have, over the longest that it may have.
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
        reach: how many deviations below the tilted mean the window reaches at least.
        answer: an ε below which nothing needs to be accurate, if it is known.
    """
    order = share * saddle
    centre = cumulants.derivatives(saddle)[1]
    deviation = deviation_at(cumulants, order)
    spacing = cumulants.losses[0].spacing
    log_tau = math.log(NEGLIGIBLE) + math.log(scale)
    orders = [order + step / deviation for step in _STEPS_UP] + [order + step * saddle for step in _PARTS_UP]
    thetas = [step / deviation for step in _STEPS_DOWN]
    values = cumulants.log_moments(orders + [-theta for theta in thetas])
    moments = list(zip(orders, values[: len(orders)], strict=True))
    top, chernoff_order, chernoff = min(((moment - log_tau) / s, s, moment) for s, moment in moments)
    answer = min(answer, centre - deviation)
    # Tilted mass from above the window comes back a window's width lower: it must land below ε.
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
    cells = math.ceil(max((top - origin) / spacing - low, width / spacing)) + 2
    length = int(next_fast_len(max(cells, 64), real=True))
    crowding, length = length / LONGEST_WINDOW, min(length, LONGEST_WINDOW)
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
        crowding=crowding,
    )


def deviation_at(cumulants: Cumulants, order: float) -> float:
    """The standard deviation of the tilted loss, never 0: one point mass may hold nearly all of it."""
    variance = cumulants.derivatives(order)[2]
    return max(math.sqrt(variance), _LEAST_DEVIATION * cumulants.losses[0].spacing)


def _exp(exponent: float) -> float:
    return math.exp(min(exponent + 1e-9 * (1 + abs(exponent)), 700.0))
