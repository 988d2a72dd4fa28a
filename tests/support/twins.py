"""The compiled sums' meaning in NumPy and Python, name for name: the same tests run on both.

Bit for bit: NumPy rounds each sum and product of float32 by itself, and so must the compiled code on every
instruction set. `exponentials` is the one approximation; a test holds it against exp.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Integers = NDArray[np.int64]

grid = 2**30
logit_grid = 2**20
count_grid = 2**16


def largest_of(row: Row) -> np.float32 | None:
    """None for a row with a NaN or +inf, or without any finite entry."""
    if np.isnan(row).any() or (row == np.inf).any() or not np.isfinite(row).any():
        return None
    return np.float32(row.max())


@np.errstate(over="ignore")
def float_exponentials(row: Row, largest: np.float32) -> Row:
    """2^n·exp(r) with |r| ≤ ln(2)/2 and n an integer: Cephes' expf, in float32."""
    f = np.float32
    y = np.maximum(row - largest, f(-87))
    shifted = y * f(1.44269504) + f(12582912)
    n = shifted - f(12582912)
    r = y - n * f(0.693359375) - n * f(-2.12194440e-4)
    square = r * r
    high = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    middle = f(8.3334519073e-3) * r + f(4.1665795894e-2)
    low = f(1.6666665459e-1) * r + f(5.0000001201e-1)
    series = ((high * square + middle) * square + low) * square + r + f(1)
    return (series.view(np.int32) + (shifted.view(np.int32) << 23)).view(np.float32)


def exponentials(row: Row, largest: np.float32) -> Integers:
    return (np.clip(float_exponentials(row, largest), 0, 1) * np.float32(grid)).astype(np.int64)


def probabilities(row: Row) -> Integers | None:
    """floor(grid·softmax), by integers alone once the exponentials are there."""
    largest = largest_of(row)
    if largest is None:
        return None
    weights = exponentials(row, largest)
    total = int(weights.sum())
    shift = next(k for k in range(31, 64) if (grid << k) // total >= 2**31)
    return (weights.astype(np.uint64) * np.uint64((grid << shift) // total) >> np.uint64(shift)).astype(
        np.int64
    )


def squared_norm(integers: Integers) -> int:
    return sum(int(i) ** 2 for i in integers)


def clip_norm(integers: Integers, bound: int) -> Integers | None:
    squared = squared_norm(integers)
    if squared <= bound**2:
        return integers
    excess = 2.0**-52
    factor = min(bound / math.sqrt(squared), 1 - excess)
    while factor > 0:
        shrunk = np.trunc(integers * factor).astype(np.int64)
        if squared_norm(shrunk) <= bound**2:
            return shrunk
        factor *= 1 - excess
        excess *= 2
    return None


def steps(clip: float, largest: float, steps_of_one: int) -> int:
    if not 0 < clip <= largest:
        raise ValueError(f"the clipping norm is out of its range: {clip}")
    return math.floor(Fraction(clip) * steps_of_one)


def sum_of(rows, rule) -> Integers:
    total = np.zeros(rows.shape[1], dtype=np.int64)
    for row in rows:
        integers = rule(row)
        if integers is not None:
            total += integers
    return total


def sum_of_probabilities(logprobs) -> Integers:
    return sum_of(logprobs, probabilities)


def sum_of_max_normalised(logprobs) -> Integers:
    def rule(row: Row) -> Integers | None:
        largest = largest_of(row)
        return None if largest is None else exponentials(row, largest)

    return sum_of(logprobs, rule)


def sum_around(logprobs, centre, clip: float) -> Integers:
    bound = steps(clip, math.sqrt(2), grid)
    if logprobs.shape[1] != len(centre) or not ((centre >= 0) & (centre <= grid)).all():
        raise ValueError("the centre does not fit")

    def rule(row: Row) -> Integers | None:
        integers = probabilities(row)
        return None if integers is None else clip_norm(integers - centre, bound)

    return sum_of(logprobs, rule)


def radius_steps(radius: float) -> int:
    if not 0 <= radius <= math.sqrt(2):
        raise ValueError(f"the radius is out of its range: {radius}")
    return math.floor(Fraction(radius) * grid)


def present(logprobs) -> list[Integers]:
    return [integers for row in logprobs if (integers := probabilities(row)) is not None]


def within(logprobs, centre, radius: float) -> list[bool]:
    if logprobs.shape[1] != len(centre) or not ((centre >= 0) & (centre <= grid)).all():
        raise ValueError("the centre does not fit")
    bound = radius_steps(radius) ** 2
    return [squared_norm(integers - centre) <= bound for integers in present(logprobs)]


def count_within(logprobs, centre, radius: float) -> int:
    return sum(within(logprobs, centre, radius))


class Distances:
    def __init__(self, logprobs) -> None:
        self.rows = present(logprobs)

    def scores(self, radii, size: int) -> list[int]:
        if not 1 <= size <= 2**20:
            raise ValueError("the size of the cluster is out of its range")
        return [
            sum(sorted((min(ball, size) for ball in self.balls(radius)), reverse=True)[:size])
            for radius in radii
        ]

    def balls(self, radius: float) -> list[int]:
        """For each row how many rows lie within the radius of it."""
        bound = radius_steps(radius) ** 2
        return [sum(squared_norm(one - other) <= bound for other in self.rows) for one in self.rows]


def sum_of_clipped_logits(logits, clip: float) -> Integers:
    bound = steps(clip, 1000, logit_grid)

    def rule(row: Row) -> Integers | None:
        largest = largest_of(row)
        if largest is None:
            return None
        value = (row.astype(np.float64) - float(largest)) * logit_grid + 2 * bound
        return np.clip(value, 0, 2 * bound).astype(np.int64) - bound

    return sum_of(logits, rule)


def sum_of_clipped_differences(logprobs, public_logprobs, clip: float) -> Integers:
    bound = steps(clip, 1000, logit_grid)
    if logprobs.shape[1] != len(public_logprobs) or not np.isfinite(public_logprobs).all():
        raise ValueError("the public row does not fit")

    def rule(row: Row) -> Integers | None:
        if largest_of(row) is None:
            return None
        value = (row.astype(np.float64) - public_logprobs.astype(np.float64)) * logit_grid
        return np.clip(value, -bound, bound).astype(np.int64)

    return sum_of(logprobs, rule)


def log_softmax(logits, support=None) -> Row:
    """By exp and log themselves: equal up to rounding."""

    def cut(row: Row) -> Row:
        largest = largest_of(row)
        if largest is None:
            return np.full(len(row), np.nan, dtype=np.float32)
        shifted = row.astype(np.float64) - float(largest)
        with np.errstate(over="ignore"):  # a difference below the least float32 is -inf
            return (shifted - math.log(np.exp(shifted).sum())).astype(np.float32)

    rows = np.array([cut(row) for row in np.atleast_2d(logits)], dtype=np.float32)
    if support is not None and not all(0 <= token < rows.shape[1] for token in support):
        raise ValueError("a token id is outside of the vocabulary")
    kept = rows if support is None else rows[:, np.asarray(support, dtype=np.int64)]
    return kept.reshape(*np.shape(logits)[:-1], -1)
