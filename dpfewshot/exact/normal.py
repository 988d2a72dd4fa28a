"""round(N(0, s²)) sampled exactly, in integers of any length: the specification of `csrc/normal.pxd`.

The compiled sampler decides with the first 64 digits of its uniform numbers. About once in 2^40 draws they do
not suffice, and it asks `decide`, which draws more digits until they do. This module is also the compiled
sampler's twin.

Method (docs/proofs/exact-normal.md): |N| has density proportional to exp(-t²/2) on t ≥ 0. Write t = (cell +
x)/8. Draw the cell with weight exp(-cell²/128) and x uniformly, and keep the pair with probability
exp(-x(2·cell + x)/128): the product is exp(-t²/2). Compare Karney (2016), algorithm N.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from dataclasses import dataclass

from dpfewshot.exact import RandomSource

CELLS_PER_UNIT = 8
EXPONENT_DENOMINATOR = 2 * CELLS_PER_UNIT**2  # t²/2 = (cell + x)² / 128
WORD = 64

Interval = tuple[int, int]
"""An enclosure [low, high] of a real number, in units of 2^-digits."""


@dataclass
class Uniform:
    """A uniform number, in [value, value + 1) · 2^-digits, whose further digits are drawn on demand."""

    value: int
    digits: int
    random_source: RandomSource

    @classmethod
    def draw(cls, random_source: RandomSource, digits: int = WORD) -> Uniform:
        """The first `digits` of a new number, at least 1."""
        drawn = int.from_bytes(random_source(-(-digits // 8)), "little")
        return cls(drawn >> -digits % 8, digits, random_source)

    def refine(self) -> None:
        """Draw one more word of digits."""
        self.value = (self.value << WORD) | int.from_bytes(self.random_source(WORD // 8), "little")
        self.digits += WORD


def exponential_of_minus(numerator: int, denominator: int, digits: int) -> Interval:
    """An enclosure of exp(-numerator/denominator) ≤ 1 in units of 2^-digits, a few units wide."""
    halvings = max(0, (numerator // denominator).bit_length())
    working = digits + halvings + 8
    one = 1 << working
    y_low = (numerator << working) // (denominator << halvings)
    low, high = _alternating_series(y_low + 1, one)[0], _alternating_series(y_low, one)[1]
    for _ in range(halvings):
        low, high = low * low >> working, (high * high >> working) + 1
    spare = working - digits
    return low >> spare, min((high >> spare) + 1, 1 << digits)


def _alternating_series(y: int, one: int) -> Interval:
    """Enclose exp(-y/one) for 0 ≤ y ≤ one: neighbouring partial sums of Σ (-y)^n/n! enclose the limit."""
    term_low = term_high = one
    low = high = one
    order = 0
    while term_high > 1:
        order += 1
        term_low = term_low * y // (one * order)
        term_high = -(-term_high * y // (one * order))
        if order % 2:
            low, high = low - term_high, high - term_low
        else:
            low, high = low + term_low, high + term_high
    return low - term_high, high + term_high


@functools.lru_cache(maxsize=64)
def cell_thresholds(count: int, digits: int) -> tuple[Interval, ...]:
    """Enclosures of P(cell ≤ k) for k = 0..count-1, in units of 2^-digits."""
    working = digits + 2 * count.bit_length() + 8
    weights: list[Interval] = []
    while len(weights) < count or weights[-1][1] > 1:
        weights.append(exponential_of_minus(len(weights) ** 2, EXPONENT_DENOMINATOR, working))
    # The omitted weights start below one unit and fall faster than 0.6^n: their sum is below three units.
    total_low = sum(low for low, _ in weights)
    total_high = sum(high for _, high in weights) + 3
    below_low = itertools.accumulate(low for low, _ in weights[:count])
    below_high = itertools.accumulate(high for _, high in weights[:count])
    return tuple(
        ((low << digits) // total_high, min(-((-high << digits) // total_low), 1 << digits))
        for low, high in zip(below_low, below_high, strict=True)
    )


def _draw_cell(u: Uniform) -> int:
    """The cell whose interval of cumulative weights contains u."""
    while True:
        # Beyond this cell the weights together are below 2^-digits: exp(-cell²/128) at 12·√digits.
        count = 8 + 12 * (math.isqrt(u.digits) + 1)
        lower = 0  # an upper end for P(cell < k), in units of 2^-digits
        for cell, (low, high) in enumerate(cell_thresholds(count, u.digits)):
            if lower <= u.value and u.value + 1 <= low:
                return cell
            if u.value < high:
                break
            lower = high
        u.refine()


def _keep(cell: int, x: Uniform, v: Uniform) -> bool:
    """Whether v < exp(-x(2·cell + x)/128)."""
    while True:
        one = 1 << x.digits
        denominator = EXPONENT_DENOMINATOR * one * one
        shallow = x.value * (2 * cell * one + x.value)
        steep = (x.value + 1) * (2 * cell * one + x.value + 1)
        low = exponential_of_minus(steep, denominator, v.digits)[0]
        high = exponential_of_minus(shallow, denominator, v.digits)[1]
        if v.value + 1 <= low:
            return True
        if v.value >= high:
            return False
        x.refine()
        v.refine()


def _round(cell: int, x: Uniform, steps_per_cell: int) -> int:
    """The integer nearest to steps_per_cell · (cell + x)."""
    while True:
        half = 1 << (x.digits - 1)
        low = (steps_per_cell * x.value + half) >> x.digits
        high = (steps_per_cell * (x.value + 1) + half - 1) >> x.digits
        if low == high:
            return steps_per_cell * cell + low
        x.refine()


def decide(u: Uniform, x: Uniform, v: Uniform, steps_per_cell: int) -> int | None:
    """The rounded magnitude of one proposal, or None if it is rejected."""
    cell = _draw_cell(u)
    return _round(cell, x, steps_per_cell) if _keep(cell, x, v) else None


def decide_words(
    u: int, x: int, v: int, steps_per_cell: int, random_source: RandomSource | None
) -> int | None:
    """`decide` for the compiled sampler, which has drawn 64 digits of each number."""
    read = random_source or os.urandom
    return decide(Uniform(u, WORD, read), Uniform(x, WORD, read), Uniform(v, WORD, read), steps_per_cell)


def check_scale(scale: int) -> int:
    """The grid steps of one cell, scale/8; ValueError for a scale that is not a positive multiple of 8."""
    steps_per_cell, rest = divmod(scale, CELLS_PER_UNIT)
    if rest or steps_per_cell < 1:
        raise ValueError(f"the scale must be a positive multiple of {CELLS_PER_UNIT}, not {scale}")
    return steps_per_cell
