"""Runs an evaluation trial by trial: generate demonstrations, use them on the test items, keep the cell."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BackendError, InvalidPlan, InvalidRecords
from dpfewshot.evaluation.conditions import Condition, Request, populations
from dpfewshot.icl import Classifier, Extractor, batch_calibrated
from dpfewshot.icl.extractor import same_label
from dpfewshot.planning.document import MAYBE_NUMBER, MAYBE_TEXT, check
from dpfewshot.releases.scoring import EXTRACTED_TOKENS
from dpfewshot.runtime.files import read_text, write_errors
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import Record

Key: TypeAlias = tuple[str | float | None, ...]
"""What identifies a cell: the values of `_IDENTITY`."""

_IDENTITY: Final = (
    *("task", "model", "writer", "condition", "description"),
    *("epsilon_asked", "shots", "repetition", "items"),
)

_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("task", "model", "writer", "condition", "description", "outcomes"), (str,)),
    **dict.fromkeys(("relation", "uncalibrated", "batch_calibrated"), MAYBE_TEXT),
    **dict.fromkeys(("epsilon_asked", "epsilon", "delta"), MAYBE_NUMBER),
    **dict.fromkeys(("shots", "repetition", "items"), (int,)),
    **dict.fromkeys(("population", "details"), (dict,)),
    "confidential": (bool,),
}


@dataclass(frozen=True)
class Cell:
    """One measurement: one set of demonstrations, used on the test items.

    Attributes:
        model: used the demonstrations.
        writer: wrote them.
        description: the condition's public parameters; they distinguish cells.
        epsilon_asked: the budget's ε; 0 for baselines that read no record, None without privacy.
        epsilon: certified upper bound for all demonstrations together, at most the budget's; None without
            privacy.
        relation: the neighbouring relation of (ε, δ); None without privacy.
        repetition: from 0; each has its own draws, noise and labels.
        outcomes: one character per item, "1" if it was right and "0" if not.
        uncalibrated: the same without calibration; None for extraction.
        batch_calibrated: the same with calibration by the test texts; None for extraction.
        population: n, the number of units of each label, or of "" if labels are free.
        confidential: whether records or test items are private, and so the cell is for the operator alone.
        details: further facts, such as seconds.
    """

    task: str
    model: str
    writer: str
    condition: str
    epsilon_asked: float | None
    epsilon: float | None
    delta: float | None
    relation: str | None
    shots: int
    repetition: int
    items: int
    outcomes: str
    uncalibrated: str | None
    population: Mapping[str, int]
    confidential: bool = True
    description: str = ""
    batch_calibrated: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What identifies the cell."""
        return tuple(getattr(self, name) for name in _IDENTITY)

    def as_dict(self) -> dict[str, Any]:
        """Return the object of its JSON line."""
        return asdict(self) | {"correct": self.outcomes.count("1")}

    @classmethod
    def from_dict(cls, line: object) -> Cell:
        """Read what `as_dict` wrote, or raise `InvalidRecords`. Unless it says so, a cell is confidential."""
        said = {"confidential": True, **line} if isinstance(line, dict) else line
        told = check("a cell", said, _KINDS, InvalidRecords)
        cell = cls(**{one.name: told[one.name] for one in fields(cls)})
        kept = (cell.outcomes, cell.uncalibrated or cell.outcomes, cell.batch_calibrated or cell.outcomes)
        if cell.items < 1 or any(len(one) != cell.items or set(one) - {"0", "1"} for one in kept):
            raise InvalidRecords("a cell has outcomes that do not fit its items")
        return cell


