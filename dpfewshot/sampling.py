"""Who takes part in a draw: Poisson sampling, and independent assignment to subsets.

Design note 5.1. Every unit of the population is in a draw with the same probability, independently,
by exact Bernoulli trials; every drawn unit goes to one of M subsets, uniformly and independently.
Never by slicing a sample: one record more would shift all that come after it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from dpfewshot import _core
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.values import Record

Unit = tuple[Record, ...]
"""The records of one unit that may serve: one of them is drawn whenever the unit is."""


class Sampler(Protocol):
    """Who takes part in a draw, and in which prompt."""

    def draw(self, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """The non-empty subsets of one draw.

        Args:
            sizes: for each unit, how many records it has (at least 1).

        Returns:
            Each subset as (unit, record of that unit) indices.
        """
        ...


@dataclass(frozen=True)
class PoissonSampler:
    """Draws units independently with probability q and puts each in one of M subsets.

    Args:
        sampling_rate: q in (0, 1], exact.
        subsets: M ≥ 1.
        records_per_prompt: N, the expected size of a subset. With N = 1 every drawn unit has a prompt of
            its own, and the number of prompts is random with mean M.
        random_source: n to n uniform bytes, for tests alone; None is the operating system.
    """

    sampling_rate: Fraction
    subsets: int
    records_per_prompt: int
    random_source: RandomSource | None = None

    def draw(self, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Independent coins and independent subsets, in the units' order. See `Sampler.draw`."""
        assignment = _core.poisson_subsets(
            len(sizes),
            self.sampling_rate.numerator,
            self.sampling_rate.denominator,
            self.subsets,
            self.random_source,
        )
        subsets: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for unit in (assignment >= 0).nonzero()[0].tolist():
            prompt = unit if self.records_per_prompt == 1 else int(assignment[unit])
            subsets[prompt].append((unit, _below(sizes[unit], self.random_source)))
        return [subsets[prompt] for prompt in sorted(subsets)]


@dataclass(frozen=True)
class FixedSizeSampler:
    """Draws exactly M·N units without replacement, N in each of M subsets, uniformly: as the papers ran it.

    Poisson accounting does not cover it (design note 5.1): it is there to reproduce them, by name only.

    Args:
        subsets: M ≥ 1.
        records_per_prompt: N ≥ 1.
        random_source: n to n uniform bytes, for tests alone; None is the operating system.
    """

    subsets: int
    records_per_prompt: int
    random_source: RandomSource | None = None

    def draw(self, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """The first M·N units of a uniform permutation, N by N. See `Sampler.draw`."""
        order = list(range(len(sizes)))
        drawn: list[tuple[int, int]] = []
        for place in range(self.subsets * self.records_per_prompt):
            other = place + _below(len(order) - place, self.random_source)
            order[place], order[other] = order[other], order[place]
            drawn.append((order[place], _below(sizes[order[place]], self.random_source)))
        size = self.records_per_prompt
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]


def disjoint_parts(units: int, parts: int, random_source: RandomSource | None = None) -> list[list[int]]:
    """The units in P parts: each unit is put in one of them by itself, uniformly.

    Parts are as large as chance makes them. Cutting a list into equal parts would move every later unit
    where one is added.

    Args:
        units: how many there are; private.
        parts: P ≥ 1.
        random_source: for tests alone.

    Returns:
        For each part, the indices of its units, ascending.
    """
    members: list[list[int]] = [[] for _ in range(parts)]
    for unit, part in enumerate(_core.uniform_integers(parts, units, random_source).tolist()):
        members[part].append(unit)
    return members


def _below(bound: int, random_source: RandomSource | None) -> int:
    return 0 if bound == 1 else int(_core.uniform_integers(bound, 1, random_source)[0])


def units_by_label(records: Iterable[Record]) -> dict[str, list[Unit]]:
    """The partition of the units by label: every unit belongs to exactly one part.

    A unit belongs to the label of most of its records, the first in alphabetical order among equals,
    and only its records of that label serve. The rule looks at that unit alone, so labels compose in
    parallel (design note 5.4). A record without a unit is a unit by itself.
    """
    parts: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units(records):
        counts = Counter(record.label for record in unit)
        label = min(counts, key=lambda name: (-counts[name], name))
        parts[label].append(tuple(record for record in unit if record.label == label))
    return dict(parts)


def units(records: Iterable[Record]) -> list[Unit]:
    """The units of a data set, each with all of its records, in the order of their first record."""
    alone: list[Unit | None] = []
    shared: dict[str, tuple[int, list[Record]]] = {}
    for record in records:
        if record.unit is None:
            alone.append((record,))
        elif record.unit in shared:
            shared[record.unit][1].append(record)
        else:
            shared[record.unit] = (len(alone), [record])
            alone.append(None)
    for position, members in shared.values():
        alone[position] = tuple(members)
    return [unit for unit in alone if unit is not None]
