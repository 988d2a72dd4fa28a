"""Accuracy in use of the default settings, certified, without a holdout: bench/results/default.jsonl.

    dpfewshot model get qwen-1.5b
    python -m bench.default DATA     # three hours and more on two cores; an interrupted run resumes

Two demonstrations of each label, as in the file that `init --yes` writes; four where labels are free, as in the papers.
Qwen2.5-Coder 1.5B writes them and labels the test texts.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dpfewshot as dpf
from bench.texts import BANK, messages
from bench.utility import DIRECTORS, GENRES
from dpfewshot.baselines import instruction_only_demonstrations
from dpfewshot.evaluation import (
    Experiment,
    NonPrivateSample,
    Request,
    Results,
    Synthetic,
    Trial,
    ZeroShot,
    evaluate,
)
from dpfewshot.prompts.chat import in_chat

DEFAULT = Path(__file__).parent / "results/default.jsonl"
ITEMS = 120
SHOTS, FREE_SHOTS = 2, 4  # of a label; of all if labels are free
MODEL = "Qwen2.5-Coder 1.5B"
NAME, NO_RECORDS = "default", "no records"
"""Of the conditions."""


@dataclass(frozen=True)
class NoRecords:
    """The same model in the same chat template, without any record (ε = 0)."""

    max_tokens: int
    name: str = NO_RECORDS

    def demonstrations(self, request: Request) -> dpf.Demonstrations:
        """The requested ones."""
        made = instruction_only_demonstrations(
            in_chat(request.task, request.backend),
            request.backend,
            [*dict.fromkeys(request.labels)],
            shots=request.shots_per_label,
            max_tokens=self.max_tokens,
        )
        return request.in_order(made)


@dataclass(frozen=True)
class Set:
    """A public data set with its task. If its labels are free, `labels` are generated."""

    task: dpf.Task
    train: str
    test: str
    max_tokens: int
    labels: tuple[str, ...] | None = None

    @property
    def shots(self) -> int:
        """The demonstrations of a set."""
        return FREE_SHOTS if self.task.labels is None else SHOTS * len(self.task.labels)

    def records(self, folder: Path, name: str) -> list[dpf.Record]:
        """The records of one of its files, in an order that says nothing."""
        path = folder / f"{name}.jsonl.gz"
        read = messages(path) if self.task is BANK else [*dpf.read_records(path)]
        return sorted(read, key=lambda record: hashlib.sha256(record.text.encode()).digest())


NEWS = dpf.Task(
    name="agnews",
    instruction="Write a news item: a headline and the first sentence of the article, of the given topic.",
    label_field="Topic",
    text_field="Item",
    labels=dpf.tasks.AGNEWS.labels,
)
ENTRIES = dpf.Task(
    name="dbpedia",
    instruction="Write the first sentence of an encyclopaedia entry, of the given category.",
    label_field="Category",
    text_field="Text",
    labels=dpf.tasks.DBPEDIA.labels,
)
"""As `init` writes them; those of `dpf.tasks` are the papers' tasks."""

SETS = (
    Set(BANK, "banking77.train", "banking77.test", 20),
    Set(dpf.tasks.TREC, "trec.train", "trec.test", 20),
    Set(NEWS, "agnews.train_subset", "agnews.test", 50),
    Set(ENTRIES, "dbpedia.train_subset", "dbpedia.test_subset", 30),
    Set(dpf.tasks.MIT_D, "mit_d.train", "mit_d.test", 30, DIRECTORS),
    Set(dpf.tasks.MIT_G, "mit_g.train", "mit_g.test", 30, GENRES),
)


def trials(data: Set, repetition: int) -> Iterator[Trial]:
    """The conditions of a repetition."""
    default = Synthetic(NAME, None, prompts_per_draw=None, max_tokens=data.max_tokens)
    yield Trial(default, 1.0, data.shots, repetition)
    yield Trial(NoRecords(data.max_tokens), 0.0, data.shots, repetition)
    yield Trial(NonPrivateSample(), None, data.shots, repetition)
    yield Trial(default, 4.0, data.shots, repetition)
    if not repetition:
        yield Trial(ZeroShot(), 0.0, 0)


def main() -> None:
    """Measure the missing cells, a repetition after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--repetitions", type=int, default=2)
    given = parser.parse_args()
    writer, user = (
        dpf.backends.LlamaCpp("qwen-1.5b", kept_prompts=30, context_tokens=tokens) for tokens in (384, 3072)
    )
    results = Results(DEFAULT)
    for repetition in range(given.repetitions):
        for data in SETS:
            one = Experiment(
                task=data.task,
                records=data.records(given.data, data.train),
                test=data.records(given.data, data.test)[:ITEMS],
                writer=writer,
                writer_name=MODEL,
                user=user,
                user_name=MODEL,
                delta=1e-5,
                confidential=False,
                labels=data.labels,
            )
            evaluate(one, trials(data, repetition), results)


if __name__ == "__main__":
    main()
