"""Draws of units: Poisson sampling, independent assignment to subsets, and the division by a holdout.

Design note 5.1. Exact Bernoulli trials draw every unit of the population independently with the same
probability. Every drawn unit goes to one of M subsets, uniformly and independently. A sample is never sliced
by position: one more record would shift all later ones.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from dpfewshot import _core
from dpfewshot.budget.scopes import Partition
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.tasks import Task
from dpfewshot.values import Record, Records, as_float, unit_of

Unit = tuple[Record, ...]
"""The records of one unit: whenever the unit is drawn, so is one of them."""


class Sampler(Protocol):
    """Draws units and groups them into prompts."""

    def draw(self, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """The non-empty subsets of one draw.

        Args:
            sizes: the number of records of each unit, at least 1.

        Returns:
            Each subset as pairs of indices: a unit, and a record of that unit.
        """
        ...


@dataclass(frozen=True)
class PoissonSampler:
    """Draws each unit independently with probability q and assigns it to one of M subsets.

    Args:
        sampling_rate: q in (0, 1], exact.
        subsets: M ≥ 1.
        records_per_prompt: N, the expected size of a subset. With N = 1 every drawn unit has its own prompt,
            and the number of prompts is random with mean M.
        random_source: for tests alone; None is the operating system's generator.
    """

    sampling_rate: Fraction
    subsets: int
    records_per_prompt: int
    random_source: RandomSource | None = None

    def draw(self, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Assign every drawn unit by itself, in the units' order. See `Sampler.draw`."""
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
    """Draws exactly M·N units uniformly without replacement, N for each of M subsets, as the papers did.

    Poisson accounting does not cover it (design note 5.1). It exists to reproduce the papers, by name only.

    Args:
        subsets: M ≥ 1.
        records_per_prompt: N ≥ 1.
        random_source: for tests alone; None is the operating system's generator.
    """

    subsets: int
    records_per_prompt: int
    random_source: RandomSource | None = None

    def draw(self, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Take the first M·N units of a uniform permutation, N at a time. See `Sampler.draw`."""
        order = list(range(len(sizes)))
        drawn: list[tuple[int, int]] = []
        for place in range(self.subsets * self.records_per_prompt):
            other = place + _below(len(order) - place, self.random_source)
            order[place], order[other] = order[other], order[place]
            drawn.append((order[place], _below(sizes[order[place]], self.random_source)))
        size = self.records_per_prompt
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]


def disjoint_parts(units: int, parts: int, random_source: RandomSource | None = None) -> list[list[int]]:
    """Assign each unit by itself, uniformly, to one of P parts.

    The sizes of the parts are random. If a list were cut into equal parts, one more unit would move every
    later one.

    Args:
        units: how many there are; private.
        parts: P ≥ 1.
        random_source: for tests alone; None is the operating system's generator.

    Returns:
        For each part, the indices of its units, ascending.
    """
    members: list[list[int]] = [[] for _ in range(parts)]
    for unit, part in enumerate(_core.uniform_integers(parts, units, random_source).tolist()):
        members[part].append(unit)
    return members


_RULE: Final = "dpfewshot holdout 1"
"""Names the rule below. Another rule needs another name, or units would change parts within an account."""


@dataclass(frozen=True)
class Holdout:
    """Divides units into a part that generates and a part that chooses, by a fixed rule for each unit alone.

    A unit's SHA-256 decides: of its name if there is a unit column, else of its text. So every process and
    every session puts it in the same part (docs/proofs/sampling.md, Lemma 4).

    Args:
        fraction: f in [0, 1), the expected share of units that choose. A float stands for its shortest
            decimal: 0.2 is exactly 1/5. 0 divides nothing: all units generate.

    Raises:
        InvalidPlan: the fraction is outside its range.
    """

    fraction: Fraction

    def __init__(self, fraction: float | Fraction) -> None:
        value = as_float("holdout", fraction)
        if not 0 <= value < 1:  # refuses NaN too
            raise InvalidPlan(f"holdout must be at least 0 and below 1, not {value}")
        exact = fraction if isinstance(fraction, Fraction) else Fraction(repr(value))
        object.__setattr__(self, "fraction", exact)

    @property
    def generating_share(self) -> Fraction:
        """1 - f, the expected share of units that generate."""
        return 1 - self.fraction

    def chooses(self, unit: Unit) -> bool:
        """Whether a unit is held out: its digest, as a number in [0, 1), is below the fraction."""
        first = unit[0]
        key = ["text", first.text] if first.unit is None else ["unit", first.unit]
        digest = hashlib.sha256(json.dumps([_RULE, *key]).encode()).digest()
        return int.from_bytes(digest) * self.fraction.denominator < self.fraction.numerator << 8 * len(digest)

    def generating(self, members: Iterable[Unit]) -> list[Unit]:
        """The units that generate, in order."""
        return [unit for unit in members if not self.chooses(unit)]

    def choosing(self, members: Iterable[Unit]) -> list[Unit]:
        """The units that choose, in order."""
        return [unit for unit in members if self.chooses(unit)]

    def rule(self, records: Records) -> tuple[str, ...]:
        """The public facts that decide a unit's part; none if the fraction is 0.

        Args:
            records: only the names of their columns are read.
        """
        if not self.fraction:
            return ()
        unit = unit_of(records)
        column = ("text", records.text) if unit is None else ("unit", unit)
        return (_RULE, str(self.fraction), *column)


def partition_of_units(task: Task, records: Records, holdout: Holdout) -> Partition:
    """The strata of a task's data set: its labels, and what a holdout keeps for choosing."""
    return Partition(task.name, task.labels or (), records.label, holdout.rule(records))


def _below(bound: int, random_source: RandomSource | None) -> int:
    return 0 if bound == 1 else int(_core.uniform_integers(bound, 1, random_source)[0])


def units_by_label(records: Iterable[Record]) -> dict[str, list[Unit]]:
    """Partition the units by label: every unit belongs to exactly one.

    A unit belongs to the label of most of its records (of equals, the first in alphabetical order), and only
    its records of that label are used. The rule depends on that unit alone, so labels compose in parallel
    (design note 5.4). A record without a unit is a unit of its own.
    """
    members: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units(records):
        counts = Counter(record.label for record in unit)
        label = min(counts, key=lambda name: (-counts[name], name))
        members[label].append(tuple(record for record in unit if record.label == label))
    return dict(members)


def units(records: Iterable[Record]) -> list[Unit]:
    """The units of a data set, each with all of its records, ordered by their first record."""
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
