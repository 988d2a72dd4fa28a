r"""Decoding: the token that follows from a released noisy mean, by post-processing of public numbers alone.

Most of what a model predicts is its own habit, whatever records it is shown. So a token's noisy mean
probability p̂ is scored against its public probability q, that of the prompt without records:

    p̂ / (q + 2s)^α    among the tokens with p̂ ≥ max(τ · max p̂, 3s), τ = 0.1

Here s is the standard deviation of the noise on p̂. A token that is noise has a q near 0, and would win
without 2s and 3s. The more noise, the less α does; if no p̂ reaches 3s, the largest wins.

This is contrastive decoding (Li et al. 2023; context-aware decoding, Shi et al. 2024) with a margin for
noise. p̂ is released and q is public, so it costs nothing (docs/proofs/gaussian.md). Measured:
docs/decisions/contrast.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import check_range

PLAUSIBLE = 0.1
"""τ: the least share of the largest probability that a token needs."""

_LEAST = 2.0**-20

_UNIFORM = 2**53


@dataclass(frozen=True)
class Decoding:
    """How a token follows from a noisy mean, all of which the analysis covers.

    Where the analysis covers only the winner (report noisy max), or the draw itself gives the privacy
    (private prediction, InvisibleInk), there is nothing to decode and these settings do not exist.

    Attributes:
        temperature: in 0..100. 0 takes the largest score; above 0, tokens are drawn with probability
            proportional to their score to the power 1/temperature.
        top_p: the nucleus in (0, 1]: the fewest tokens whose scores reach this share (Holtzman et al. 2020).
            1 keeps all.
        contrast: α in 0..1, how much of the public prediction is taken off. 0 scores by p̂ alone.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    contrast: float = 0.0

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, 100)  # hotter is uniform
        check_range("contrast", self.contrast, 0, 1)
        check_range("top_p", self.top_p, 0, 1, without=(0,))

    def token(
        self,
        mean: NDArray[np.float64],
        public_logprobs: Logprobs,
        noise: float,
        random_source: RandomSource | None = None,
    ) -> int:
        """The index of the token that follows from a released mean.

        Args:
            mean: noisy, shape (support,).
            public_logprobs: of the prompt without records, shape (support,).
            noise: the standard deviation of the noise on a coordinate of the mean.
            random_source: for tests alone.
        """
        scores = contrasted(mean, public_logprobs, noise, self.contrast) if self.contrast else mean
        return self.choose(scores, random_source)

    def choose(self, scores: NDArray[np.float64], random_source: RandomSource | None = None) -> int:
        """The index of the largest score, or of one drawn by temperature and nucleus.

        `scores` are of shape (support,), on any scale; negative ones count as 0. `random_source` is for tests
        alone.
        """
        if self.temperature == 0 or scores.max() <= 0:
            return int(np.argmax(scores))
        weights = (np.maximum(scores, 0) / float(scores.max())) ** (1 / self.temperature)
        order = np.argsort(-weights, kind="stable")
        cumulative = np.cumsum(weights[order])
        kept = int(np.searchsorted(cumulative, self.top_p * cumulative[-1])) + 1
        uniform = int(_core.uniform_integers(_UNIFORM, 1, random_source)[0]) / _UNIFORM
        position = uniform * cumulative[kept - 1]
        return int(order[min(int(np.searchsorted(cumulative, position, side="right")), kept - 1)])


def contrasted(
    mean: NDArray[np.float64], public_logprobs: Logprobs, noise: float, contrast: float
) -> NDArray[np.float64]:
    """The scores p̂ / (q + 2s)^α of the plausible tokens; -∞ for the others.

    `mean` is p̂, `noise` is s ≥ 0, `contrast` is α. `public_logprobs` are log q up to a constant; a token
    without a number counts as q = 0. Both arrays have the shape (support,).
    """
    finite = np.isfinite(public_logprobs)
    public = np.zeros(len(mean))
    if finite.any():
        shifted = public_logprobs[finite].astype(np.float64)
        public[finite] = np.exp(shifted - shifted.max())
        public /= public.sum()
    largest = mean.max()
    plausible = mean >= min(max(PLAUSIBLE * largest, 3 * noise), largest)
    return np.where(plausible, mean / (public + max(2 * noise, _LEAST)) ** contrast, -np.inf)
