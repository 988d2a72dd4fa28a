"""The parts of a data set: which units serve which labels, and what each part has at work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dpfewshot.accounting.accountant import Reservation
from dpfewshot.background import Worker
from dpfewshot.errors import InvalidPlan, InvalidRecords
from dpfewshot.forking import start_afresh_in_children
from dpfewshot.plans import PartPlan
from dpfewshot.prompts import Body, PromptWriter
from dpfewshot.sampling import Source, Unit, disjoint_parts, units, units_by_label
from dpfewshot.tasks import Task
from dpfewshot.values import Record


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
    plan: PartPlan
    parts: int = 1
    source: Source = field(default=None, repr=False)
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
