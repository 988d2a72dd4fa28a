r"""Softmax choice: an exact draw from the softmax of summed votes, as sharp as ε allows.

Not in the papers. Let p_i be the distribution of prompt i on the K likeliest public tokens, and p_i / max p_i
its votes, as in Tang et al.'s report noisy max. A token is a draw from softmax(ε₀·Σ votes / Δ): the
exponential mechanism (McSherry and Talwar 2007).

Most of what a model predicts is its own habit, whatever records it is shown. So β·M times the votes of the
public prompt are taken off the sum: a shift by public numbers. It makes leads smaller, so β falls with the
noise (docs/decisions/contrast.md).

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
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Predictions, Release, RowChange, check_range
from dpfewshot.mechanisms.choice import SoftmaxMechanism, contrast_shift


@dataclass(frozen=True)
class SoftmaxChoice(SoftmaxMechanism):
    """A draw from the softmax of the sum of max-normalised probabilities, as sharp as the budget allows.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the whole
            vocabulary. The more candidates, the larger the lead that the best one needs.
        contrast: β in [0, 1], the share of the public prompt's votes that is taken off; None follows from the
            noise, from 0.3 to 0.

    Raises:
        InvalidPlan: contrast outside its range.
    """

    name: ClassVar[str] = "softmax-choice"
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType(
        {**SoftmaxMechanism.refused_settings, "temperature": "the budget decides how sharp the draw is"}
    )
    top_k: int | None = 100
    contrast: float | None = None

    def __post_init__(self) -> None:
        if self.contrast is not None:
            check_range("contrast", self.contrast, 0, 1)

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
        contrast = self.contrast
        if contrast is None:
            contrast = bearable_contrast(self.noise_on_mean(draws, noise_multiplier))
        return _Release(self.top_k, noise_multiplier, random_source, rate, contrast, draws.prompts)


def bearable_contrast(noise_on_mean: float) -> float:
    """β: 0.3 up to a noise of about 0.09, then less, and 0 from 0.18 (docs/decisions/contrast.md)."""
    return min(max(3.5 * (0.18 - noise_on_mean), 0.0), 0.3)


def choice_rate(noise_multiplier: float, row_change: RowChange) -> Fraction:
    """ε₀/(Δ·grid), exact: the factor from integer sums of votes to exponents."""
    return 2 / (Fraction(noise_multiplier) * row_change.rows * _core.grid)


@dataclass
class _Release(BaseRelease):
    """Quantises and sums, then draws: compiled, in integers."""

    rate: Fraction
    contrast: float
    prompts: int

    def choose(self, predictions: Predictions) -> int:
        scores = _core.sum_of_max_normalised(predictions.private)
        scores -= contrast_shift(predictions.public, self.contrast, self.prompts)
        return _core.sample_softmax(scores, self.rate.numerator, self.rate.denominator, self.random_source)
