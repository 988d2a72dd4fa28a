"""The discrete Laplace distribution sampled exactly, in integers of any length.

Canonne, Kamath and Steinke (2020), "The Discrete Gaussian for Differential Privacy", Algorithm 2. Their
symbols: s/t is the rate, here numerator/denominator; U is uniform below t, V is geometric, X = U + tV, and
Y = ⌊X/s⌋ is the magnitude. `below_exponential` replaces their Algorithm 1, a coin that shows heads with
probability exp(-γ): it draws the digits of a uniform number until they decide.
Proof: docs/proofs/exact-laplace.md.
"""

from __future__ import annotations

import operator
import os

from dpfewshot.exact.choice import below_exponential, check_rate, uniform_below
from dpfewshot.exact.normal import Uniform
from dpfewshot.exact.random_source import RandomSource


def discrete_laplace(numerator: int, denominator: int, random_source: RandomSource | None = None) -> int:
    """An integer k with probability proportional to exp(-|k| · numerator/denominator).

    Args:
        numerator: of the rate, at least 1.
        denominator: of the rate, at least 1. The rate is ε for an integer query of sensitivity 1, and ε/G
            where 1 has G grid steps.
        random_source: n to n uniform bytes, for tests alone; None is the operating system's generator.

    Raises:
        TypeError: the numerator or the denominator is not an integer.
        ValueError: one of them is not positive.
    """
    numerator, denominator = operator.index(numerator), operator.index(denominator)
    check_rate(numerator, denominator)
    read = random_source or os.urandom
    while True:
        magnitude = _geometric(denominator, read) // numerator
        negative = read(1)[0] & 1
        if magnitude or not negative:  # else +0 and -0 would draw zero twice as often
            return -magnitude if negative else magnitude


def _geometric(scale: int, random_source: RandomSource) -> int:
    """An integer x ≥ 0 with probability proportional to exp(-x/scale), as x modulo scale and x // scale."""
    rest = uniform_below(scale, random_source)
    while not _heads(rest, scale, random_source):
        rest = uniform_below(scale, random_source)
    wholes = 0
    while _heads(1, 1, random_source):
        wholes += 1
    return rest + scale * wholes


def _heads(numerator: int, denominator: int, random_source: RandomSource) -> bool:
    """True with probability exp(-numerator/denominator)."""
    return below_exponential(Uniform.draw(random_source), numerator, denominator)
