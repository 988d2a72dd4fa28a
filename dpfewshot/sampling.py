"""Draws of units: Poisson sampling, independent assignment to subsets, and the division by a holdout.

Every unit of the population is drawn independently with exactly the same probability
(docs/proofs/sampling.md, Lemma 5). Every drawn unit goes to one of M subsets, uniformly and independently.
A sample is never sliced by position: one more record would shift all later ones.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final, Protocol

import numpy as np

from dpfewshot import _core
from dpfewshot.account.scopes import Partition
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.records.units import LABEL_RULE, Integers, Unit, UnitSequence
from dpfewshot.runtime.redaction import none_if_it_fails
from dpfewshot.tasks import Task
from dpfewshot.values import Records, StoredRecords, as_float, columns_of, unit_of

Sizes = Sequence[int] | Integers
"""The number of records of each unit, at least 1."""


def drawable(rate: Fraction) -> Fraction:
    """This sampling rate, or the next smaller multiple of 2⁻⁶³ if it is too fine for `PoissonSampler`."""
    return rate if rate.denominator < 1 << 64 else Fraction(int(rate * (1 << 63)), 1 << 63)


class Sampler(Protocol):
    """Draws units and groups them into prompts."""

    def draw(self, sizes: Sizes) -> list[list[tuple[int, int]]]:
        """The non-empty subsets of one draw, each as pairs of indices: a unit, and one of its records."""


@dataclass(frozen=True)
class PoissonSampler:
    """Draws each unit independently with probability q and assigns it to one of M subsets.

    Args:
        sampling_rate: q in (0, 1], exact, with a denominator below 2⁶⁴ (see `drawable`).
        subsets: M ≥ 1.
        records_per_prompt: N, the expected size of a subset. With N = 1 every drawn unit has its own prompt,
            and the number of prompts is random with mean M.
        random_source: for tests alone; None is the operating system's generator.
    """

    sampling_rate: Fraction
    subsets: int
    records_per_prompt: int
    random_source: RandomSource | None = None

    def draw(self, sizes: Sizes) -> list[list[tuple[int, int]]]:
        """Assign every drawn unit by itself, in the units' order. See `Sampler.draw`."""
        rate = self.sampling_rate.as_integer_ratio()
        drawn, assigned = _core.poisson_subsets(len(sizes), *rate, self.subsets, self.random_source)
        subsets: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for unit, subset in zip(drawn.tolist(), assigned.tolist(), strict=True):
            prompt = unit if self.records_per_prompt == 1 else subset
            subsets[prompt].append((unit, _below(int(sizes[unit]), self.random_source)))
        return [subsets[prompt] for prompt in sorted(subsets)]


@dataclass(frozen=True)
class FixedSizeSampler:
    """Draws exactly M·N units uniformly without replacement, N for each of M subsets, as the papers did.

    Poisson accounting does not cover it (docs/proofs/sampling.md). It reproduces the papers, by name only.
    """

    subsets: int
    records_per_prompt: int
    random_source: RandomSource | None = None

    def draw(self, sizes: Sizes) -> list[list[tuple[int, int]]]:
        """Take the first M·N units of a uniform permutation, N at a time. See `Sampler.draw`."""
        moved: dict[int, int] = {}  # the unit at each place of the permutation where that is not its own
        drawn: list[tuple[int, int]] = []
        for place in range(self.subsets * self.records_per_prompt):
            other = place + _below(len(sizes) - place, self.random_source)
            unit = moved.get(other, other)
            moved[other] = moved.get(place, place)
            drawn.append((unit, _below(int(sizes[unit]), self.random_source)))
        size = self.records_per_prompt
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]


_HOLDOUT_RULE: Final = "dpfewshot holdout 1"
_PARTS_RULE: Final = "dpfewshot parts 1"
"""Name the rules below. Another rule needs another name, or units would change parts within an account."""


