"""Runs an evaluation trial by trial: generate demonstrations, use them on the test items, keep the cell."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError, InvalidPlan, InvalidRecords
from dpfewshot.evaluation.cells import Cell, Key, Results
from dpfewshot.evaluation.conditions import Condition, Request, populations
from dpfewshot.evaluation.scoring import score
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Record


@dataclass(frozen=True)
class Trial:
    """A measurement to make.

    Attributes:
        condition: the source of the demonstrations.
        epsilon: the budget's ε; 0 for a baseline that reads no record, None without privacy.
        shots: the number of demonstrations; 0 for zero-shot.
        repetition: from 0; each has its own labels, draws and noise.
    """

    condition: Condition
    epsilon: float | None
    shots: int = 4
    repetition: int = 0


@dataclass(frozen=True)
class Experiment:
    """What all trials have in common.

    Args:
        task: the demonstrations' task.
        records: private records, or those of a public benchmark.
        test: test items, texts with their labels.
        writer: the language model that writes demonstrations.
        writer_name: its name in results.
        delta: δ of every budget.
        user: the model that uses the demonstrations; None is the writer.
        user_name: its name in results.
        labels: public labels to generate; by default, the task's own.
        confidential: whether records or test items are private.

    Raises:
        InvalidPlan: labels are free, and none is given.
        InvalidRecords: there is no test item, or one has a label that the task does not have.
    """

    task: Task
    records: Sequence[Record] = field(repr=False)
    test: Sequence[Record] = field(repr=False)
    writer: LogprobBackend
    writer_name: str
    delta: float
    user: LogprobBackend | None = None
    user_name: str | None = None
    labels: tuple[str, ...] | None = None
    confidential: bool = True

    def __post_init__(self) -> None:
        if not (self.labels or self.task.labels):
            raise InvalidPlan(f"task {self.task.name!r} has free labels: say which to generate")
        if not self.test:
            raise InvalidRecords("there is no test item to measure on")
        known = self.task.labels
        if known is not None and any(item.label not in known for item in self.test):
            raise InvalidRecords(
                f"a test item has a label that task {self.task.name!r} does not have: its labels are "
                f"{', '.join(known)}"
            )

    @property
    def model(self) -> str:
        """The name of the model that uses the demonstrations."""
        return self.user_name or self.writer_name

    def request(self, trial: Trial) -> Request:
        """Return a trial's request to its condition."""
        return Request(
            task=self.task,
            records=self.records,
            backend=self.writer,
            labels=self.labels_of(trial),
            epsilon=trial.epsilon,
            delta=self.delta,
            repetition=trial.repetition,
        )

    def labels_of(self, trial: Trial) -> tuple[str, ...]:
        """Return a trial's labels in order, the same for every condition of a repetition.

        No label occurs twice before every label occurs once. A hash of repetition and label orders them:
        public, and different in each repetition.
        """

        def place(label: str) -> bytes:
            return hashlib.sha256(f"{trial.repetition}\n{label}".encode()).digest()

        order = sorted(self.labels or self.task.labels or (), key=place)
        return tuple(order[shot % len(order)] for shot in range(trial.shots))

    def description_of(self, trial: Trial) -> str:
        """Write out all public parameters of a trial's demonstrations."""
        shown = None if self.labels is None else list(self.labels)
        return f"{trial.condition!r}, delta={self.delta!r}, labels={shown!r}"

    def key(self, trial: Trial) -> Key:
        """Return the key of the trial's cell."""
        return (
            self.task.name,
            self.model,
            self.writer_name,
            trial.condition.name,
            self.description_of(trial),
            trial.epsilon,
            trial.shots,
            trial.repetition,
            len(self.test),
        )


def evaluate(
    experiment: Experiment,
    trials: Iterable[Trial],
    results: Results,
    *,
    on_cell: Callable[[Cell], None] | None = None,
) -> None:
    """Run each trial whose cell is not in the results.

    Args:
        experiment: data and models.
        trials: in the order to run.
        results: receives each cell as soon as it is measured.
        on_cell: is called with each new cell.

    Raises:
        DPFewShotError: a trial fails. Earlier cells are kept.
    """
    for trial in trials:
        if experiment.key(trial) in results:
            continue
        cell = _carried_out(experiment, trial)
        results.add(cell)
        if on_cell is not None:
            on_cell(cell)


@redacts_errors(BackendError, "the evaluation")
def _carried_out(experiment: Experiment, trial: Trial) -> Cell:
    started = time.perf_counter()
    made = trial.condition.demonstrations(experiment.request(trial))
    written = time.perf_counter()
    scored = score(experiment.task, experiment.user or experiment.writer, made, experiment.test)
    used = time.perf_counter()
    spent = made.spent
    return Cell(
        task=experiment.task.name,
        model=experiment.model,
        writer=experiment.writer_name,
        condition=trial.condition.name,
        description=experiment.description_of(trial),
        epsilon_asked=trial.epsilon,
        epsilon=None if spent is None else spent.epsilon,
        delta=None if spent is None else spent.delta,
        relation=made.relation if made.certified else None,
        shots=trial.shots,
        repetition=trial.repetition,
        items=len(experiment.test),
        outcomes=scored.outcomes,
        uncalibrated=scored.uncalibrated,
        batch_calibrated=scored.batch_calibrated,
        population=populations(experiment.task, experiment.records),
        confidential=experiment.confidential,
        details={
            "seconds_writing": round(written - started, 2),
            "seconds_using": round(used - written, 2),
        },
    )
