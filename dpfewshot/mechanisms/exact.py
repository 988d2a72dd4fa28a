"""Parameters of exact choices: rates and clips as rational numbers, rounded towards more privacy; widths.

A row of logits clipped to ±c nats is a vector of integers in ±floor(c·logit_grid). A unit adds one such
vector, or changes one into another, so the exponents of softmax(Σ/(s·τ)) change by a *range* (largest less
smallest coordinate) of 2c/(s·τ) or 4c/(s·τ). The noise multiplier is σ = 2/range: s·τ/c or s·τ/(2c). Here σ
counts as the rational number that its float is, and no value derived from it gives a larger range.
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
"""Range of a given temperature. One that follows from a budget may be any."""


def solved_temperature(noise_multiplier: float, clip: float, prompts: int, row_change: RowChange) -> Fraction:
    """The temperature τ at which rows clipped to ±c have noise multiplier σ, exactly.

    Args:
        noise_multiplier: σ > 0.
        clip: c > 0, in nats.
        prompts: s, the constant number of prompts in the mean.
        row_change: how one unit can change the rows.
    """
    return row_change.rows * Fraction(noise_multiplier) * Fraction(clip) / prompts


def solved_clip(noise_multiplier: float, temperature: float, prompts: int, row_change: RowChange) -> float:
    """The clip c at which rows at temperature τ have noise multiplier σ, rounded down; at most 1000 nats.

    Args:
        noise_multiplier: σ > 0.
        temperature: τ > 0.
        prompts: s, the constant number of prompts in the mean.
        row_change: how one unit can change the rows.
    """
    clip = Fraction(temperature) * prompts / (row_change.rows * Fraction(noise_multiplier))
    return min(rounded_down(clip), _core.LARGEST_LOGIT_CLIP)


def softmax_rate(temperature: Fraction, prompts: int) -> Fraction:
    """1/(s·τ·logit_grid): the factor from integer sums of logits to exponents."""
    return 1 / (temperature * prompts * _core.logit_grid)


def check_clip(clip: float) -> None:
    """Refuse a clip outside the core's range.

    Raises:
        InvalidPlan: not in (0, 1000].
    """
    if not 0 < clip <= _core.LARGEST_LOGIT_CLIP:
        raise InvalidPlan(
            f"clip must lie above 0 and be at most {_core.LARGEST_LOGIT_CLIP:g} nats, not {clip}"
        )


def check_temperature(temperature: float) -> None:
    """Refuse a temperature outside its range.

    Raises:
        InvalidPlan: not between 0.001 and 1000.
    """
    if not COLDEST <= temperature <= HOTTEST:
        raise InvalidPlan(f"temperature must lie between {COLDEST} and {HOTTEST:g}, not {temperature}")


def check_support(top_k: int | None, vocabulary_size: int) -> None:
    """Refuse a K outside 1 to V, and more candidates than an exact choice takes.

    Raises:
        InvalidPlan: names top_k.
    """
    check_top_k(top_k, vocabulary_size)
    if (top_k or vocabulary_size) > _core.WIDEST:
        raise InvalidPlan(
            f"top_k must be at most {_core.WIDEST}, where the backend has {vocabulary_size} tokens"
        )
