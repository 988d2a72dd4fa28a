"""Exact choices among integer scores, in integers of any length: the meaning of `csrc/choice.pxd`.

`permute_and_flip` is report noisy max with exponential noise (McKenna and Sheldon 2020; Ding et al. 2021
prove the two equal); `sample_softmax` draws i with probability proportional to exp(scores[i]·rate). Both
compare uniform numbers with exp(-gap·rate), gap the distance to the best score and the rate a fraction.
Where the compiled code's 64 digits cannot tell, it asks `decide_words` here, which draws more until they
can. Proofs: docs/proofs/exact-choice.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate

from dpfewshot.exact.normal import WORD, Interval, Uniform, exponential_of_minus
from dpfewshot.exact.random_source import RandomSource

LARGEST_RATE = 64


def below_exponential(u: Uniform, numerator: int, denominator: int) -> bool:
    """Whether u < exp(-numerator/denominator), drawing as many digits of u as that takes."""
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
    """`below_exponential` for the compiled code, which knows the first digits of the uniform number.

    Args:
        value: those digits: the number lies in [value, value + 1) · 2^-digits.
        digits: how many they are.
        gap: the distance to the best score.
        fraction: the rate's numerator and denominator.
        random_source: n to n uniform bytes; None is the operating system.
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

    Each candidate's coin shows heads with probability exp(-(best - score)·rate); the first head in a
    uniformly random order wins. The order has nothing to do with the coins, so the winner is uniform
    among the heads, which is how it is drawn.

    Args:
        scores: integers, at least one.
        numerator: of the rate, at least 1.
        denominator: of the rate, at least 1.
        random_source: n to n uniform bytes.
        digits: how many digits of a uniform number are drawn at first: a multiple of 8.
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

    An integer no less than 2^digits·exp(-gap·rate) is each candidate's proposal weight; a proposal is
    kept with the probability that the weight lacks of being exact.

    Args:
        scores: integers, at least one.
        numerator: of the rate, at least 1.
        denominator: of the rate, at least 1.
        random_source: n to n uniform bytes.
        digits: of the weights.
    """
    best = max(scores)
    weights: list[Interval] = [
        exponential_of_minus((best - score) * numerator, denominator, digits) for score in scores
    ]
    cumulative = list(accumulate(high for _, high in weights))
    while True:
        position = uniform_below(cumulative[-1], random_source)
        index = next(i for i, above in enumerate(cumulative) if above > position)
        within = Uniform(position - cumulative[index] + weights[index][1], digits, random_source)
        if below_exponential(within, (best - scores[index]) * numerator, denominator):
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

    The mantissa has 64 digits, fewer for rates below 2^-63, whose shift stays at 127. A rate of 64 or more
    counts as 64: any gap but zero is then beyond what 64 digits tell from zero.

    Raises:
        ValueError: the numerator or the denominator is no positive integer.
    """
    if numerator < 1 or denominator < 1:
        raise ValueError("the rate's numerator and denominator must be positive integers")
    if numerator >= LARGEST_RATE * denominator:
        return 1 << 63, 57
    shift = min(127, 63 + denominator.bit_length() - numerator.bit_length())
    if (numerator << shift) // denominator < 1 << 63 and shift < 127:  # noqa: PLR2004 (the widest shift)
        shift += 1
    return (numerator << shift) // denominator, shift
