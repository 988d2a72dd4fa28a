"""Whole draws of neighbouring data sets: the same coins for every other unit."""

import random
from collections.abc import Sequence
from fractions import Fraction

from dpfewshot.sampling import PoissonSampler


class Written:
    """Units whose records are tokens already, in place of `Bodies`."""

    def __init__(self, units: Sequence[Sequence[list[int]]]) -> None:
        self.units, self.sizes = units, [len(unit) for unit in units]

    def check(self) -> None:
        """Nothing is read."""

    def of(self, subsets: Sequence[Sequence[tuple[int, int]]]) -> list[list[list[int]]]:
        return [[self.units[unit][record] for unit, record in subset] for subset in subsets]


def poisson_subsets_of(n: int, seed: int, subsets: int, records_per_prompt: int) -> list[list[int]]:
    sampler = PoissonSampler(Fraction(1, 2), subsets, records_per_prompt, random.Random(seed).randbytes)
    return [[unit for unit, _ in subset] for subset in sampler.draw([1] * n)]


def without(subsets: Sequence[Sequence[int]], unit: int) -> list[list[int]]:
    """The same draw of the neighbouring data set: every other unit's coins and subset are shared."""
    return [rest for subset in subsets if (rest := [u for u in subset if u != unit])]


def sliced(units: Sequence[int], size: int) -> list[list[int]]:
    """The published implementations' way, for controls: cut the sample by position."""
    return [list(units[i : i + size]) for i in range(0, len(units), size)]
