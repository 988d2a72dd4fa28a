"""The private units of each stratum, by a rule that looks at each unit alone, and as a draw takes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from dpfewshot.errors import InvalidPlan, InvalidRecords
from dpfewshot.prompts.writer import Body
from dpfewshot.records.checks import check_fields
from dpfewshot.records.units import Integers, UnitSequence, labels_by_row, units, units_by_label
from dpfewshot.tasks import Task
from dpfewshot.values import Record, Relation

_KEPT: Final = 4096
"""Records whose tokens are kept for later draws: at most some 16 MB."""


def planned_labels(task: Task, labels: Sequence[str] | None) -> tuple[str, ...]:
    """The labels to generate: public input, by default the task's."""
    if isinstance(labels, str):
        raise InvalidPlan("labels= is one string, which would be a label for each letter: give a list")
    planned = tuple(labels if labels is not None else task.labels or ())
    if not planned and task.labels is None:
        raise InvalidPlan(f"task {task.name!r} has free labels: pass labels=, as public input")
    if not planned:
        raise InvalidPlan(f"labels= names no label: leave it out for all labels of task {task.name!r}")
    for label in planned:
        task.check_label(label)
    if len(set(planned)) < len(planned):
        raise InvalidPlan("labels= names a label twice: name each once")
    return planned


def units_by_scope(
    task: Task, records: Sequence[Record], labels: Sequence[str]
) -> dict[str | None, UnitSequence]:
    """The private units of each stratum, by its scope: a label or, if labels are free, None for all units."""
    check_records(task, records)
    if task.labels is None:
        return {None: units(records)}
    by_label = units_by_label(records)
    nobody = units([])
    return {label: by_label.get(label, nobody) for label in labels}


def labels_of(scope: str | None, labels: Sequence[str]) -> tuple[str, ...]:
    """Those of the planned labels that a scope's units serve."""
    return tuple(labels) if scope is None else (scope,)


def check_every_label_has_units(task: Task, records: Sequence[Record], relation: Relation) -> None:
    """Refuse records that were filtered by label, where public numbers show it.

    A unit belongs to one of its records' labels. If records of a label are left out beforehand, a unit may
    belong to different labels in different runs and bear the costs of both, but an account counts only the
    greater. Counted populations are public, and so is a count of 0. With `population=`, counts are
    private, and nothing is checked (docs/how-to/records.md). Tasks with free labels are not partitioned.
    """
    if task.labels is None or relation == Relation.ADD_REMOVE:
        return
    present = units_by_label(records)
    absent = [label for label in task.labels if label not in present]
    if absent:
        raise InvalidPlan(
            f"no unit belongs to the label {absent[0]!r} of task {task.name!r}. Pass the records of all "
            "labels, also to generate for some: a unit belongs to one of its records' labels, so that "
            "filtering them first lets one unit bear the costs of several. If it has no records, or only a "
            "few of units that have other labels, too, leave it out of the task, and its records out of the "
            "file, for good; or use a --sequential account"
        )


def check_records(task: Task, records: Sequence[Record]) -> None:
    """Refuse records of other text fields than the task's or, by their number alone, of another label."""
    check_fields(task, records)
    if task.labels is None:
        return
    known = frozenset(task.labels)
    for row, label in labels_by_row(records).items():
        if label not in known:
            raise InvalidRecords(
                f"record {row + 1} has a label that task {task.name!r} does not have; "
                f"it has {', '.join(task.labels)}. If one of them is misspelt, correct it in the task; else "
                "leave out of the file, for good, the records of labels that no plan uses"
            )


class Bodies:
    """The records of units in tokens, read when they are drawn. Private; the repr shows nothing."""

    __slots__ = ("_kept", "_tokens_of", "units")

    def __init__(self, units: UnitSequence, tokens_of: Callable[[Record], Body]) -> None:
        self.units = units
        self._tokens_of = tokens_of
        self._kept: OrderedDict[tuple[int, int], Body] = OrderedDict()  # the last used is the last

    @property
    def sizes(self) -> Integers:
        """The number of records of each unit, for a sampler."""
        return self.units.sizes

    def check(self) -> None:
        """Refuse a changed file of records before a draw is charged."""
        self.units.check()

    def of(self, subsets: Sequence[Sequence[tuple[int, int]]]) -> list[list[Body]]:
        """The bodies of a draw's subsets of records; None for a record that cannot be read or tokenised.

        A record is a pair of a unit and one of its records, both as positions.
        """
        missing = [one for one in chain.from_iterable(subsets) if one not in self._kept]
        for one, record in zip(missing, self.units.take(missing), strict=True):
            self._kept[one] = None if record is None else self._tokens_of(record)
        for one in chain.from_iterable(subsets):
            self._kept.move_to_end(one)
        bodies = [list(map(self._kept.__getitem__, subset)) for subset in subsets]
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return bodies
