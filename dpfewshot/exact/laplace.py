"""The discrete Laplace distribution sampled exactly, in integers of any length.

Canonne, Kamath and Steinke (2020), "The Discrete Gaussian for Differential Privacy", Algorithm 2. Their
symbols: s/t is the rate, here numerator/denominator; U is uniform below t, V is geometric, X = U + tV, and
Y = ⌊X/s⌋ is the magnitude. Their Algorithm 1, a coin with heads of probability exp(-γ), is here
`below_exponential`: a uniform number whose digits are drawn until they tell.
Proof: docs/proofs/exact-laplace.md.
"""

from __future__ import annotations

import operator
import os

from dpfewshot.exact.choice import below_exponential, uniform_below
from dpfewshot.exact.normal import Uniform
from dpfewshot.exact.random_source import RandomSource


def discrete_laplace(numerator: int, denominator: int, random_source: RandomSource | None = None) -> int:
    """An integer k with probability proportional to exp(-|k| · numerator/denominator).

    Args:
        numerator: of the rate, at least 1.
        denominator: of the rate, at least 1. Noise on an integer query of sensitivity 1 has rate ε; where
            one is a grid of G steps, the rate is ε/G.
        random_source: n to n uniform bytes, for tests alone; None is the operating system's generator.

    Raises:
        TypeError: the numerator or the denominator is no integer.
        ValueError: one of them is not positive.
    """
    numerator, denominator = operator.index(numerator), operator.index(denominator)
    if numerator < 1 or denominator < 1:
        raise ValueError("the rate's numerator and denominator must be positive integers")
    read = random_source or os.urandom
    while True:
        magnitude = _geometric(denominator, read) // numerator
        negative = read(1)[0] & 1
        if magnitude or not negative:  # or else zero would be drawn twice as often
            return -magnitude if negative else magnitude


def _geometric(scale: int, random_source: RandomSource) -> int:
    """An integer x ≥ 0 with probability proportional to exp(-x/scale), as its rest and its wholes."""
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
