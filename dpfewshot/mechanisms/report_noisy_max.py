r"""Tang et al. (ICLR 2024), Algorithm 1 with exponential noise: report noisy max.

The paper's symbols: P_i is the next-token distribution of the prompt with subset i (line 10), restricted to
the K likeliest public tokens (lines 7-9). Lines 14-15 divide each P_i by its largest entry, add exponential
noise to every coordinate of the sum, and release the argmax. Here ε₀ is the cost of one token on its draw,
and the noise multiplier is b = 1/ε₀.

Mean of the noise (docs/proofs/report-noisy-max.md): a row becomes integers in 0..grid. With one record per
prompt a unit moves all coordinates in one direction, and mean b·grid is enough. With N > 1 they move in
either direction, which takes 2b·grid: the paper's scale for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import Event
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.exact import RandomSource, rounded_up
from dpfewshot.mechanisms.base import (
    BaseRelease,
    Draws,
    Predictions,
    Release,
    RowChange,
    check_range,
)
from dpfewshot.mechanisms.choice import ExactChoice, pure_event

_WINNER_ALONE = "its analysis covers the winner alone, not the noisy vector"


@dataclass(frozen=True)
class ReportNoisyMax(ExactChoice):
    """Sum of max-normalised next-token probabilities plus exponential noise, then the largest.

    The analysis covers the winner alone: the noisy scores themselves would cost more than ε₀, so there is no
    temperature and no nucleus. Nor is there a comparable noise on the mean probability: it is b/M (2b/M with
    N > 1) on max-normalised vectors, in which an unsure prompt's favourite counts 1, however improbable.

    Args:
        top_k: as in `Gaussian`.
        contrast: β in [0, 1], the share of the public prompt's votes that is taken off the sum.
    """

    name: ClassVar[str] = "report-noisy-max"
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"temperature": _WINNER_ALONE, "top_p": _WINNER_ALONE}
    )
    top_k: int | None = 100
    contrast: float = 0.0

    def __post_init__(self) -> None:
        check_range("contrast", self.contrast, 0, 1)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """R pure releases of ε₀ = 1/b on each draw; `InvalidPlan` for draws of a fixed size."""
        return pure_event(draws, rounded_up(1 / Fraction(noise_multiplier)), self.name)

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        rate = noise_rate(noise_multiplier, draws.row_change)
        return _Release(self.top_k, noise_multiplier, random_source, rate, self.contrast, draws.prompts)


def noise_rate(noise_multiplier: float, row_change: RowChange) -> Fraction:
    """The exponential noise's rate per grid step, exact: ε₀/grid for monotone changes, else half of it."""
    return 1 / (Fraction(noise_multiplier) * row_change.rows * _core.grid)


def contrast_shift(public_logprobs: Logprobs, contrast: float, prompts: int) -> NDArray[np.int64]:
    """β·M times the votes of the public prompt, in grid steps, shape (support,): taken off the summed votes.

    It is public, so it changes every score by the same number in neighbouring data sets, and no sensitivity
    (docs/proofs/report-noisy-max.md).

    Args:
        public_logprobs: of the prompt without records, shape (support,); one that is not finite has no votes.
        contrast: β in 0..1.
        prompts: M; more than 2^28 count as 2^28, so that scores stay within 64 bits.
    """
    votes = _core.sum_of_max_normalised(public_logprobs[np.newaxis])
    return np.asarray(np.rint(contrast * min(prompts, 2**28) * votes), dtype=np.int64)


@dataclass
class _Release(BaseRelease):
    """Quantises, sums and permutes-and-flips, which equals noise and argmax: compiled, in integers."""

    rate: Fraction
    contrast: float
    prompts: int

    def choose(self, predictions: Predictions) -> int:
        scores = _core.sum_of_max_normalised(predictions.private)
        scores -= contrast_shift(predictions.public, self.contrast, self.prompts)
        return _core.permute_and_flip(scores, *self.rate.as_integer_ratio(), self.random_source)