def _place(unit: Unit, rule: str, places: int) -> int | None:
    """Which of equally likely places a unit has under a rule; None if its first record cannot be read.

    Its SHA-256 decides: of its name if there is a unit column, else of its text. So every process and every
    session puts a unit in the same part (docs/proofs/sampling.md, Lemmas 3 and 4).
    """
    first = unit[0]
    if first is None:
        return None
    key = ["text", first.text] if first.unit is None else ["unit", first.unit]
    digest = hashlib.sha256(json.dumps([rule, *key]).encode()).digest()
    return int.from_bytes(digest) * places >> 8 * len(digest)


def _deciding_column(records: Records | StoredRecords) -> tuple[str, str]:
    """What `_place` reads of a unit, and of which column: public.

    Refuses masked texts with `InvalidPlan`: another version of what masks them would change the parts.
    """
    unit = unit_of(records)
    if unit is None and columns_of(records).masked:
        raise InvalidPlan(
            "a holdout, and disjoint parts, divide records without units by their texts, which are masked: "
            "name a unit column"
        )
    return ("text", columns_of(records).text) if unit is None else ("unit", unit)


def disjoint_parts(units: UnitSequence, parts: int) -> list[UnitSequence]:
    """Divide the units of a stratum into P parts by a fixed rule for each unit alone.

    The sizes of the parts are private. If a list were cut into equal parts, one more unit would move every
    later one. A unit whose first record cannot be read is a null, in no part.
    """
    if parts == 1:
        return [units]
    found = (none_if_it_fails(partial(_place, (first,), _PARTS_RULE, parts)) for first in units.firsts())
    numbers = np.fromiter((-1 if number is None else number for number in found), np.int64)
    return [units.chosen(np.flatnonzero(numbers == part)) for part in range(parts)]


def part_names(records: Records | StoredRecords, parts: int) -> tuple[str, ...]:
    """How scopes name the P parts of a stratum: by their number and the hash of the rule; one has no name."""
    if parts == 1:
        return ("",)
    rule = hashlib.sha256(json.dumps([_PARTS_RULE, parts, *_deciding_column(records)]).encode()).hexdigest()
    return tuple(f", part {part + 1} of {parts} by {rule}" for part in range(parts))


@dataclass(frozen=True)
class Holdout:
    """Divides units into a part that generates and a part that chooses, by a fixed rule for each unit alone.

    See `_place` (docs/proofs/sampling.md, Lemma 4). A unit whose first record cannot be read is a null, in
    neither part.

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

    def chooses(self, unit: Unit) -> bool | None:
        """Whether a unit is held out; None if its first record cannot be read."""
        place = _place(unit, _HOLDOUT_RULE, self.fraction.denominator)
        return None if place is None else place < self.fraction.numerator

    def generating(self, members: UnitSequence) -> UnitSequence:
        """The units that generate, in order."""
        return self._of_part(members, chooses=False) if self.fraction else members

    def choosing(self, members: UnitSequence) -> UnitSequence:
        """The units that choose, in order."""
        return self._of_part(members, chooses=True)

    def _of_part(self, members: UnitSequence, *, chooses: bool) -> UnitSequence:
        """The units of one part: it reads the first record of each. A null is in neither."""
        parts = (none_if_it_fails(partial(self.chooses, (first,))) for first in members.firsts())
        return members.chosen(np.flatnonzero(np.fromiter((part is chooses for part in parts), np.bool_)))

    def rule(self, records: Records | StoredRecords) -> tuple[str, ...]:
        """The public facts that decide a unit's part; none if the fraction is 0."""
        if not self.fraction:
            return ()
        return (_HOLDOUT_RULE, str(self.fraction), *_deciding_column(records))


def partition_of_units(
    task: Task, records: Records | StoredRecords, holdout: Holdout, parts: int = 1
) -> Partition:
    """The strata of a task's data set: its labels, what a holdout keeps for choosing, and disjoint parts."""
    return Partition(
        task.name,
        task.labels or (),
        columns_of(records).label,
        holdout.rule(records),
        part_names(records, parts),
        label_rule=LABEL_RULE if task.labels and unit_of(records) is not None else "",
    )


def _below(bound: int, random_source: RandomSource | None) -> int:
    return 0 if bound == 1 else int(_core.uniform_integers(bound, 1, random_source)[0])
