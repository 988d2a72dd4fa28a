r"""Tang et al. (ICLR 2024), Algorithm 1 with exponential noise: report noisy max.

The paper's symbols: P_i is the next-token distribution of the prompt with subset i (line 10), restricted to
the K likeliest public tokens (lines 7-9); lines 14-15 divide each by its largest entry, add exponential
noise to every coordinate of the sum, and release the argmax. Here ε₀ is what a token costs on its draw, and
the noise multiplier is b = 1/ε₀.

The noise's mean (docs/proofs/report-noisy-max.md): a row becomes integers in 0..grid. With one record per
prompt a unit moves all coordinates in one direction, and a mean of b·grid is enough. With N > 1 they move
either way, and it takes 2b·grid, which is the paper's scale for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import Event, PoissonRandomizedResponse, Tightest
from dpfewshot.budget.permit import Permit
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.exact.rounding import rounded_up
from dpfewshot.mechanisms.exact import check_support
from dpfewshot.mechanisms.noise import pure_event
from dpfewshot.mechanisms.protocol import Draws, Release, RowChange
from dpfewshot.mechanisms.vocabulary import likeliest


@dataclass(frozen=True)
class ReportNoisyMax:
    """Sum of max-normalised next-token probabilities plus exponential noise, then the largest.

    Only the winner is covered: the noisy scores themselves would cost more than ε₀, so there is no
    temperature and no nucleus to take a token from.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the
            whole vocabulary.
    """

    top_k: int | None = 100

    @property
    def name(self) -> str:
        """As output lines carry it."""
        return "report-noisy-max"

    def check(self, vocabulary_size: int) -> None:
        """Refuse a K outside 1 to V, and a vocabulary too wide for the exact choice."""
        check_support(self.top_k, vocabulary_size)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """A pure release of ε₀ = 1/b on each draw; R tokens on it are one at R·ε₀.

        Without sampling, all tokens at ε₀ compose more tightly than blocks of R·ε₀: where R > 1 both
        hold, and the tighter one counts.

        Raises:
            InvalidPlan: draws of fixed size.
        """
        epsilon = rounded_up(1 / Fraction(noise_multiplier))
        blocks = pure_event(draws, epsilon, self.name)
        if draws.tokens_per_draw == 1:
            return blocks
        tokens = PoissonRandomizedResponse(1.0, epsilon, draws.steps * draws.tokens_per_draw)
        return Tightest((blocks, tokens))

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> None:  # noqa: ARG002 - as the protocol has it
        """None: the noise is on max-normalised vectors, and beside noise on probabilities it misleads.

        Its standard deviation is b/M, with N > 1 2b/M, where a certain vote counts 1. An unsure prompt's
        favourite counts 1 as well, however small its probability.
        """
        return

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        rate = noise_rate(noise_multiplier, draws.row_change)
        return _Release(self.top_k, noise_multiplier, rate, random_source)


def noise_rate(noise_multiplier: float, row_change: RowChange) -> Fraction:
    """The exponential noise's rate in grid steps, exactly: ε₀/grid for monotone changes, else half of it."""
    directions = 1 if row_change is RowChange.ADDED else 2
    return 1 / (Fraction(noise_multiplier) * directions * _core.grid)


@dataclass(frozen=True)
class _Release:
    """Quantise, sum, and choose by permute-and-flip, which is noise and argmax: all of it compiled."""

    top_k: int | None
    noise_multiplier: float
    rate: Fraction
    random_source: RandomSource | None

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        return likeliest(public_logprobs, excluded, self.top_k)

    def token(
        self,
        logprobs: NDArray[np.float32],
        public_logprobs: NDArray[np.float32],  # noqa: ARG002 - the sum is not centred
        permit: Permit,
    ) -> int:
        permit.use(self.noise_multiplier)
        return _core.noisy_argmax_of_max_normalised(
            logprobs, self.rate.numerator, self.rate.denominator, self.random_source
        )
