"""Keeps what each prompt answers for each item: `bench/utility_choice.py` then needs no model.

    python -m bench.utility_scores DATA STORE [--user qwen] [--task NAME ...] [--repetitions 3] [--items 400]

An array a candidate and hundred items: the labels' log-probabilities without calibration, float32, shape
(items, labels), or 0 and 1 for extraction. Files that are there are not made again, so an interrupted run resumes, and
a longer one adds to it. Order: a hundred items of every candidate of a repetition, then the next hundred.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dpfewshot as dpf
from bench.batched import Batched
from bench.utility import backend
from bench.utility_data import ALL_SETS, DataSet
from bench.utility_pool import Candidate, Writer, compared, held_out, pool
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.evaluation import score
from dpfewshot.icl import Classifier

CHUNK = 100
"""Items of a file."""

CONTENT_FREE = "content-free"
"""The divisor of contextual calibration, shape (1, labels): log-probabilities."""


@dataclass(frozen=True)
class Job:
    """A chunk of items to label by one prompt."""

    task: str
    candidate: Candidate
    split: str
    chunk: int


@dataclass(frozen=True)
class Items:
    """The records of a task, by their use."""

    data: DataSet
    writing: Sequence[dpf.Record]
    splits: dict[str, Sequence[dpf.Record]]

    @classmethod
    def of(cls, data: DataSet, folder: Path) -> Items:
        """Read from the data sets' folder."""
        train, test = data.records(folder)
        writing, choosing = held_out(train)
        return cls(data, writing, {"test": test, "held-out": choosing})

    def chunk(self, job: Job) -> Sequence[dpf.Record]:
        """A job's items."""
        return self.splits[job.split][job.chunk * CHUNK : (job.chunk + 1) * CHUNK]

    def truth(self, split: str, count: int) -> NDArray[np.int64]:
        """The place of each item's label, shape (count,); zeros where labels are free."""
        labels = self.data.task.labels
        first = self.splits[split][:count]
        return np.array([0 if labels is None else labels.index(one.label) for one in first], dtype=np.int64)


@dataclass(frozen=True)
class Scores:
    """The folder of kept arrays of one user model and one writer."""

    folder: Path

    @classmethod
    def between(cls, store: Path, user: str, writer: str = "gemma") -> Scores:
        """Those of one model with the demonstrations of another."""
        return cls(store / "scores" / f"{user}-of-{writer}")

    def path(self, task: str, candidate: str, split: str, chunk: int | None = None) -> Path:
        """An array's file."""
        number = "" if chunk is None else f"_{chunk:02d}"
        return self.folder / task / f"{candidate}_{split}{number}.npy"

    def add(self, path: Path, answers: NDArray[np.float32]) -> None:
        """Write an array whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, answers)
        part.replace(path)

    def of(self, task: str, candidate: str, split: str) -> NDArray[np.float32] | None:
        """The answers of the chunks from the first without a gap; None if there is none."""
        rows: list[NDArray[np.float32]] = []
        while (path := self.path(task, candidate, split, len(rows))).exists():
            rows.append(np.load(path))
        return np.concatenate(rows) if rows else None


def jobs(tasks: Sequence[str], repetitions: int, items: int, held: int) -> Iterator[Job]:
    """Every chunk of every candidate, in the order to run."""
    for chunk in range(0, max(items, held), 2 * CHUNK):
        for repetition in range(repetitions):
            for task in tasks:
                data = ALL_SETS[task]
                for place in (chunk // CHUNK, chunk // CHUNK + 1):
                    for candidate in pool(data, repetition):
                        if place < items // CHUNK:
                            yield Job(task, candidate, "test", place)
                        if place < held // CHUNK:
                            yield Job(task, candidate, "held-out", place)
                    for candidate in compared(repetition):
                        if candidate.source.name == "real" and place < items // CHUNK:  # type: ignore[union-attr]
                            yield Job(task, candidate, "test", place)


def answered(
    data: DataSet, model: Batched, made: Demonstrations, items: Sequence[dpf.Record]
) -> NDArray[np.float32]:
    """Log-probabilities of the labels without calibration, or right and wrong of extraction."""
    if data.task.labels is None:
        return np.array([[float(one)] for one in score(data.task, model, made, items).outcomes], np.float32)
    classifier = Classifier(data.task, model, made, calibrated=False)
    found = classifier.predict_proba([item.text for item in items])
    return np.asarray(np.log(np.maximum(found, np.finfo(np.float32).tiny)), dtype=np.float32)


def content_free(data: DataSet, model: Batched, made: Demonstrations) -> NDArray[np.float32]:
    """The divisor of contextual calibration."""
    return np.asarray(np.log(Classifier(data.task, model, made).content_free), dtype=np.float32)[None]


def run(job: Job, items: Items, writer: Writer, model: Batched, scores: Scores) -> None:
    """Makes a job's array, unless it is there."""
    path = scores.path(job.task, job.candidate.name, job.split, job.chunk)
    texts = items.chunk(job)
    if path.exists() or not texts:
        return
    started = time.perf_counter(), time.process_time()
    made = writer.demonstrations(items.data, items.writing, job.candidate)
    written = time.perf_counter()
    bias = scores.path(job.task, job.candidate.name, CONTENT_FREE)
    if items.data.task.labels is not None and not bias.exists():
        scores.add(bias, content_free(items.data, model, made))
    scores.add(path, answered(items.data, model, made, texts))
    print(
        f"{job.task} {job.candidate.name} {job.split} {job.chunk}: wrote {written - started[0]:.0f} s, "
        f"scored {time.perf_counter() - written:.0f} s, processor {time.process_time() - started[1]:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    """Makes the missing arrays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--user", default="gemma")
    parser.add_argument("--task", choices=ALL_SETS, action="append")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    arguments = parser.parse_args()
    tasks = arguments.task or list(ALL_SETS)
    items = {task: Items.of(ALL_SETS[task], arguments.data) for task in tasks}
    model = backend(arguments.user, arguments.threads, arguments.context)
    source = model if arguments.user == "gemma" else backend("gemma", arguments.threads, arguments.context)
    writer = Writer(source, "gemma", arguments.store / "sets" / "gemma")
    scores = Scores.between(arguments.store, arguments.user)
    for job in jobs(tasks, arguments.repetitions, arguments.items, arguments.held_out):
        run(job, items[job.task], writer, model, scores)


if __name__ == "__main__":
    main()
