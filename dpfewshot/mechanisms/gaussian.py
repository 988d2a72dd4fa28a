r"""Tang et al. (ICLR 2024), Algorithm 1 with Gaussian noise.

The paper's symbols: P_i is the next-token distribution of the prompt with subset i (line 10), restricted
to the K likeliest public tokens and renormalised (lines 7-9, reduced vocabulary); σ is the noise multiplier;
the token is argmax of Σ P_i + N(0, (Δσ)² I) over the support (lines 11-13). Dividing by M changes no argmax,
so the sum stays an integer.

Sensitivity Δ (docs/proofs/gaussian.md): each row becomes non-negative integers that sum to at most the grid,
so its L2 norm is at most 1. With one record per prompt a unit adds or removes one row: Δ = 1. With N > 1 it
changes one row into another: Δ = √2. (For N = 1 the paper's √2 is more than is needed.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpfewshot import _core
from dpfewshot.accounting.events import Event, PublishedAccounting
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.base import BaseMechanism, BaseRelease, Predictions
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.mechanisms.noise import gaussian_event, noise_scale
from dpfewshot.mechanisms.protocol import Draws, Release


@dataclass(frozen=True)
class Gaussian(BaseMechanism):
    """Sum of next-token probabilities plus Gaussian noise, then the largest.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the
            whole vocabulary.
        temperature: 0 releases the largest noisy coordinate. Above 0, a token is drawn from the noisy
            vector, all of which the analysis covers.
        top_p: the nucleus of that draw, in (0, 1].

    Raises:
        InvalidPlan: temperature or top_p outside its range.
    """

    name: ClassVar[str] = "gaussian"
    published_accounting: ClassVar[PublishedAccounting] = PublishedAccounting.AS_IF_POISSON
    top_k: int | None = 100
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        Decoding(self.temperature, self.top_p)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """One Gaussian release on each draw: R tokens are one release at σ/√R."""
        return gaussian_event(draws, noise_multiplier)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """σ·Δ/M, the standard deviation on each coordinate of the mean probability."""
        return noise_multiplier * math.sqrt(draws.row_change.rows) / draws.prompts

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        decoding = Decoding(self.temperature, self.top_p)
        # Rows have norm at most 1 and no negative coordinate: Δ² is the number of rows in the change.
        return _Release(self.top_k, noise_multiplier, draws.row_change.rows, decoding, random_source)


@dataclass(frozen=True)
class _Release(BaseRelease):
    """Quantises, sums, adds noise and takes the largest in compiled code, in integers."""

    top_k: int | None
    noise_multiplier: float
    squared_sensitivity: int
    decoding: Decoding
    random_source: RandomSource | None

    def choose(self, predictions: Predictions) -> int:
        rows = predictions.private
        scale = noise_scale(self.noise_multiplier, self.squared_sensitivity, _core.grid)
        if self.decoding.takes_largest:
            return _core.noisy_argmax_of_probabilities(rows, scale, self.random_source)
        noisy = _core.noisy_sum_of_probabilities(rows, scale, self.random_source)
        return self.decoding.choose(noisy, self.random_source)
