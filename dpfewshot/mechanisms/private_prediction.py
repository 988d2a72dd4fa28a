r"""Private prediction (Amin et al. 2024; audited by Li et al., ICLInf): the token is the softmax's own draw.

The papers' symbols: z_i are the logits of the prompt with subset i, clipped to max(-c, z_i - max z_i + c); s
is the constant number of prompts; z̄ = (1/s) Σ z_i. The token is a draw from softmax(z̄/τ), which is the
exponential mechanism. Nothing else is random: c/(s·τ) alone determines the privacy of a token.

Noise multiplier (docs/proofs/private-prediction.md): σ = s·τ/c with one record per prompt, s·τ/(2c) with
N > 1, so that a token costs ρ = 1/(2σ²). One of c and τ is given; the other follows from the calibrated σ.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpfewshot import _core
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Predictions, Release, check_range
from dpfewshot.mechanisms.choice import (
    COLDEST,
    HOTTEST,
    SoftmaxMechanism,
    softmax_rate,
    solved_clip,
    solved_temperature,
)

DEFAULT_CLIP = 10.0


@dataclass(frozen=True)
class PrivatePrediction(SoftmaxMechanism):
    """A draw from the softmax of the mean of clipped logits.

    Give one of `clip` and `temperature`, or neither; the budget decides the other.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates; None is the whole
            vocabulary, as in the papers. Clipping leaves every candidate a weight of at least exp(-2c/τ) to
            the best one's 1: at c = 10, τ = 2, 50,000 candidates outweigh it. Hence the default of 100.
        clip: c in (0, 1000], in nats; None lets it follow from the temperature, and is 10 without one.
        temperature: τ in 0.001..1000; None lets it follow from the clip.

    Raises:
        InvalidPlan: a setting outside its range, or both clip and temperature.
    """

    name: ClassVar[str] = "private-prediction"
    top_k: int | None = 100
    clip: float | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        if self.clip is None and self.temperature is None:
            object.__setattr__(self, "clip", DEFAULT_CLIP)  # so that equal settings compare and print alike
        if self.clip is not None and self.temperature is not None:
            raise InvalidPlan(
                "clip and temperature together would fix epsilon: give one of them, and the budget decides "
                "the other"
            )
        if self.clip is not None:
            check_range("clip", self.clip, 0, _core.LARGEST_LOGIT_CLIP, without=(0,))
        if self.temperature is not None:
            check_range("temperature", self.temperature, COLDEST, HOTTEST)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        prompts, row_change = draws.prompts, draws.row_change
        if self.temperature is not None:
            temperature = Fraction(self.temperature)
            clip = solved_clip(noise_multiplier, self.temperature, prompts, row_change)
        else:
            clip = self.clip or DEFAULT_CLIP
            temperature = solved_temperature(noise_multiplier, clip, prompts, row_change)
        return _Release(self.top_k, noise_multiplier, random_source, clip, softmax_rate(temperature, prompts))


@dataclass
class _Release(BaseRelease):
    """Clips, sums and draws: compiled, in integers."""

    clip: float
    rate: Fraction

    def choose(self, predictions: Predictions) -> int:
        rate = self.rate.as_integer_ratio()
        return _core.sample_of_clipped_logits(predictions.private, self.clip, *rate, self.random_source)
