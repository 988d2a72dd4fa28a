"""The units of a data set, by rules that look at each unit alone. A unit's records are read when it is."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.values import READ_AT_ONCE, Record, StoredRecords

Unit = tuple[Record | None, ...]
"""The records of one unit: whenever the unit is drawn, so is one of them. None is one that cannot be read."""

Integers: TypeAlias = NDArray[np.integer]

LABEL_RULE: Final = "dpfewshot label 1"
"""Names the rule by which a unit belongs to a label. Another needs another name, which accounts record."""


class UnitSequence(Sequence[Unit]):
    """Units as positions of their records. Private; the repr shows nothing.

    A record that cannot be read is None, wherever it is read: a null, which keeps its place in its unit. An
    error would say that it was sampled.

    Args:
        rows: the positions of the units' records, unit by unit.
        starts: where each unit's positions begin in `rows`, and where the last ones end; None if each
            position is a unit.

    Attributes:
        sizes: the number of records of each unit, at least 1.
    """

    __slots__ = ("_records", "_rows", "_starts", "sizes")

    def __init__(self, records: Sequence[Record], rows: Integers, starts: Integers | None = None) -> None:
        self._records = records
        self._rows = rows
        self._starts: Integers | None = None if starts is None else starts.astype(rows.dtype)
        ones = np.broadcast_to(np.int8(1), len(rows))  # in no memory
        self.sizes: Integers = ones if self._starts is None else np.diff(self._starts)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy holds these units' records alone. Records that stay in their file go as their index."""
        if isinstance(self._records, StoredRecords):
            return UnitSequence, (self._records, self._rows, self._starts)
        own = [self._records[row] for row in self._rows.tolist()]
        return UnitSequence, (own, positions(len(own)), self._starts)

    def __len__(self) -> int:
        return len(self._rows) if self._starts is None else len(self._starts) - 1

    def __getitem__(self, unit: int) -> Unit:  # type: ignore[override]  # no slices: `chosen` takes positions
        first, size = self._first(range(len(self))[unit]), int(self.sizes[unit])
        return tuple(self._read(self._rows[first : first + size].tolist()))

    @property
    def named(self) -> bool:
        """Whether any record names its unit."""
        if isinstance(self._records, StoredRecords):
            return self._records.unit_rows is not None
        return any(self._records[row].unit is not None for row in self._rows.tolist())

    def chosen(self, units: Integers) -> UnitSequence:
        """Those at these positions, ascending."""
        if self._starts is None:
            return UnitSequence(self._records, self._rows[units])
        places, starts = _joined(self._starts[units], self.sizes[units])
        return UnitSequence(self._records, self._rows[places], starts)

    def firsts(self) -> Iterator[Record | None]:
        """The first record of each unit, in turn."""
        rows = self._rows if self._starts is None else self._rows[self._starts[:-1]]
        for start in range(0, len(rows), READ_AT_ONCE):
            yield from self._read(rows[start : start + READ_AT_ONCE].tolist())

    def records(self) -> list[Record | None]:
        """All records, unit by unit; refused as by `check`."""
        return self._read(self._rows.tolist())

    def take(self, drawn: Iterable[tuple[int, int]]) -> list[Record | None]:
        """Read single records: pairs of a unit and one of its records, both as positions."""
        return self._read([int(self._rows[self._first(unit) + record]) for unit, record in drawn])

    def check(self) -> None:
        """Refuse records whose file changed since it was indexed, whatever is drawn from it."""
        if isinstance(self._records, StoredRecords):
            self._records.check()

    def _first(self, unit: int) -> int:
        return unit if self._starts is None else int(self._starts[unit])

    def _read(self, rows: Sequence[int]) -> list[Record | None]:
        """The only place that reads private records for a release. It raises for none of them."""
        if isinstance(self._records, StoredRecords):
            return self._records.take(rows)
        return [self._records[row] for row in rows]


def each_a_unit(records: Sequence[Record]) -> UnitSequence:
    """Every record as a unit of its own, whomever it belongs to."""
    return UnitSequence(records, positions(len(records)))


def units(records: Iterable[Record]) -> UnitSequence:
    """The units of a data set, each with all of its records, ordered by their first record.

    A record without a unit is a unit of its own.
    """
    held = _held(records)
    unit_rows = _unit_rows(held)
    if unit_rows is None or not len(held):
        return each_a_unit(held)
    order = np.argsort(unit_rows, kind="stable").astype(unit_rows.dtype)
    starts = np.flatnonzero(_changes(unit_rows[order]))
    return UnitSequence(held, order, np.append(starts, len(order)))


