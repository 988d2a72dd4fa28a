"""What exact choices take: rates and clips as rational numbers, rounded to the private side; widths.

A row of logits that is clipped to ±c nats is one vector of integers in ±floor(c·logit_grid). A unit adds one
such vector, or changes one into another, so the exponents of softmax(Σ/(s·τ)) change by a *range* (largest
less smallest coordinate) of 2c/(s·τ) or 4c/(s·τ). The interface's noise multiplier is σ = 2/range: s·τ/c or
s·τ/(2c). Here σ is the rational number that its float is, and what follows from it never has a larger range.
"""

from __future__ import annotations

from fractions import Fraction

from dpfewshot import _core
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact.rounding import rounded_down
from dpfewshot.mechanisms.protocol import RowChange
from dpfewshot.mechanisms.vocabulary import check_top_k

NO_NUCLEUS = "the draw from the softmax is what protects: a nucleus would change it"
"""Why the mechanisms that draw from a softmax have no top_p."""

COLDEST, HOTTEST = 1e-3, 1e3
"""Temperatures that are given lie between; one that follows from a budget may be any."""


def solved_temperature(noise_multiplier: float, clip: float, prompts: int, row_change: RowChange) -> Fraction:
    """The temperature τ at which rows clipped to ±c have noise multiplier σ, exactly.

    Args:
        noise_multiplier: σ > 0.
        clip: c > 0, in nats.
        prompts: s, the constant number that the mean is taken over.
        row_change: what one unit can do to the rows.
    """
    return row_change.rows * Fraction(noise_multiplier) * Fraction(clip) / prompts


def solved_clip(noise_multiplier: float, temperature: float, prompts: int, row_change: RowChange) -> float:
    """The clip c that rows at temperature τ may have at noise multiplier σ, rounded down, 1000 nats at most.

    Args:
        noise_multiplier: σ > 0.
        temperature: τ > 0.
        prompts: s, the constant number that the mean is taken over.
        row_change: what one unit can do to the rows.
    """
    clip = Fraction(temperature) * prompts / (row_change.rows * Fraction(noise_multiplier))
    return min(rounded_down(clip), _core.LARGEST_LOGIT_CLIP)


def softmax_rate(temperature: Fraction, prompts: int) -> Fraction:
    """1/(s·τ·logit_grid): what integer sums of logits are multiplied with to be exponents."""
    return 1 / (temperature * prompts * _core.logit_grid)


def check_clip(clip: float) -> None:
    """Refuse a clip outside of what the core takes.

    Raises:
        InvalidPlan: not in (0, 1000].
    """
    if not 0 < clip <= _core.LARGEST_LOGIT_CLIP:
        raise InvalidPlan(
            f"clip must lie above 0 and be at most {_core.LARGEST_LOGIT_CLIP:g} nats, not {clip}"
        )


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that no softmax of logits is drawn at.

    Raises:
        InvalidPlan: not between 0.001 and 1000.
    """
    if not COLDEST <= temperature <= HOTTEST:
        raise InvalidPlan(f"temperature must lie between {COLDEST} and {HOTTEST:g}, not {temperature}")


def check_support(top_k: int | None, vocabulary_size: int) -> None:
    """Refuse a K outside 1 to V, and more candidates than an exact choice takes.

    Raises:
        InvalidPlan: either of these.
    """
    check_top_k(top_k, vocabulary_size)
    if (top_k or vocabulary_size) > _core.WIDEST:
        raise InvalidPlan(
            f"top_k must be at most {_core.WIDEST}, where the backend has {vocabulary_size} tokens"
        )
