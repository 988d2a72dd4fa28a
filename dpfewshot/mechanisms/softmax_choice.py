r"""Softmax choice: an exact draw from the softmax of summed votes, as sharp as ε allows.

Not in the papers. Let p_i be the distribution of prompt i on the K likeliest public tokens, and p_i / max p_i
its votes, as in Tang et al.'s report noisy max. A token is a draw from softmax(ε₀·Σ votes / Δ): the
exponential mechanism (McSherry and Talwar 2007).

Range (docs/proofs/softmax-choice.md): a row's votes become integers in 0..grid. One more row changes the
scores by a range (largest less smallest coordinate) of at most Δ = 1. With N > 1 a row turns into another and
changes them by at most Δ = 2. So a token has bounded range ε₀. The noise multiplier is σ = 2/ε₀.

A token of report noisy max is ε₀-DP, and pays for losses of ±ε₀, a range of 2ε₀. Sampling amplifies the draw
more, at a larger ε₀ (docs/decisions/mechanisms.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from types import MappingProxyType
from typing import ClassVar

from dpfewshot import _core
from dpfewshot.accounting.events import Event
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.base import BaseMechanism, BaseRelease, Predictions
from dpfewshot.mechanisms.exact import NO_NUCLEUS, check_support
from dpfewshot.mechanisms.noise import softmax_event
from dpfewshot.mechanisms.protocol import Draws, Release, RowChange


@dataclass(frozen=True)
class SoftmaxChoice(BaseMechanism):
    """A draw from the softmax of the sum of max-normalised probabilities, as sharp as the budget allows.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the whole
            vocabulary. The more candidates, the larger the lead that the best one needs.
    """

    name: ClassVar[str] = "softmax-choice"
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"temperature": "the budget decides how sharp the draw is", "top_p": NO_NUCLEUS}
    )
    top_k: int | None = 100

    def check(self, vocabulary_size: int) -> None:
        """Refuse a K outside 1 to V, and a vocabulary too wide for the exact choice."""
        check_support(self.top_k, vocabulary_size)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """Tokens of bounded range 2/σ: amplified by sampling as pure releases, or added up as zCDP ones.

        Raises:
            InvalidPlan: fixed-size draws.
        """
        return softmax_event(draws, noise_multiplier, self.name)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """The standard deviation of Gaussian noise that would find a leader about as often, to compare plans.

        Every prompt is certain of one token, and the leader is ahead of all others by the same number of
        prompts. The draw finds it with probability ½ at a lead of log(K-1)/ε₀; Gaussian noise at about its
        deviation times the median of the largest of K-1 standard normals. An unsure prompt's favourite still
        counts 1 here, so among unsure prompts the draw does better than this says. Fewer than 4 candidates
        count as 4.
        """
        others = max(self.top_k or _core.WIDEST, 4) - 1
        factor = math.log(others) / NormalDist().inv_cdf(0.5 ** (1 / others))
        return factor * noise_multiplier / 2 * draws.row_change.rows / draws.prompts

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        rate = choice_rate(noise_multiplier, draws.row_change)
        return _Release(self.top_k, noise_multiplier, rate, random_source)


def choice_rate(noise_multiplier: float, row_change: RowChange) -> Fraction:
    """ε₀/(Δ·grid), exact: the factor from integer sums of votes to exponents."""
    return 2 / (Fraction(noise_multiplier) * row_change.rows * _core.grid)


@dataclass(frozen=True)
class _Release(BaseRelease):
    """Quantises and sums, then draws: compiled, in integers."""

    top_k: int | None
    noise_multiplier: float
    rate: Fraction
    random_source: RandomSource | None

    def choose(self, predictions: Predictions) -> int:
        scores = _core.sum_of_max_normalised(predictions.private)
        return _core.sample_softmax(scores, self.rate.numerator, self.rate.denominator, self.random_source)
