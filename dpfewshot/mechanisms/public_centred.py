r"""Public-centred: Gaussian noise on what the private prompts add to the public one, clipped and summed.

Not in the papers. Let p_i be the distribution of prompt i on the K likeliest public tokens, q that of the
prompt without records, M the number of prompts and C the clipping norm. A token is the largest coordinate of

    M·q + Σ clip_C(p_i - q) + N(0, (σΔ)² I),    Δ = C, or 2C where a row is replaced.

Tang et al. sum the p_i themselves, with Δ = 1 or √2. Where records change the model's prediction little, the
differences are short: a small C cuts few of them, and the noise is proportional to C. An absent prompt counts
as the public one. Proof of the sensitivities: docs/proofs/public-centred.md.

The prompts often agree with each other more than with the public one. So further rounds ask again, around
the distribution nearest to the last noisy mean in place of q, with a smaller norm: AdaDPSyn without its
search for the radius. The rounds share the noise multiplier: each has σ·√rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import common_factor
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Predictions, Release, check_range
from dpfewshot.mechanisms.gaussian import (
    GaussianMechanism,
    nearest_distribution,
    noise_scale,
    squared_clip_sensitivity,
)
from dpfewshot.values import as_float

LEAST_CLIP = 2.0**-10
MOST_CLIP = math.sqrt(2)
"""Range of C: no two distributions are further apart than √2."""


@dataclass(frozen=True)
class PublicCentred(GaussianMechanism):
    """Gaussian noise on the sum of clipped differences to the public distribution.

    Args:
        clip: C in [2⁻¹⁰, √2], the L2 norm to which differences of distributions are clipped.
        refinements: the norms of further rounds, each around the last noisy mean; () is a single round.
        top_k, temperature, top_p, contrast: as in `Gaussian`.
    """

    name: ClassVar[str] = "public-centred"
    top_k: int | None = 100
    clip: float = 0.7
    refinements: tuple[float, ...] = (0.3, 0.1)
    temperature: float = 0.0
    top_p: float = 1.0
    contrast: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        # copied as plain numbers: the caller's list could change between the plan and the draws
        object.__setattr__(self, "clip", as_float("clip", self.clip))
        object.__setattr__(self, "refinements", tuple(as_float("clip", one) for one in self.refinements))

    def check(self, vocabulary_size: int) -> None:
        """See `Mechanism.check`."""
        super().check(vocabulary_size)
        for clip in (self.clip, *self.refinements):
            check_range("clip", clip, LEAST_CLIP, MOST_CLIP)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """σ·Δ/M of the first round. Refinements add less noise."""
        round_multiplier = self.round_multiplier(noise_multiplier)
        return round_multiplier * draws.row_change.rows * self.clip / draws.prompts

    def round_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier of each round, whose combined multiplier is at least σ."""
        rounds = 1 + len(self.refinements)
        return common_factor([math.sqrt(rounds)] * rounds, noise_multiplier) * math.sqrt(rounds)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        round_multiplier = self.round_multiplier(noise_multiplier)
        return _Release(self.top_k, noise_multiplier, random_source, self, draws, round_multiplier)


@dataclass
class _Release(BaseRelease):
    """One demonstration's release."""

    settings: PublicCentred
    draws: Draws
    round_multiplier: float

    def choose(self, predictions: Predictions) -> int:
        """The token of the last round's noisy sum."""
        rows = predictions.private
        public = _core.sum_of_probabilities(predictions.public[np.newaxis])  # 0 for a row that is not finite
        total = self._noisy_sum(rows, public, self.settings.clip)
        for radius in self.settings.refinements:
            total = self._noisy_sum(rows, nearest_distribution(total, self.draws.prompts), radius)
        mean = total / (float(_core.grid) * self.draws.prompts)
        # The last round corrects its centre by as little as its norm, so the centre's noise is what remains.
        centred = (self.settings.clip, *self.settings.refinements)[-2:][0]
        noise = self.round_multiplier * self.draws.row_change.rows * centred / self.draws.prompts
        return self.settings.decoding.token(mean, predictions.public, noise, self.random_source)

    def _noisy_sum(self, logprobs: Logprobs, centre: NDArray[np.int64], clip: float) -> NDArray[np.int64]:
        """M·c + Σ clip_C(p_i - c) + noise, in grid steps."""
        squared = squared_clip_sensitivity(clip, self.draws.row_change, _core.grid)
        scale = noise_scale(self.round_multiplier, squared, _core.grid)
        return _core.noisy_sum_around(logprobs, centre, clip, self.draws.prompts, scale, self.random_source)
