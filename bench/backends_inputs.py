"""The prompts of bench/backends.py: seeded draws of public data, the same for every way of asking."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.prompts.writer import Body, PromptWriter

SHORT, LONG = 15, 40
"""T, released tokens of a demonstration."""

PROMPTS = 20
"""M, in sections that use a single one."""


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    data: Path
    rounds: int
    threads: int


def loaded(options: Options, kept_prompts: int = 75) -> LlamaCpp:
    """The packaged model in process, as the default loads it."""
    return LlamaCpp(
        packaged_model_path(), context_tokens=256, threads=options.threads, kept_prompts=kept_prompts
    )


@dataclass(frozen=True)
class DataSet:
    """A data set of the bench, and the label that is asked for.

    Attributes:
        name: as it is printed.
        task: its task.
        train: the file of the records, "private" here.
        test: the file of the texts that are released.
        label: one of the task's.
    """

    name: str
    task: dpf.Task
    train: str
    test: str
    label: str


DATA_SETS = (
    DataSet("TREC", dpf.tasks.TREC, "trec.train.jsonl.gz", "trec.test.jsonl.gz", "Location"),
    DataSet("AG News", dpf.tasks.AGNEWS, "agnews.train_subset.jsonl.gz", "agnews.test.jsonl.gz", "World"),
)


class Inputs:
    """One data set as tokens.

    Args:
        folder: the folder with its files.
        backend: the model whose tokens they are.
        tokens: released tokens, at most T.

    Attributes:
        data_set: as given.
        prompts: the pieces of the label's prompts.
        released: tokens of held-out texts. Every way of asking releases them, so that all evaluate
            the same prompts.
    """

    def __init__(self, data_set: DataSet, folder: Path, backend: LlamaCpp, tokens: int) -> None:
        self.data_set = data_set
        writer = PromptWriter(data_set.task, backend, record_token_cap=100)
        self.prompts = writer.for_label(data_set.label)
        self._bodies: list[Body] = [
            writer.body(record)
            for record in dpf.read_records(folder / data_set.train)
            if record.label == data_set.label
        ]
        held_out = (
            backend.tokenize(f" {record.text}")
            for record in dpf.read_records(folder / data_set.test)
            if record.label == data_set.label
        )
        self.released = list(itertools.islice(itertools.chain.from_iterable(held_out), tokens))

    @property
    def population(self) -> int:
        """n, the records of the label."""
        return len(self._bodies)

    def draw(self, number: int, prompts: int, records_per_prompt: int) -> list[list[Body]]:
        """M subsets of N records each, the same for equal numbers: a bench's draw, not a private one."""
        size = records_per_prompt
        drawn = random.Random(number).sample(self._bodies, prompts * size)
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]

    def suffixes(self, subsets: Sequence[Sequence[Body]], released: Sequence[int]) -> list[list[int]]:
        """The rest of each subset's prompt after the prefix, with the released tokens."""
        written = (self.prompts.suffix(subset, list(released)) for subset in subsets)
        return [suffix for suffix in written if suffix is not None]
