"""How much noise a writer's text bears: docs/results/readability.md.

    python -m bench.readability BANKING77.train.jsonl.gz WRITER.gguf READER.gguf >> cells.jsonl
    python -m bench.readability_page cells.jsonl > docs/results/readability.md

Another model, the reader, scores every text: nats a token after the task's field name, without records. Text
that a person can read scores about as well as what the writer writes without noise; noise adds nats. The
records are public.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from dpfewshot.mechanisms import Gaussian, Mechanism, PublicCentred
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets

PROMPTS, TOKENS = 24, 16
EPSILONS = (None, 16.0, 8.0, 4.0, 2.0, 1.0)
MECHANISMS: tuple[Mechanism, ...] = (Gaussian(), PublicCentred())
LARGEST_LABELS = 4


def main() -> None:
    """Write one JSON line for each text."""
    banking, writer, reader = sys.argv[1:]
    name = Path(writer).stem if writer != "packaged" else "SmolLM2-135M"
    with (
        dpf.backends.LlamaCpp(reader, context_tokens=256, kept_prompts=0) as judge,
        dpf.backends.LlamaCpp(
            dpf.backends.packaged_model_path() if writer == "packaged" else writer,
            context_tokens=256,
            kept_prompts=45,
        ) as model,
    ):
        for task, records in (_tickets(), _banking(banking)):
            for cell in _cells(task, records, model):
                score = _nats(judge, task, cell["text"])
                print(json.dumps({"writer": name, "task": task.name, **cell, "nats": score}), flush=True)


def _tickets() -> tuple[dpf.Task, list[dpf.Record]]:
    return SUPPORT_TICKETS, list(support_tickets())


def _banking(path: str) -> tuple[dpf.Task, list[dpf.Record]]:
    """The labels with the most records."""
    records = dpf.read_records(path)
    labels = tuple(label for label, _ in Counter(one.label for one in records).most_common(LARGEST_LABELS))
    task = dpf.Task(
        name="banking77",
        instruction="Given a topic, write a question that a bank's customer asks about it.",
        label_field="Topic",
        text_field="Question",
        labels=labels,
    )
    return task, [one for one in records if one.label in labels]


def _cells(
    task: dpf.Task, records: list[dpf.Record], model: dpf.backends.LlamaCpp
) -> Iterator[dict[str, Any]]:
    for record in records[:: len(records) // 8]:
        yield {"condition": "record", "noise": None, "text": record.text}
    for one in dpf.instruction_only_demonstrations(task, model, max_tokens=TOKENS):
        yield {"condition": "instruction-only", "noise": None, "text": one.text}
    for epsilon in EPSILONS:
        for mechanism in MECHANISMS[: 1 if epsilon is None else None]:
            synthesizer = dpf.Synthesizer(
                task,
                records,
                model,
                budget=dpf.NO_PRIVACY if epsilon is None else dpf.PrivacyBudget(epsilon, 1e-5),
                mechanism=mechanism,
                prompts_per_token=PROMPTS,
                max_tokens=TOKENS,
                resample_every=TOKENS,
            )
            for one in synthesizer.generate_all():
                noise = synthesizer.plan.stratum_of(one.label).noise_on_mean
                yield {"condition": mechanism.name, "noise": noise, "text": one.text}


def _nats(judge: dpf.backends.LlamaCpp, task: dpf.Task, text: str) -> float:
    """The reader's mean negative log-probability of the text's tokens."""
    head, tokens = judge.tokenize(f"{task.text_field}:"), judge.tokenize(f" {text}")
    prompts = [[*head, *tokens[:end]] for end in range(len(tokens))]
    rows = judge.next_token_logprobs(prompts)
    return -float(sum(row[token] for row, token in zip(rows, tokens, strict=True))) / len(tokens)


if __name__ == "__main__":
    main()
