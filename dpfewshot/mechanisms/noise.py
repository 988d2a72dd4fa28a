"""The integer noise scale and the events of a noise multiplier, which several mechanisms share."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction

from dpfewshot.accounting.events import (
    WIDEST_RANGE,
    Event,
    FixedSizeGaussian,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonProduct,
    PoissonRandomizedResponse,
    Tightest,
    ZeroConcentrated,
)
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact.rounding import rounded_up
from dpfewshot.mechanisms.protocol import Draws


@functools.lru_cache(maxsize=1024)
def noise_scale(noise_multiplier: float, squared_sensitivity: Fraction | int, grid: int) -> int:
    """The smallest multiple of 8 that is at least σ·Δ₂ in grid steps: the integer noise scale s.

    Computed exactly: σ counts as the rational number that its float is, and s² ≥ σ²·Δ₂²·grid².

    Args:
        noise_multiplier: σ > 0.
        squared_sensitivity: Δ₂² > 0, exact, in the unit of the sums, not in grid steps.
        grid: the number of grid steps in 1.
    """
    squared = Fraction(noise_multiplier) ** 2 * squared_sensitivity * grid**2
    scale = _ceiling_of_root(squared)
    return -(-scale // 8) * 8


def gaussian_event(draws: Draws, noise_multiplier: float) -> PoissonGaussian | FixedSizeGaussian:
    """R Gaussian releases at σ on one draw are one release at σ/√R (docs/proofs/blocks.md)."""
    shared_multiplier = noise_multiplier / math.sqrt(draws.tokens_per_draw)
    if draws.tokens_per_draw > 1:  # rounding must not credit noise that is not added
        shared_multiplier = math.nextafter(math.nextafter(shared_multiplier, 0.0), 0.0)
    if draws.fixed_size is not None:
        size = draws.fixed_size
        return FixedSizeGaussian(size.sample_size, size.population, shared_multiplier, draws.steps)
    return PoissonGaussian(draws.sampling_rate, shared_multiplier, draws.steps)


def pure_event(draws: Draws, epsilon: float, name: str) -> Event:
    """R releases on each draw, each ε₀-DP given the earlier ones.

    Args:
        draws: Poisson.
        epsilon: ε₀ of a token, rounded up.
        name: of the mechanism, for the message.

    Raises:
        InvalidPlan: fixed-size draws, for which the accountant has Gaussian pairs only.
    """
    if draws.fixed_size is not None:
        raise InvalidPlan(
            f"{name} needs Poisson draws: sampling='fixed-size' reproduces the papers that ran a Gaussian "
            "mechanism that way"
        )
    return _on_each_draw(draws, PoissonRandomizedResponse(1.0, epsilon, draws.tokens_per_draw))


def _on_each_draw(draws: Draws, query: PoissonRandomizedResponse | PoissonBoundedRange) -> Event:
    """R answers to a query on each draw (docs/proofs/product.md)."""
    if draws.tokens_per_draw == 1 or draws.sampling_rate == 1:  # at q = 1 all draws are the same
        return replace(query, sampling_rate=draws.sampling_rate, steps=draws.steps * draws.tokens_per_draw)
    return PoissonProduct(draws.sampling_rate, (query,), draws.steps)


def softmax_event(draws: Draws, noise_multiplier: float, name: str) -> Event:
    """Tokens drawn from a softmax whose exponents change by a range of at most ε₀ = 2/σ.

    Such a token has bounded range ε₀, which subsampling amplifies. It is also ρ-zCDP with ρ = ε₀²/8 =
    1/(2σ²); these ρ add up without amplification (docs/proofs/private-prediction.md). Both hold, so the
    tighter one counts.

    Args:
        draws: Poisson.
        noise_multiplier: σ > 0.
        name: of the mechanism, for the message.

    Raises:
        InvalidPlan: fixed-size draws.
    """
    epsilon = rounded_up(2 / Fraction(noise_multiplier))
    amplified = pure_event(draws, epsilon, name)
    if epsilon <= WIDEST_RANGE:
        amplified = _on_each_draw(draws, PoissonBoundedRange(1.0, epsilon, draws.tokens_per_draw))
    tokens = draws.steps * draws.tokens_per_draw
    concentrated = ZeroConcentrated(rounded_up(Fraction(epsilon) ** 2 / 8), tokens)
    return Tightest((amplified, concentrated))


def _ceiling_of_root(squared: Fraction) -> int:
    whole = -(-squared.numerator // squared.denominator)
    root = math.isqrt(whole)
    return root if root * root == whole else root + 1
