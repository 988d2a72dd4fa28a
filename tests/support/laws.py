"""The exact laws of choices, from integer scores and a rational rate, and whether draws follow them."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import SupportsFloat

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpfewshot import _core

DIGITS = 60
IMPOSSIBLE = 1e-9
"""Chance at which a test of a distribution fails."""


def p_value(observed: ArrayLike, law: Sequence[SupportsFloat]) -> float:
    """Chi-square of counts against a law."""
    counts, chances = np.asarray(observed), np.array([float(each) for each in law])
    return float(stats.chisquare(counts, chances / chances.sum() * counts.sum()).pvalue)


def measured_epsilon(with_unit: int, without: int, runs: int, delta: float = 0.0) -> float:
    """The least ε of such hits, by Clopper and Pearson: P[S | D'] ≤ e^ε P[S | D] + δ, wrong once in 10⁹."""
    least = float(stats.beta.ppf(IMPOSSIBLE / 2, with_unit, runs - with_unit + 1))
    most = float(stats.beta.isf(IMPOSSIBLE / 2, without + 1, runs - without))
    return math.log(max(least - delta, 1e-300) / most)


def exponential(exponent: Fraction) -> mpmath.mpf:
    return mpmath.exp(mpmath.mpf(exponent.numerator) / exponent.denominator)


def softmax(scores: NDArray[np.int64], rate: Fraction) -> list[mpmath.mpf]:
    with mpmath.workdps(DIGITS):
        weights = [exponential((int(score) - int(scores.max())) * rate) for score in scores]
        return [weight / mpmath.fsum(weights) for weight in weights]


def noisy_max(scores: NDArray[np.int64], rate: Fraction) -> list[mpmath.mpf]:
    """P(i) = p_i ∫ Π_{j≠i} (1 - p_j t) dt over 0..1: i shows heads, and no other head is before it."""
    with mpmath.workdps(DIGITS):
        heads = [exponential((int(score) - int(scores.max())) * rate) for score in scores]
        wins = []
        for i, head in enumerate(heads):
            polynomial = [mpmath.mpf(1)]
            for j, other in enumerate(heads):
                if j != i:
                    shifted = [mpmath.mpf(0), *(-other * c for c in polynomial)]
                    polynomial = [a + b for a, b in zip([*polynomial, 0], shifted, strict=True)]
            wins.append(head * mpmath.fsum(c / (k + 1) for k, c in enumerate(polynomial)))
        return wins


def release_law(
    name: str, release, rows: NDArray[np.float32], public: NDArray[np.float32]
) -> list[mpmath.mpf]:
    """What the release of a mechanism that chooses draws its token from."""
    if name == "report-noisy-max":
        return noisy_max(_core.sum_of_max_normalised(rows), release.rate)
    if name == "private-prediction":
        return softmax(_core.sum_of_clipped_logits(rows, release.clip), release.rate)
    total = _core.sum_of_clipped_differences(rows, public, release.clip)
    start = np.rint(public.astype(np.float64) * _core.logit_grid).astype(np.int64) * release.prompts
    return softmax(start + total, release.rate)
