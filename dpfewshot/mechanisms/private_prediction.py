r"""Private prediction (Amin et al. 2024; audited by Li et al., ICLInf): the token is the softmax's own draw.

The papers' symbols: z_i are the logits of the prompt with subset i, clipped to max(-c, z_i - max z_i + c); s
is the constant number of prompts; z̄ = (1/s) Σ z_i. The token is a draw from softmax(z̄/τ), which is the
exponential mechanism. Nothing else is random: c/(s·τ) alone determines the privacy of a token.

Noise multiplier (docs/proofs/private-prediction.md): σ = s·τ/c with one record per prompt, s·τ/(2c) with
N > 1, so that a token costs ρ = 1/(2σ²). One of c and τ is given; the other follows from the calibrated σ.
`dpfewshot.planning.solve` finds any one of c, τ and s from the others (ICLInf, Algorithm 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, Self, cast

from dpfewshot import _core
from dpfewshot.accounting.events import Event
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.base import BaseMechanism, BaseRelease, Predictions
from dpfewshot.mechanisms.exact import (
    NO_NUCLEUS,
    check_clip,
    check_support,
    check_temperature,
    softmax_rate,
    solved_clip,
    solved_temperature,
)
from dpfewshot.mechanisms.noise import softmax_event
from dpfewshot.mechanisms.protocol import Draws, Release


@dataclass(frozen=True)
class PrivatePrediction(BaseMechanism):
    """A draw from the softmax of the mean of clipped logits.

    Give exactly one of `clip` and `temperature`; the budget decides the other.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates; None is the whole
            vocabulary, as in the papers. Clipping leaves every candidate a weight of at least exp(-2c/τ) to
            the best one's 1: at c = 10, τ = 2, 50,000 candidates outweigh it. Hence the default of 100.
        clip: c in (0, 1000], in nats; None lets it follow from the temperature.
        temperature: τ in 0.001..1000; None lets it follow from the clip.

    Raises:
        InvalidPlan: a setting outside its range, or both or neither of clip and temperature.
    """

    name: ClassVar[str] = "private-prediction"
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType({"top_p": NO_NUCLEUS})
    top_k: int | None = 100
    clip: float | None = 10.0
    temperature: float | None = None

    def __post_init__(self) -> None:
        if self.clip is None and self.temperature is None:
            raise InvalidPlan("give one of clip and temperature: the budget decides the other")
        if self.clip is not None and self.temperature is not None:
            raise InvalidPlan(
                "clip and temperature together would fix epsilon: set one of them to None, and the budget "
                "decides it; dpfewshot.planning.solve finds clip, temperature or prompts from the others"
            )
        if self.clip is not None:
            check_clip(self.clip)
        if self.temperature is not None:
            check_temperature(self.temperature)

    @classmethod
    def from_settings(cls, **settings: object) -> Self:
        """The mechanism with some settings: a temperature alone replaces the default clip."""
        if "temperature" in settings:
            settings.setdefault("clip", None)
        return super().from_settings(**settings)

    def check(self, vocabulary_size: int) -> None:
        """Refuse a K outside 1 to V, and a vocabulary too wide for the exact choice."""
        check_support(self.top_k, vocabulary_size)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """Tokens of bounded range 2/σ: amplified by sampling as pure releases, or added up as zCDP ones.

        Raises:
            InvalidPlan: fixed-size draws.
        """
        return softmax_event(draws, noise_multiplier, self.name)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        prompts, row_change = draws.prompts, draws.row_change
        if self.temperature is not None:
            temperature = Fraction(self.temperature)
            clip = solved_clip(noise_multiplier, self.temperature, prompts, row_change)
        else:
            clip = cast("float", self.clip)  # one of the two is given
            temperature = solved_temperature(noise_multiplier, clip, prompts, row_change)
        return _Release(self.top_k, noise_multiplier, clip, softmax_rate(temperature, prompts), random_source)


@dataclass(frozen=True)
class _Release(BaseRelease):
    """Clips, sums and draws: compiled, in integers."""

    top_k: int | None
    noise_multiplier: float
    clip: float
    rate: Fraction
    random_source: RandomSource | None

    def choose(self, predictions: Predictions) -> int:
        return _core.sample_of_clipped_logits(
            predictions.private, self.clip, self.rate.numerator, self.rate.denominator, self.random_source
        )
