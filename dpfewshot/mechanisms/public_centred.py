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

C may adapt to a quantile of the norms (Andrew, Thakkar, Ramaswamy, McMahan 2021, Algorithm 1): with b the
noisy share of norms up to C, and γ the quantile, C becomes C·exp(-η(b - γ)). A share of 1/σ² pays for the
count, so a token has multiplier σ with or without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import common_factor
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Logprobs, Predictions, Release, check_range
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
class ClippingQuantile:
    """How the clipping norm adapts to the norms of the differences.

    Args:
        quantile: γ in (0, 1), the target share of rows that C does not clip.
        learning_rate: η > 0 of the geometric update of C after each token.
        budget_share: the share of 1/σ², in (0, 1), that pays for the count.
    """

    quantile: float = 0.7
    learning_rate: float = 0.2
    budget_share: float = 0.05


@dataclass(frozen=True)
class PublicCentred(GaussianMechanism):
    """Gaussian noise on the sum of clipped differences to the public distribution.

    Args:
        clip: C in [2⁻¹⁰, √2], the L2 norm to which differences of distributions are clipped; if it adapts,
            each demonstration starts with it.
        refinements: the norms of further rounds, each around the last noisy mean; () is a single round.
        adapt: how the first round's C adapts to the norms; None keeps it constant.
        top_k, temperature, top_p, contrast: as in `Gaussian`.
    """

    name: ClassVar[str] = "public-centred"
    top_k: int | None = 100
    clip: float = 0.7
    refinements: tuple[float, ...] = (0.3, 0.1)
    adapt: ClippingQuantile | None = None
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
        if self.adapt is not None:
            check_range("quantile", self.adapt.quantile, 0.01, 0.99)
            check_range("learning_rate", self.adapt.learning_rate, 0.001, 10)
            check_range("budget_share", self.adapt.budget_share, 0.001, 0.999)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """σ·Δ/M of the first round at its initial C. Refinements add less noise."""
        on_sum = self.multipliers(noise_multiplier).on_sum
        return on_sum * draws.row_change.rows * self.clip / draws.prompts

    def multipliers(self, noise_multiplier: float) -> Multipliers:
        """The queries' noise multipliers, whose combined multiplier is at least σ."""
        sums = 1 + len(self.refinements)
        share = 0.0 if self.adapt is None else self.adapt.budget_share
        on_sum = math.sqrt(sums / (1 - share))
        on_count = 1 / math.sqrt(share) if share else math.inf
        queries = [on_sum] * sums + [on_count] * (share > 0)
        factor = common_factor(queries, noise_multiplier)
        return Multipliers(factor * on_sum, factor * on_count)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        multipliers = self.multipliers(noise_multiplier)
        return _Release(self.top_k, noise_multiplier, random_source, self, draws, multipliers, self.clip)


class Multipliers(NamedTuple):
    """Noise multipliers of one token's queries, each over its own sensitivity; ∞ for a query not asked."""

    on_sum: float
    on_count: float


@dataclass
class _Release(BaseRelease):
    """One demonstration's release. Its clipping norm is a function of earlier releases."""

    settings: PublicCentred
    draws: Draws
    multipliers: Multipliers
    clip: float = field(repr=False)

    @property
    def noise(self) -> float:
        """The standard deviation of the noise on the last centre, or on the mean where there is one round.

        The last round corrects its centre by as little as its norm, so the centre's noise is what remains.
        """
        clips = (self.settings.clip, *self.settings.refinements)
        return self.multipliers.on_sum * self.draws.row_change.rows * clips[-2:][0] / self.draws.prompts

    def choose(self, predictions: Predictions) -> int:
        """The token of the noisy sum. Then C moves towards its quantile."""
        rows = predictions.private
        public = _core.sum_of_probabilities(predictions.public[np.newaxis])  # 0 for a row that is not finite
        total = self._noisy_sum(rows, public, self.clip)
        for radius in self.settings.refinements:
            total = self._noisy_sum(rows, nearest_distribution(total, self.draws.prompts), radius)
        if self.settings.adapt is not None:
            share = self._share_within(rows, public)
            moved = math.exp(-self.settings.adapt.learning_rate * (share - self.settings.adapt.quantile))
            self.clip = min(max(self.clip * moved, LEAST_CLIP), MOST_CLIP)
        mean = total / (float(_core.grid) * self.draws.prompts)
        return self.settings.decoding.token(mean, predictions.public, self.noise, self.random_source)

    def _noisy_sum(self, logprobs: Logprobs, centre: NDArray[np.int64], clip: float) -> NDArray[np.int64]:
        """M·c + Σ clip_C(p_i - c) + noise, in grid steps."""
        squared = squared_clip_sensitivity(clip, self.draws.row_change, _core.grid)
        scale = noise_scale(self.multipliers.on_sum, squared, _core.grid)
        return _core.noisy_sum_around(logprobs, centre, clip, self.draws.prompts, scale, self.random_source)

    def _share_within(self, logprobs: Logprobs, centre: NDArray[np.int64]) -> float:
        """The noisy share b, in 0..1, of rows whose difference has a norm of at most C.

        It is ½ + (Σ ±½)/M: centred so, one more row moves the sum by ½ in place of 1. The core sums the
        signs, which change by 1 with one more row and by 2 where a row is replaced.
        """
        moved = self.draws.row_change.rows
        scale = noise_scale(self.multipliers.on_count, moved**2, _core.count_grid)
        balance = _core.noisy_balance_within(logprobs, centre, self.clip, scale, self.random_source)
        share = 0.5 + 0.5 * balance / _core.count_grid / self.draws.prompts
        return min(max(share, 0.0), 1.0)