class Results:
    """A file of cells, one line each, appended when it is measured, so that an evaluation can resume.

    Args:
        path: a .jsonl file, created with the first cell. None keeps the cells in memory.

    Raises:
        InvalidRecords: a line is not a cell; the message names it. An incomplete last line is removed, and
            its cell is measured again.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self.cells: list[Cell] = []
        if self._path is not None and self._path.exists():
            self.cells = read_cells(self._path)
            content = self._path.read_bytes()
            if cut_off := content.rpartition(b"\n")[2]:  # the run died while writing
                with write_errors(self._path):
                    os.truncate(self._path, len(content) - len(cut_off))

    def __contains__(self, wanted: Key) -> bool:
        return any(cell.key == wanted for cell in self.cells)

    def add(self, cell: Cell) -> None:
        """Append a cell, and wait until it is on disk; `DPFewShotError` if the file cannot be written."""
        self.cells.append(cell)
        if self._path is None:
            return
        with write_errors(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell.as_dict()) + "\n")  # in ASCII, so that no cut is in a character
            file.flush()
            os.fsync(file.fileno())


def read_cells(path: str | os.PathLike[str]) -> list[Cell]:
    """Read the cells of a results file, without an incomplete last line: an evaluation may be writing it.

    Raises:
        InvalidRecords: the file cannot be read, or a line is not a cell; the message names it.
    """
    *whole, _ = read_text(path, InvalidRecords).split("\n")
    cells = []
    for number, line in enumerate(whole, start=1):
        try:
            cells += [Cell.from_dict(json.loads(line))] if line.strip() else []
        except InvalidRecords as error:
            raise InvalidRecords(f"{path}: line {number}: {error}") from None
        except (ValueError, RecursionError):
            raise InvalidRecords(f"{path}: line {number}: is not a cell of an evaluation") from None
    return cells


@dataclass(frozen=True)
class Trial:
    """A measurement to make; its values are those of the `Cell` that comes of it."""

    condition: Condition
    epsilon: float | None
    shots: int = 4
    repetition: int = 0


@dataclass(frozen=True)
class Experiment:
    """What all trials have in common.

    Args:
        records: private records, or those of a public benchmark.
        test: test items, texts with their labels.
        delta: δ of every budget.
        user: the model that uses the demonstrations; None is the writer.
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

    def identity(self, trial: Trial) -> dict[str, Any]:
        """What identifies the trial's cell, by name. The description holds all public parameters."""
        shown = None if self.labels is None else list(self.labels)
        return {
            "task": self.task.name,
            "model": self.user_name or self.writer_name,
            "writer": self.writer_name,
            "condition": trial.condition.name,
            "description": f"{trial.condition!r}, delta={self.delta!r}, labels={shown!r}",
            "epsilon_asked": trial.epsilon,
            "shots": trial.shots,
            "repetition": trial.repetition,
            "items": len(self.test),
        }

    def key(self, trial: Trial) -> Key:
        """Return the key of the trial's cell."""
        return tuple(map(self.identity(trial).__getitem__, _IDENTITY))


def evaluate(experiment: Experiment, trials: Iterable[Trial], results: Results) -> None:
    """Run each trial whose cell is not in the results, which receive it as soon as it is measured.

    Raises:
        DPFewShotError: a trial fails. Earlier cells are kept.
    """
    for trial in trials:
        if experiment.key(trial) not in results:
            results.add(_measured(experiment, trial))


@redacts_errors(BackendError, "the evaluation")
def _measured(experiment: Experiment, trial: Trial) -> Cell:
    started = time.perf_counter()
    made = trial.condition.demonstrations(experiment.request(trial))
    written = time.perf_counter()
    scored = score(experiment.task, experiment.user or experiment.writer, made, experiment.test)
    used = time.perf_counter()
    spent = made.spent
    return Cell(
        **experiment.identity(trial),
        epsilon=None if spent is None else spent.epsilon,
        delta=None if spent is None else spent.delta,
        relation=made.relation if made.certified else None,
        **asdict(scored),
        population=populations(experiment.task, experiment.records),
        confidential=experiment.confidential,
        details={
            "seconds_writing": round(written - started, 2),
            "seconds_using": round(used - written, 2),
        },
    )


@dataclass(frozen=True)
class Score:
    """The outcome of each item in order. See `Cell`."""

    outcomes: str
    uncalibrated: str | None = None
    batch_calibrated: str | None = None


@redacts_errors(BackendError, "scoring")
def score(
    task: Task, backend: LogprobBackend, demonstrations: Demonstrations, test: Sequence[Record]
) -> Score:
    """Label every test text, or extract its label if the task's are free, and compare with its own label.

    Extracted labels are compared up to case and white space.
    """
    texts = [record.text for record in test]
    if task.labels is None:
        written = Extractor(task, backend, demonstrations, max_tokens=EXTRACTED_TOKENS).predict(texts)
        return Score(_outcomes(map(same_label, written, [record.label for record in test])))
    classifier = Classifier(task, backend, demonstrations)
    calibrated = classifier.predict_proba(texts)
    plain = calibrated * np.exp(classifier.bias)  # undo the division of calibration
    truth = np.array([classifier.labels.index(record.label) for record in test])
    ways = calibrated, plain, batch_calibrated(calibrated)
    return Score(*(_outcomes(probabilities.argmax(axis=1) == truth) for probabilities in ways))


def _outcomes(right: Iterable[bool]) -> str:
    return "".join("1" if one else "0" for one in right)
