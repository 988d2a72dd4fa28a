"""Demonstrations of certified runs beside the stand-ins of bench/utility.py, and ours from fewer records.

    python -m bench.certified DATA STORE MODEL.gguf [--task NAME ...] [--repetitions 1]
    python -m bench.certified DATA STORE MODEL.gguf --task agnews --records 300

A certified run evaluates each prompt by itself and says `certified=True`. Everything else is as in bench/utility.py: the
plan, the first test items, and the model that uses the demonstrations. Cells are added to docs/results/raw/utility.jsonl.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import dpfewshot as dpf
from bench.batched import Batched
from bench.utility import DELTA, ITEMS, MODELS, OURS, RAW, backend, show
from bench.utility_data import DATA_SETS, DataSet
from bench.utility_settings import Stored, WithExamples
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.evaluation import Condition, Experiment, Results, Synthetic, Trial, evaluate

TASKS = ("trec", "mit-d", "agnews")
CERTIFIED = "certified"
WRITER = f"{MODELS['gemma'][0]}, {CERTIFIED}"
"""The writer's name in cells of certified runs: the same weights, through llama.cpp."""


@dataclass(frozen=True)
class Run:
    """The writer of demonstrations, and the records that it may read.

    Attributes:
        records: how many of the task's, the first ones; None is all.
    """

    writer: LogprobBackend
    certified: bool
    records: int | None

    @property
    def name(self) -> str:
        """The condition's name in results."""
        kind = CERTIFIED if self.certified else f"{self.records} records"
        return f"{OURS.name}, {kind}"

    def condition(self, data: DataSet, store: Path) -> Condition:
        """Ours, as bench/utility.py has it."""
        size = (data.our_prompts, 1, data.our_tokens or data.max_tokens)
        plain = replace(Synthetic(self.name, OURS, *size), allow_batch_variance=not self.certified)
        told = WithExamples(plain, data.examples) if data.task.labels is None else plain
        return Stored(told, store)

    def experiment(self, data: DataSet, folder: Path, user: Batched) -> Experiment:
        """The task's data and models."""
        train, test = data.records(folder)
        return Experiment(
            task=data.task,
            records=train[: self.records],
            test=test[:ITEMS],
            writer=self.writer,
            writer_name=WRITER if self.certified else MODELS["gemma"][0],
            delta=DELTA,
            user=user,
            user_name=MODELS["gemma"][0],
            labels=data.labels,
            confidential=False,  # public benchmarks
        )


def main() -> None:
    """Measures the missing cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("model", help="a GGUF file of the writer's weights")
    parser.add_argument("--task", choices=DATA_SETS, action="append")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--records", type=int)
    parser.add_argument("--raw", type=Path, default=RAW)
    arguments = parser.parse_args()
    arguments.store.mkdir(parents=True, exist_ok=True)
    user = backend("gemma", 1, 1024)
    certified = arguments.records is None
    writer = dpf.backends.LlamaCpp(arguments.model, context_tokens=512) if certified else user
    run = Run(writer, certified, arguments.records)
    results = Results(arguments.raw)
    for repetition in range(arguments.repetitions):
        for name in arguments.task or TASKS:
            data = DATA_SETS[name]
            trial = Trial(run.condition(data, arguments.store), 1.0, repetition=repetition)
            evaluate(run.experiment(data, arguments.data, user), [trial], results, on_cell=show)


if __name__ == "__main__":
    main()
