r"""Softmax choice: an exact draw from the softmax of summed votes, as sharp as ε allows.

Not in the papers. Let p_i be the distribution of prompt i on the K likeliest public tokens, and p_i / max p_i
its votes, as in Tang et al.'s report noisy max. A token is drawn with probability proportional to
min(q, 0.01)·exp(ε₀·Σ votes / Δ), where q is the public prompt's probability: the exponential mechanism with a
base measure (McSherry and Talwar 2007). Words that only the records suggest are improbable in public. So K is
large, and the base measure keeps noise from choosing one of many (docs/decisions/mechanisms.md).

Most of what a model predicts is its own habit, whatever records it is shown. So β·M times the votes of the
public prompt are taken off the sum: a shift by public numbers. It makes leads smaller, so β falls with the
noise (docs/decisions/contrast.md).

Range (docs/proofs/softmax-choice.md): both are the same for neighbouring data sets. A row's votes become
integers in 0..grid. One more row changes the scores by a range (largest less smallest coordinate) of at most
Δ = 1. With N > 1 a row turns into another and changes them by at most Δ = 2. So a token has bounded range ε₀.
The noise multiplier is σ = 2/ε₀.

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
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Predictions, Release, RowChange, check_range
from dpfewshot.mechanisms.choice import SoftmaxMechanism, contrast_shift

CANDIDATES: Final = 1000
"""K where nobody names it."""

_PROBABLE, _IMPROBABLE = 0.01, 1e-9
"""Public probabilities: the base measure is q between the two, up to a factor."""


@dataclass(frozen=True)
class SoftmaxChoice(SoftmaxMechanism):
    """A draw from the softmax of the sum of max-normalised probabilities, as sharp as the budget allows.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the whole
            vocabulary.
        contrast: β in [0, 1], the share of the public prompt's votes that is taken off; None follows from the
            noise, from 0.3 to 0.

    Raises:
        InvalidPlan: contrast outside its range.
    """

    name: ClassVar[str] = "softmax-choice"
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType(
        {**SoftmaxMechanism.refused_settings, "temperature": "the budget decides how sharp the draw is"}
    )
    top_k: int | None = CANDIDATES
    contrast: float | None = None

    def __post_init__(self) -> None:
        if self.contrast is not None:
            check_range("contrast", self.contrast, 0, 1)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """The standard deviation of Gaussian noise that would find a leader about as often, to compare plans.

        Every prompt is certain of one token, with a public probability of at least 0.01, and that is ahead of
        all others by the same number of prompts. The others weigh at most as much as 99 such tokens. The draw
        finds the leader with probability ½ at a lead of log(99)/ε₀; Gaussian noise at about its deviation
        times the median of the largest of 99 standard normals. An unsure prompt's favourite still counts 1
        here, so among unsure prompts the draw does better than this says. Of fewer than 100 candidates, their
        number counts, from 4.
        """
        others = min(max(self.top_k or _core.WIDEST, 4), round(1 / _PROBABLE)) - 1
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


def base_measure(public_logprobs: NDArray[np.float32], rate: Fraction) -> NDArray[np.int64]:
    """The logarithm of min(q, 0.01)/0.01, in steps of the scores, shape (support,): public.

    Args:
        public_logprobs: of the prompt without records, shape (support,). NaN counts as next to impossible.
        rate: from scores to exponents.
    """
    finite = np.nan_to_num(np.asarray(public_logprobs, dtype=np.float64), nan=-math.inf)
    logarithms = np.clip(finite, math.log(_IMPROBABLE), math.log(_PROBABLE)) - math.log(_PROBABLE)
    steps_per_nat = float(min(1 / rate, Fraction(2**58)))  # the sum with the votes stays within 64 bits
    return np.asarray(np.rint(logarithms * steps_per_nat), dtype=np.int64)


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
        scores += base_measure(predictions.public, self.rate)
        return _core.sample_softmax(scores, self.rate.numerator, self.rate.denominator, self.random_source)
