"""What mechanisms share that choose a token by an exact draw: their events, rates and clips.

A row of logits clipped to ±c nats is a vector of integers in ±floor(c·logit_grid). A unit adds one such
vector, or changes one into another, so the exponents of softmax(Σ/(s·τ)) change by a *range* (largest less
smallest coordinate) of 2c/(s·τ) or 4c/(s·τ). The noise multiplier is σ = 2/range: s·τ/c or s·τ/(2c). Here σ
counts as the rational number that its float is, and no value derived from it gives a larger range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar

from dpfewshot import _core
from dpfewshot.accounting.events import (
    WIDEST_RANGE,
    Event,
    PoissonBoundedRange,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import rounded_down, rounded_up
from dpfewshot.mechanisms.base import Draws, Mechanism, RowChange

COLDEST, HOTTEST = 1e-3, 1e3
"""Range of a given temperature. One that follows from a budget may be any."""


class ExactChoice(Mechanism):
    """A mechanism that chooses among integer scores, at most as many as the core takes."""

    def check(self, vocabulary_size: int) -> None:
        """Refuse a K outside 1 to V, and a vocabulary too wide for the exact choice."""
        super().check(vocabulary_size)
        if (self.top_k or vocabulary_size) > _core.WIDEST:
            raise InvalidPlan(
                f"top_k must be at most {_core.WIDEST}, where the backend has {vocabulary_size} tokens"
            )


class SoftmaxMechanism(ExactChoice):
    """A mechanism whose token is a draw from a softmax with exponents of range 2/σ."""

    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"top_p": "the draw from the softmax is what protects: a nucleus would change it"}
    )

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """See `softmax_event`."""
        return softmax_event(draws, noise_multiplier, self.name)


def pure_event(draws: Draws, epsilon: float, name: str) -> Event:
    """R releases on each draw, each ε₀-DP given the earlier ones; `epsilon` is ε₀, rounded up.

    Draws of a fixed size are refused: for them the accountant has Gaussian pairs only.
    """
    if draws.fixed_size is not None:
        raise InvalidPlan(
            f"{name} needs Poisson draws: sampling='fixed-size' reproduces the papers that ran a Gaussian "
            "mechanism that way"
        )
    return _on_each_draw(draws, PoissonRandomizedResponse(1.0, epsilon, draws.tokens_per_draw))


def softmax_event(draws: Draws, noise_multiplier: float, name: str) -> Event:
    """Tokens drawn from a softmax whose exponents change by a range of at most ε₀ = 2/σ.

    Such a token has bounded range ε₀, which subsampling amplifies. It is also ρ-zCDP with ρ = ε₀²/8 =
    1/(2σ²); these ρ add up without amplification (docs/proofs/private-prediction.md). Both hold, so the
    tighter one counts. Draws of a fixed size are refused.
    """
    epsilon = rounded_up(2 / Fraction(noise_multiplier))
    amplified = pure_event(draws, epsilon, name)
    if epsilon <= WIDEST_RANGE:
        amplified = _on_each_draw(draws, PoissonBoundedRange(1.0, epsilon, draws.tokens_per_draw))
    tokens = draws.steps * draws.tokens_per_draw
    concentrated = ZeroConcentrated(rounded_up(Fraction(epsilon) ** 2 / 8), tokens)
    return Tightest((amplified, concentrated))


def _on_each_draw(draws: Draws, query: PoissonRandomizedResponse | PoissonBoundedRange) -> Event:
    """R answers to a query on each draw (docs/proofs/product.md)."""
    if draws.tokens_per_draw == 1 or draws.sampling_rate == 1:  # at q = 1 all draws are the same
        return replace(query, sampling_rate=draws.sampling_rate, steps=draws.steps * draws.tokens_per_draw)
    return PoissonProduct(draws.sampling_rate, (query,), draws.steps)


def solved_temperature(noise_multiplier: float, clip: float, prompts: int, row_change: RowChange) -> Fraction:
    """The temperature τ at which s rows clipped to ±c nats have noise multiplier σ, exactly."""
    return row_change.rows * Fraction(noise_multiplier) * Fraction(clip) / prompts


def solved_clip(noise_multiplier: float, temperature: float, prompts: int, row_change: RowChange) -> float:
    """The clip c ≤ 1000 nats at which s rows at temperature τ have noise multiplier σ, rounded down."""
    clip = Fraction(temperature) * prompts / (row_change.rows * Fraction(noise_multiplier))
    return min(rounded_down(clip), _core.LARGEST_LOGIT_CLIP)


def softmax_rate(temperature: Fraction, prompts: int) -> Fraction:
    """1/(s·τ·logit_grid): the factor from integer sums of logits to exponents."""
    return 1 / (temperature * prompts * _core.logit_grid)
