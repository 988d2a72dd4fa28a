r"""Tang et al. (ICLR 2024), Algorithm 1 with Gaussian noise.

The paper's symbols: P_i is the next-token distribution of the prompt with subset i (line 10), restricted
to the K likeliest public tokens and renormalised (lines 7-9, reduced vocabulary), σ the noise multiplier,
and the token is argmax of Σ P_i + N(0, (Δσ)² I) over the support (lines 11-13). Dividing by M changes no
argmax, so the sum stays an integer.

Sensitivity Δ (docs/proofs/gaussian.md): each row becomes non-negative integers of sum at most the grid, so
its L2 norm is at most 1. With one record per prompt a unit adds or removes one row: Δ = 1. With N > 1 it
changes one row into another: Δ = √2. (The paper's √2 for N = 1 is more than is needed.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import Event
from dpfewshot.budget.permit import Permit
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.mechanisms.noise import gaussian_event, noise_scale
from dpfewshot.mechanisms.protocol import Draws, Release
from dpfewshot.mechanisms.vocabulary import check_top_k, likeliest


@dataclass(frozen=True)
class Gaussian:
    """Sum of next-token probabilities plus Gaussian noise, then the largest.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the
            whole vocabulary.
        temperature: 0 releases the largest noisy coordinate. Above, a token is drawn from the noisy
            vector, all of which the analysis covers.
        top_p: the nucleus that such a draw is from.

    Raises:
        InvalidPlan: temperature or top_p outside its range.
    """

    top_k: int | None = 100
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        Decoding(self.temperature, self.top_p)

    @property
    def name(self) -> str:
        """As output lines carry it."""
        return "gaussian"

    def check(self, vocabulary_size: int) -> None:
        """Refuse a K outside 1 to V."""
        check_top_k(self.top_k, vocabulary_size)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """A Gaussian release on each draw; R tokens are one with σ/√R."""
        return gaussian_event(draws, noise_multiplier)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """σ·Δ/M: the standard deviation on each coordinate of the mean probability."""
        return noise_multiplier * math.sqrt(draws.row_change.rows) / draws.prompts

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        # Rows have norm at most 1 and no negative coordinate: Δ² is as many as there are rows in the change.
        return _Release(self, noise_multiplier, draws.row_change.rows, random_source)


@dataclass(frozen=True)
class _Release:
    """Quantise, sum, add noise, take the largest: all of it compiled, in integers."""

    settings: Gaussian
    noise_multiplier: float
    squared_sensitivity: int
    random_source: RandomSource | None

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        return likeliest(public_logprobs, excluded, self.settings.top_k)

    def token(
        self,
        logprobs: NDArray[np.float32],
        public_logprobs: NDArray[np.float32],  # noqa: ARG002 - the sum is not centred
        permit: Permit,
    ) -> int:
        permit.use(self.noise_multiplier)
        scale = noise_scale(self.noise_multiplier, self.squared_sensitivity, _core.grid)
        decoding = Decoding(self.settings.temperature, self.settings.top_p)
        if decoding.takes_largest:
            return _core.noisy_argmax_of_probabilities(logprobs, scale, self.random_source)
        return decoding.choose(
            _core.noisy_sum_of_probabilities(logprobs, scale, self.random_source), self.random_source
        )