def units_by_label(records: Iterable[Record]) -> dict[str, UnitSequence]:
    """Partition the units by label: every unit belongs to exactly one.

    A unit with records of several labels belongs to one of these, each as likely: SHA-256 of the label and
    its name decides. Only its records of that label are used. The rule depends on that unit alone, so labels
    compose in parallel (docs/proofs/sampling.md). A record without a unit is a unit of its own. Labels
    without units are left out, and the others in alphabetical order.
    """
    held = _held(records)
    if not len(held):
        return {}
    firsts = labels_by_row(held)
    ordered = sorted(firsts, key=firsts.__getitem__)
    ranks = positions(len(held))
    ranks[ordered] = np.arange(len(ordered))
    ranks = ranks[_label_rows(held)]  # each label's place in the alphabet
    unit_rows = _unit_rows(held)
    if unit_rows is None:
        order, ends = np.argsort(ranks, kind="stable").astype(ranks.dtype), _ends(ranks, len(ordered))
        parts = [UnitSequence(held, order[start:end]) for start, end in itertools.pairwise(ends)]
    else:
        parts = _of_one_label(held, [firsts[row] for row in ordered], ranks, unit_rows)
    return {firsts[row]: part for row, part in zip(ordered, parts, strict=True) if len(part)}


def labels_by_row(records: Sequence[Record]) -> dict[int, str]:
    """The labels, each by the position of the first record that has it."""
    if isinstance(records, StoredRecords):
        return dict(records.labels)
    return {row: records[row].label for row in first_rows(_label_rows(records))}


def first_rows(rows: Integers) -> list[int]:
    """The positions that stand for themselves: of the first record with each label, or unit."""
    found: list[int] = np.flatnonzero(rows == np.arange(len(rows))).tolist()
    return found


def first_equal(values: NDArray[Any]) -> Integers:
    """For each value the position of the first equal one."""
    order = np.argsort(values, kind="stable").astype(positions(len(values)).dtype)
    starts = np.where(_changes(values[order]), positions(len(order)), 0)
    firsts = np.empty_like(order)
    firsts[order] = order[np.maximum.accumulate(starts)]
    return firsts


def _of_one_label(
    records: Sequence[Record], labels: Sequence[str], ranks: Integers, unit_rows: Integers
) -> list[UnitSequence]:
    """The units of each label. A record's rank is the place of its label among the labels."""
    order = np.lexsort((ranks, unit_rows)).astype(ranks.dtype)  # unit by unit, in it label by label
    changed = _changes(unit_rows[order])
    runs = np.flatnonzero(changed | _changes(ranks[order]))  # a run: the records of one unit with one label
    lengths, label_of_run = np.diff(np.append(runs, len(order))), ranks[order[runs]]
    starts = np.append(np.flatnonzero(changed[runs]), len(runs))  # of each unit's runs
    taken = starts[:-1].copy()
    several = np.flatnonzero(np.diff(starts) > 1)
    prefixes = [hashlib.sha256(json.dumps([LABEL_RULE, label]).encode()) for label in labels]
    names = _unit_names(records, unit_rows[order[runs[taken[several]]]])
    for unit, name in zip(several.tolist(), names, strict=True):
        own = range(starts[unit], starts[unit + 1])
        taken[unit] = min(own, key=lambda run: _digest(prefixes[label_of_run[run]], name))
    taken = taken[np.argsort(label_of_run[taken], kind="stable")]
    parts = []
    for start, end in itertools.pairwise(_ends(label_of_run[taken], len(labels))):
        of_label = taken[start:end]
        places, begun = _joined(runs[of_label], lengths[of_label])
        parts.append(UnitSequence(records, order[places], begun))
    return parts


def _digest(prefix: hashlib._Hash, name: str) -> bytes:
    """By which a unit chooses among its labels: the least."""
    found = prefix.copy()
    found.update(name.encode())
    return found.digest()


def _unit_names(records: Sequence[Record], rows: Integers) -> list[str]:
    """The names of the units of some records, all of which have one."""
    if isinstance(records, StoredRecords):
        return records.unit_names(rows)
    return [records[row].unit or "" for row in rows.tolist()]


def _joined(starts: Integers, lengths: Integers) -> tuple[Integers, Integers]:
    """The positions of several ranges, one after another, and where each range begins among them."""
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
    return places, np.append(0, ends)


def _changes(values: Integers) -> NDArray[np.bool_]:
    """Where a value differs from the one before; the first does."""
    return np.concatenate(([True], values[1:] != values[:-1]))


def _ends(values: Integers, kinds: int) -> Integers:
    """Where the values 0, 1, ... begin once they are sorted, and where the last ends."""
    return np.append(0, np.cumsum(np.bincount(values, minlength=kinds)))


def _held(records: Iterable[Record]) -> Sequence[Record]:
    return records if isinstance(records, Sequence) else list(records)


def _label_rows(records: Sequence[Record]) -> Integers:
    if isinstance(records, StoredRecords):
        return records.label_rows
    return _first_rows(record.label for record in records)


def _unit_rows(records: Sequence[Record]) -> Integers | None:
    if isinstance(records, StoredRecords):
        return records.unit_rows
    if all(record.unit is None for record in records):
        return None
    return _first_rows(record.unit for record in records)


def _first_rows(values: Iterable[str | None]) -> Integers:
    """For each value the position of the first equal one; None equals nothing."""
    seen: dict[str, int] = {}
    found = (row if value is None else seen.setdefault(value, row) for row, value in enumerate(values))
    return np.fromiter(found, dtype=np.int64)


def positions(count: int) -> Integers:
    """0..count-1, in as few bytes as hold them."""
    return np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
