"""Exact choices among integer scores, and discrete Laplace noise, in integers of any length.

`permute_and_flip` is report noisy max with exponential noise (McKenna and Sheldon 2020; Ding et al. 2021
prove the two equal). `sample_softmax` draws i with probability proportional to exp(scores[i]·rate). Both
compare uniform numbers with exp(-gap·rate), where gap is the distance to the best score and the rate is a
fraction. They are the specification of `csrc/choice.pxd`: where 64 digits do not decide, the compiled code
asks `decide_words`, which draws as many as it takes. Proofs: docs/proofs/exact-choice.md, exact-laplace.md.
"""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from dpfewshot.exact import RandomSource
from dpfewshot.exact.normal import WORD, Uniform, exponential_of_minus

LARGEST_RATE = 64


def _check_rate(numerator: int, denominator: int) -> None:
    if numerator < 1 or denominator < 1:
        raise ValueError("the rate's numerator and denominator must be positive integers")


def below_exponential(u: Uniform, numerator: int, denominator: int) -> bool:
    """Whether u < exp(-numerator/denominator). Draws as many digits of u as the answer takes."""
    if numerator == 0:
        return True
    while True:
        low, high = exponential_of_minus(numerator, denominator, u.digits)
        if u.value + 1 <= low:
            return True
        if u.value >= high:
            return False
        u.refine()


def decide_words(
    value: int, digits: int, gap: int, fraction: tuple[int, int], random_source: RandomSource | None
) -> bool:
    """`below_exponential` for the compiled code, which has drawn the uniform number's first digits.

    The number lies in [value, value + 1) · 2^-digits. The gap is the distance to the best score, and the
    fraction the rate's numerator and denominator.
    """
    numerator, denominator = fraction
    return below_exponential(
        Uniform(value, digits, random_source or os.urandom), gap * numerator, denominator
    )


def permute_and_flip(
    scores: Sequence[int],
    numerator: int,
    denominator: int,
    random_source: RandomSource = os.urandom,
    digits: int = WORD,
) -> int:
    """The index of the largest of score + exponential noise of mean denominator/numerator.

    Each candidate's coin shows heads with probability exp(-(best - score)·rate), and the first head in a
    uniformly random order wins. The order is independent of the coins, so the winner is drawn uniformly from
    the heads. `digits` of a uniform number are drawn at first.
    """
    best = max(scores)
    heads = [
        i
        for i, score in enumerate(scores)
        if below_exponential(Uniform.draw(random_source, digits), (best - score) * numerator, denominator)
    ]
    return heads[uniform_below(len(heads), random_source)]


def sample_softmax(
    scores: Sequence[int],
    numerator: int,
    denominator: int,
    random_source: RandomSource = os.urandom,
    digits: int = WORD,
) -> int:
    """An index, with probability proportional to exp(score · numerator/denominator).

    Each candidate's proposal weight is an integer of at least 2^digits·exp(-gap·rate). A proposal is kept
    with probability 2^digits·exp(-gap·rate) over its weight, which makes the draw exact. The best candidate
    is always kept, so its weight must be 2^digits and no more.
    """
    best = max(scores)
    exponents = [(best - score) * numerator for score in scores]
    weights = [exponential_of_minus(exponent, denominator, digits)[1] for exponent in exponents]
    cumulative = list(accumulate(weights))
    while True:
        position = uniform_below(cumulative[-1], random_source)
        index = bisect_right(cumulative, position)
        within = Uniform(position - cumulative[index] + weights[index], digits, random_source)
        if below_exponential(within, exponents[index], denominator):
            return index


def uniform_below(bound: int, random_source: RandomSource) -> int:
    """A uniform integer in 0..bound-1, by rejection."""
    size = (bound.bit_length() + 7) // 8
    while True:
        value = int.from_bytes(random_source(size), "little") >> (8 * size - bound.bit_length())
        if value < bound:
            return value


def fixed_point(numerator: int, denominator: int) -> tuple[int, int]:
    """The compiled code's rate: (mantissa, shift) with mantissa ≤ 2^shift · rate < mantissa + 1.

    The mantissa has 64 digits, and fewer for rates below 2^-63, whose shift stays at 127. A rate of 64 or
    more counts as 64: 64 digits cannot tell exp(-gap·64) from zero for any gap above 0.
    """
    _check_rate(numerator, denominator)
    if numerator >= LARGEST_RATE * denominator:
        return 1 << 63, 57
    shift = min(127, 63 + denominator.bit_length() - numerator.bit_length())
    if (numerator << shift) // denominator < 1 << 63 and shift < 127:  # noqa: PLR2004 - the widest shift
        shift += 1
    return (numerator << shift) // denominator, shift


# ---- discrete Laplace noise --------------------------------------------------------------------------------


def discrete_laplace(numerator: int, denominator: int, random_source: RandomSource | None = None) -> int:
    """An integer k with probability proportional to exp(-|k| · numerator/denominator).

    Canonne, Kamath and Steinke (2020), Algorithm 2. Their symbols: s/t is the rate, here
    numerator/denominator; U is uniform below t, V is geometric, X = U + tV, and Y = ⌊X/s⌋ is the magnitude.
    `below_exponential` replaces their Algorithm 1, a coin that shows heads with probability exp(-γ): it draws
    the digits of a uniform number until they decide.

    The rate is ε for an integer query of sensitivity 1, and ε/G where 1 has G grid steps. Both arguments are
    positive integers (TypeError, ValueError).
    """
    numerator, denominator = operator.index(numerator), operator.index(denominator)
    _check_rate(numerator, denominator)
    read = random_source or os.urandom
    while True:
        magnitude = _geometric(denominator, read) // numerator
        negative = read(1)[0] & 1
        if magnitude or not negative:  # else +0 and -0 would draw zero twice as often
            return -magnitude if negative else magnitude


def _geometric(scale: int, random_source: RandomSource) -> int:
    """An integer x ≥ 0 with probability proportional to exp(-x/scale), as x modulo scale and x // scale."""
    drawn = uniform_below(scale, random_source)
    while not _heads(drawn, scale, random_source):
        drawn = uniform_below(scale, random_source)
    while _heads(1, 1, random_source):
        drawn += scale
    return drawn


def _heads(numerator: int, denominator: int, random_source: RandomSource) -> bool:
    """True with probability exp(-numerator/denominator)."""
    return below_exponential(Uniform.draw(random_source), numerator, denominator)
