r"""Tang et al. (ICLR 2024), Algorithm 1 with Gaussian noise; and what other mechanisms with such noise share.

The paper's symbols: P_i is the next-token distribution of the prompt with subset i (line 10), restricted
to the K likeliest public tokens and renormalised (lines 7-9, reduced vocabulary); σ is the noise multiplier;
the token is argmax of Σ P_i + N(0, (Δσ)² I) over the support (lines 11-13). Dividing by M changes no argmax,
so the sum stays an integer.

Sensitivity Δ (docs/proofs/gaussian.md): each row becomes non-negative integers that sum to at most the grid,
so its L2 norm is at most 1. With one record per prompt a unit adds or removes one row: Δ = 1. With N > 1 it
changes one row into another: Δ = √2. (For N = 1 the paper's √2 is more than is needed.)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.accounting.events import Event, FixedSizeGaussian, PoissonGaussian, PublishedAccounting
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Mechanism, Predictions, Release, RowChange
from dpfewshot.mechanisms.decoding import Decoding


class GaussianMechanism(Mechanism):
    """A mechanism that adds Gaussian noise to a whole vector and decodes the token from it."""

    temperature: float
    top_p: float
    contrast: float

    def __post_init__(self) -> None:
        _ = self.decoding

    @property
    def decoding(self) -> Decoding:
        """How the token follows from the noisy vector."""
        return Decoding(self.temperature, self.top_p, self.contrast)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """One Gaussian release on each draw for all queries of a token: see `gaussian_event`."""
        return gaussian_event(draws, noise_multiplier)


@dataclass(frozen=True)
class Gaussian(GaussianMechanism):
    """Sum of next-token probabilities plus Gaussian noise, then the largest.

    Args:
        top_k: K, how many of the public prompt's likeliest tokens are candidates (RVP); None is the
            whole vocabulary.
        temperature: 0 releases the largest noisy coordinate. Above 0, a token is drawn from the noisy
            vector, all of which the analysis covers.
        top_p: the nucleus of that draw, in (0, 1].
        contrast: α in [0, 1], how much of the public prediction is taken off the noisy one.
    """

    name: ClassVar[str] = "gaussian"
    published_accounting: ClassVar[PublishedAccounting] = PublishedAccounting.AS_IF_POISSON
    top_k: int | None = 100
    temperature: float = 0.0
    top_p: float = 1.0
    contrast: float = 0.0

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """σ·Δ/M, the standard deviation on each coordinate of the mean probability."""
        return noise_multiplier * math.sqrt(draws.row_change.rows) / draws.prompts

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        # Rows have norm at most 1 and no negative coordinate: Δ² is the number of rows in the change.
        squared = draws.row_change.rows
        return _Release(self.top_k, noise_multiplier, random_source, squared, draws.prompts, self.decoding)


@dataclass
class _Release(BaseRelease):
    """Quantises, sums and adds noise in compiled code, in integers, then decodes what is released."""

    squared_sensitivity: int
    prompts: int
    decoding: Decoding

    def choose(self, predictions: Predictions) -> int:
        scale = noise_scale(self.noise_multiplier, self.squared_sensitivity, _core.grid)
        total = _core.noisy_sum_of_probabilities(predictions.private, scale, self.random_source)
        one = float(_core.grid) * self.prompts
        return self.decoding.token(total / one, predictions.public, scale / one, self.random_source)


@dataclass
class Noiseless(BaseRelease):
    """The σ = 0 baseline of every mechanism: the mean, decoded. Results say `certified=False`."""

    noise_multiplier: float = field(default=0.0, init=False)
    random_source: RandomSource | None = field(default=None, init=False)
    decoding: Decoding = field(default_factory=Decoding)

    def choose(self, predictions: Predictions) -> int:
        """The token of the mean; ties go to the lower id."""
        rows = predictions.private
        mean = _core.sum_of_probabilities(rows) / (float(_core.grid) * max(len(rows), 1))
        return self.decoding.token(mean, predictions.public, 0.0)


def start_release(
    mechanism: Mechanism, draws: Draws, noise_multiplier: float, random_source: RandomSource | None
) -> Release:
    """The release of one demonstration's tokens: the mechanism's own, or at σ = 0 the common baseline."""
    if noise_multiplier > 0 or mechanism.draws_once:
        return mechanism.start(draws, noise_multiplier, random_source)
    decoding = mechanism.decoding if isinstance(mechanism, GaussianMechanism) else Decoding()
    return Noiseless(mechanism.top_k, decoding=decoding)


def gaussian_event(draws: Draws, noise_multiplier: float) -> Event:
    """One Gaussian release on each draw: R tokens are one release at σ/√R (docs/proofs/blocks.md)."""
    shared_multiplier = noise_multiplier / math.sqrt(draws.tokens_per_draw)
    if draws.tokens_per_draw > 1:  # rounding must not credit noise that is not added
        shared_multiplier = math.nextafter(math.nextafter(shared_multiplier, 0.0), 0.0)
    if draws.fixed_size is not None:
        size = draws.fixed_size
        return FixedSizeGaussian(size.sample_size, size.population, shared_multiplier, draws.steps)
    return PoissonGaussian(draws.sampling_rate, shared_multiplier, draws.steps)


# ---- the noise --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def noise_scale(noise_multiplier: float, squared_sensitivity: Fraction | int, grid: int) -> int:
    """The smallest multiple of 8 that is at least σ·Δ₂ in grid steps: the integer noise scale s.

    Computed exactly: σ counts as the rational number that its float is, and s² ≥ σ²·Δ₂²·grid². Δ₂² is in the
    unit of the sums, of which `grid` steps are 1.
    """
    squared = math.ceil(Fraction(noise_multiplier) ** 2 * squared_sensitivity * grid**2)
    scale = math.isqrt(squared - 1) + 1
    return -(-scale // 8) * 8


def squared_clip_sensitivity(clip: float, row_change: RowChange, grid: int) -> Fraction:
    """Δ² of a sum of rows clipped to the norm C, exact: C², or (2C)² where a row is replaced.

    C counts as the clipped integers have it, floor(C · grid) steps: the float may be larger.
    """
    steps = math.floor(Fraction(clip) * grid)
    return Fraction(row_change.rows * steps, grid) ** 2


def nearest_distribution(noisy: NDArray[np.int64], prompts: int) -> NDArray[np.int64]:
    """The distribution nearest in L2 to noisy/M, in grid steps, each in 0..grid: the next query's centre.

    Post-processing, after Duchi, Shalev-Shwartz, Singer, Chandra 2008, Figure 1. With K = 100 candidates,
    cutting negative coordinates and rescaling the rest drowns the mean in the positive half of the noise. The
    projection subtracts a constant instead (docs/decisions/mechanisms.md). `noisy` is a released sum over M
    prompts, in grid steps, shape (support,).
    """
    mean = noisy / (float(_core.grid) * prompts)
    ordered = np.sort(mean)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    threshold = excess[np.flatnonzero(ordered > excess)[-1]]
    shares = np.clip(mean - threshold, 0.0, 1.0)
    return np.asarray(np.floor(shares * _core.grid), dtype=np.int64)
