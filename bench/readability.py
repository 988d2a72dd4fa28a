"""How much noise a writer's text bears: docs/results/readability.md.

    python -m bench.readability DATA WRITER.gguf READER.gguf CELLS.jsonl
    python -m bench.readability_page CELLS.jsonl > docs/results/readability.md

Another model, the reader, scores every text: nats a token after the task's field name, without records. Text
that a person can read scores about as well as what the writer writes without noise; noise adds nats. The
records are public. A second run continues the first.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from dpfewshot.mechanisms import Gaussian, Mechanism, PublicCentred, SoftmaxChoice
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets

PROMPTS, TOKENS = 24, 16
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
MECHANISMS: dict[str, Mechanism] = {
    each.name: each for each in (Gaussian(), PublicCentred(), SoftmaxChoice())
}
LARGEST_LABELS = 4


def main() -> None:
    """Append one JSON line for each text to the cells."""
    data, writer, reader, output = sys.argv[1:]
    path = dpf.backends.packaged_model_path() if writer == "packaged" else Path(writer)
    cells = Path(output)
    done = {_key(json.loads(line)) for line in cells.read_text().splitlines()} if cells.exists() else set()
    with (
        dpf.backends.LlamaCpp(reader, context_tokens=256, kept_prompts=0) as judge,
        dpf.backends.LlamaCpp(path, context_tokens=256, kept_prompts=45) as model,
        cells.open("a", encoding="utf-8") as file,
    ):
        for task, records in (_banking(f"{data}/banking77.train.jsonl.gz"), _tickets()):
            for condition in _conditions():
                cell = {"writer": path.stem, "task": task.name, **condition}
                if _key(cell) in done:
                    continue
                lines = [
                    json.dumps(cell | {"noise": noise, "text": text, "nats": _nats(judge, task, text)})
                    for noise, text in _texts(task, records, model, condition)
                ]
                print("\n".join(lines), file=file, flush=True)


def _key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("writer", "task", "condition", "epsilon"))


def _conditions() -> Iterator[dict[str, Any]]:
    yield {"condition": "record", "epsilon": None}
    yield {"condition": "instruction-only", "epsilon": None}
    yield {"condition": "gaussian", "epsilon": None}
    for epsilon in EPSILONS:
        yield from ({"condition": name, "epsilon": epsilon} for name in MECHANISMS)


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


def _texts(
    task: dpf.Task, records: list[dpf.Record], model: dpf.backends.LlamaCpp, condition: dict[str, Any]
) -> Iterator[tuple[float | None, str]]:
    """Texts of one condition, each with the noise on its mean probabilities."""
    match condition:
        case {"condition": "record"}:
            yield from ((None, record.text) for record in records[:: len(records) // 8])
        case {"condition": "instruction-only"}:
            made = dpf.instruction_only_demonstrations(task, model, max_tokens=TOKENS)
            yield from ((None, one.text) for one in made)
        case {"condition": name, "epsilon": epsilon}:
            synthesizer = dpf.Synthesizer(
                task,
                records,
                model,
                budget=dpf.NO_PRIVACY if epsilon is None else dpf.PrivacyBudget(epsilon, 1e-5),
                mechanism=MECHANISMS[name],
                prompts_per_draw=PROMPTS,
                max_tokens=TOKENS,
                tokens_per_draw=TOKENS,
            )
            for one in synthesizer.generate_all():
                yield synthesizer.plan.stratum_of(one.label).noise_on_mean, one.text


def _nats(judge: dpf.backends.LlamaCpp, task: dpf.Task, text: str) -> float:
    """The reader's mean negative log-probability of the text's tokens."""
    head, tokens = judge.tokenize(f"{task.text_field}:"), judge.tokenize(f" {text}")
    prompts = [[*head, *tokens[:end]] for end in range(len(tokens))]
    rows = judge.next_token_logprobs(prompts)
    return -float(sum(row[token] for row, token in zip(rows, tokens, strict=True))) / len(tokens)


if __name__ == "__main__":
    main()
