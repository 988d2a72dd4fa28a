"""The parts of a data set: which units serve which labels, and what each part has at work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dpfewshot.budget.reservation import Reservation
from dpfewshot.errors import InvalidPlan, InvalidRecords
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.generation.cancellation import Worker
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.prompts.writer import Body, PromptWriter
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.sampling import Unit, disjoint_parts, units, units_by_label
from dpfewshot.tasks import Task
from dpfewshot.values import Record, Relation


@dataclass(frozen=True)
class Share:
    """The units that serve some labels.

    Attributes:
        scope: the label whose units they are, or None where labels are free and all units serve.
        labels: the labels that are generated from them.
        units: private.
    """

    scope: str | None
    labels: tuple[str, ...]
    units: tuple[Unit, ...] = field(repr=False)


@dataclass(eq=False, slots=True)
class _Written:
    """The records in tokens, where no one who shows attributes shows them.

    Attributes:
        bodies: private: for each of the disjoint parts, for each unit, its records.
    """

    bodies: list[list[list[Body]]] = field(repr=False)


@dataclass(eq=False)
class Part:
    """A share with its plan, its records in tokens once they are needed, and what it reserved.

    A forked child reserves for itself: the parent goes on with the blocks that it reserved.
    """

    share: Share
    plan: StratumPlan
    parts: int = 1
    source: RandomSource | None = field(default=None, repr=False)
    reservation: Reservation | None = None
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    worker: Worker = field(default_factory=Worker, repr=False)
    _written: _Written | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock."""
        self.lock = threading.RLock()
        self.reservation = None
        self.worker.after_fork()

    def bodies(self, writer: PromptWriter, part: int) -> list[list[Body]]:
        """For each unit of one of the disjoint parts, its records in tokens.

        The units are put in parts when they are first needed, and stay there.
        """
        if self._written is None:
            written = [[writer.body(record) for record in unit] for unit in self.share.units]
            if self.parts == 1:
                self._written = _Written([written])
            else:
                members = disjoint_parts(len(written), self.parts, self.source)
                self._written = _Written([[written[unit] for unit in each] for each in members])
        return self._written.bodies[part]


def divide(task: Task, records: Sequence[Record], labels: Sequence[str] | None) -> list[Share]:
    """Who serves which of the labels to generate.

    Args:
        task: with its own labels, units are parted by label; with free labels all units serve all.
        records: private.
        labels: the labels to generate, public input; None for the task's own.

    Raises:
        InvalidRecords: a record's label is not the task's.
        InvalidTask: a label to generate is not the task's.
        InvalidPlan: no label to generate, or one twice.
    """
    _check_labels(task, records)
    planned = tuple(labels if labels is not None else task.labels or ())
    if not planned or len(set(planned)) < len(planned):
        raise InvalidPlan(f"task {task.name!r} has free labels: pass labels=, each once, as public input")
    if task.labels is None:
        return [Share(None, planned, tuple(units(records)))]
    for label in planned:
        task.check_label(label)
    by_label = units_by_label(records)
    return [Share(label, (label,), tuple(by_label.get(label, ()))) for label in planned]


def check_every_label_has_units(task: Task, records: Sequence[Record], relation: str) -> None:
    """Refuse records that were filtered by label, where that can be seen from public numbers.

    A unit belongs to the label of most of its records. Where records of a label were left out beforehand, a
    unit may belong to another label than in the next run, and bear the costs of both, of which an account
    counts only the greater. Where populations are counted, the counts are public; so is one of 0. With
    `population=` they are private, and nothing is looked at (docs/how-to/records.md).

    Args:
        task: with its own labels, or free ones, which no plan is parted by.
        records: private, with units.
        relation: the neighbouring relation.

    Raises:
        InvalidPlan: a label of the task has no unit.
    """
    if task.labels is None or relation == Relation.ADD_REMOVE:
        return
    there = units_by_label(records)
    absent = [label for label in task.labels if label not in there]
    if absent:
        raise InvalidPlan(
            f"no unit belongs to the label {absent[0]!r} of task {task.name!r}. Give the records of all "
            "labels, also to generate for some: a unit belongs to the label of most of its records, so that "
            "filtering them first lets one unit bear the costs of several labels. If there are none of that "
            "label, leave it out of the task, or use a --sequential account"
        )


def _check_labels(task: Task, records: Sequence[Record]) -> None:
    if task.labels is None:
        return
    known = frozenset(task.labels)
    for number, record in enumerate(records, start=1):
        if record.label not in known:
            raise InvalidRecords(
                f"record {number} has a label that task {task.name!r} does not have; "
                f"it has {', '.join(task.labels)}"
            )
