"""Several Gaussian queries on one draw, as one Gaussian mechanism."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dpfewshot.errors import InvalidPlan
from dpfewshot.values import check_whole

RADIUS_QUERIES = 6
"""GoodRadius halves [0, √2/2] down to θ = 0.1 in ⌈log₂(√2 / (2·0.1))⌉ = 3 turns of two queries each."""


def combined_multiplier(multipliers: Iterable[float]) -> float:
    """(Σ σᵢ⁻²)^-½: one Gaussian that dominates queries with multipliers σᵢ, each over its own sensitivity.

    A query changes by at most its sensitivity, so in units of its noise the vector of all answers moves by
    at most √(Σ σᵢ⁻²). This holds for adaptive queries too, if their multipliers are constants (Dong, Roth,
    Su 2022, Corollary 2).

    Args:
        multipliers: σᵢ > 0, at least one. Count a query that is sometimes not asked: that is post-processing.

    Raises:
        InvalidPlan: no query, or a multiplier that is not a positive number.
    """
    squares = []
    for multiplier in multipliers:
        if not (math.isfinite(multiplier) and multiplier > 0):
            raise InvalidPlan(f"noise multipliers must be positive numbers, not {multiplier}")
        squares.append(multiplier**-2)
    if not squares:
        raise InvalidPlan("there is no query to combine")
    rounded_up = math.fsum(squares) * (1 + 1e-15 * (len(squares) + 2))  # never more noise than is added
    return (1 - 1e-15) / math.sqrt(rounded_up)


def common_factor(multipliers: Sequence[float], target: float) -> float:
    """The least factor, up to rounding, that scales queries to a combined multiplier of at least `target`.

    It is checked on the products factor · σᵢ as floats.

    Args:
        multipliers: σᵢ > 0; only their ratios matter.
        target: the combined multiplier to reach, above 0.

    Raises:
        InvalidPlan: no query, or a multiplier that is not a positive number.
    """
    factor = target / combined_multiplier(multipliers)
    while combined_multiplier(factor * multiplier for multiplier in multipliers) < target:
        factor *= 1 + 2.0**-51
    return factor


def adadpsyn_queries(
    *, radius_multiplier: float, mean_multiplier: float, coverage_multiplier: float, rounds: int
) -> list[float]:
    """The multipliers of all queries of one step of AdaDPSyn; arguments as in `adadpsyn_multiplier`."""
    check_whole("rounds", rounds)
    return (
        [radius_multiplier] * RADIUS_QUERIES
        + [coverage_multiplier] * rounds
        + [mean_multiplier] * (rounds + 1)
    )


def adadpsyn_multiplier(
    *, radius_multiplier: float, mean_multiplier: float, coverage_multiplier: float, rounds: int
) -> float:
    """σ_eff = (6/σ₀² + T̂/σ₂² + (T̂+1)/σ₁²)^-½ of one step of AdaDPSyn (Gao et al. 2025, Algorithms 1, 4, 5).

    A step asks 6 queries of GoodRadius, T̂ coverage counts and T̂+1 means of one draw. Its price covers all
    of them, however early it leaves the loop. Each multiplier is over the sensitivity of its own query.

    Args:
        radius_multiplier: σ₀ of the queries of GoodRadius.
        mean_multiplier: σ₁ of the means.
        coverage_multiplier: σ₂ of the coverage counts.
        rounds: T̂ ≥ 1, the most rounds of radius reduction.

    Raises:
        InvalidPlan: a value outside its range.
    """
    return combined_multiplier(
        adadpsyn_queries(
            radius_multiplier=radius_multiplier,
            mean_multiplier=mean_multiplier,
            coverage_multiplier=coverage_multiplier,
            rounds=rounds,
        )
    )
