"""The packaged model beside a larger one, as writer and as user: docs/decisions/default-model.md.

    python -m bench.default_model DATA OTHER.gguf

One demonstration a label at ε = 4, planned settings for 6,000 tokens of the model a demonstration, 60 test
items: TREC, and the six labels of banking77 with the most records, on which nothing was tuned. The records
are public.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import dpfewshot as dpf
from dpfewshot.icl import Classifier, batch_calibrated

BUDGET = dpf.PrivacyBudget(4.0, 1e-5)
ITEMS, TOKENS, LABELS = 60, 16, 6

Split = tuple[dpf.Task, list[dpf.Record], list[dpf.Record]]


def main() -> None:
    """Print one JSON line for each set of demonstrations and user."""
    data, other = Path(sys.argv[1]), Path(sys.argv[2])
    models = {"SmolLM2-135M": dpf.backends.packaged_model_path(), other.stem: other}
    opened = {
        name: dpf.backends.LlamaCpp(path, context_tokens=768, kept_prompts=60)
        for name, path in models.items()
    }
    for task, records, test in (_trec(data), _banking(data)):
        sets: dict[str, Sequence[dpf.Demonstration]] = {"none": []}
        for name, backend in opened.items():
            sets[f"{name}, instruction-only"] = dpf.instruction_only_demonstrations(
                task, backend, max_tokens=TOKENS
            )
            started = time.perf_counter()
            with dpf.Synthesizer(
                task,
                records,
                backend,
                budget=BUDGET,
                max_tokens=TOKENS,
                settings=dpf.Settings(prompt_token_limit=6_000),
            ) as synthesizer:
                sets[f"{name}, epsilon=4"] = list(synthesizer.generate_all())
            print(json.dumps({"seconds": time.perf_counter() - started, "writer": name, "task": task.name}))
        for written, demonstrations in sets.items():
            print(json.dumps({"written": written, "texts": [one.text for one in demonstrations]}), flush=True)
            for user, backend in opened.items():
                found = _accuracies(task, backend, demonstrations, test)
                print(json.dumps({"task": task.name, "written": written, "user": user, **found}), flush=True)


def _accuracies(
    task: dpf.Task,
    backend: dpf.backends.LlamaCpp,
    demonstrations: Sequence[dpf.Demonstration],
    test: list[dpf.Record],
) -> dict[str, float]:
    """Accuracy of plain and batch-calibrated label probabilities."""
    labels = task.labels or ()
    rows = Classifier(task, backend, demonstrations, calibrated=False).predict_proba(
        [one.text for one in test]
    )
    found = {"plain": rows, "batch-calibrated": batch_calibrated(rows)}
    right = {
        name: sum(labels[int(row.argmax())] == one.label for row, one in zip(each, test, strict=True))
        for name, each in found.items()
    }
    return {name: count / len(test) for name, count in right.items()}


def _trec(data: Path) -> Split:
    test = dpf.read_records(data / "trec.test.jsonl.gz")
    return dpf.tasks.TREC, dpf.read_records(data / "trec.train.jsonl.gz"), test[:ITEMS]


def _banking(data: Path) -> Split:
    records = dpf.read_records(data / "banking77.train.jsonl.gz")
    labels = tuple(label for label, _ in Counter(one.label for one in records).most_common(LABELS))
    task = dpf.Task(
        name="banking77",
        instruction="Classify the questions of a bank's customers by their topic.",
        label_field="Topic",
        text_field="Question",
        labels=labels,
    )
    every = list(_of(labels, dpf.read_records(data / "banking77.test.jsonl.gz")))
    return task, list(_of(labels, records)), every[:: len(every) // ITEMS][:ITEMS]


def _of(labels: tuple[str, ...], records: list[dpf.Record]) -> Iterator[dpf.Record]:
    return (one for one in records if one.label in labels)


if __name__ == "__main__":
    main()
