"""The parts of bench/scale.py without a model's work: labels, vocabulary, records; and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dpfewshot as dpf
from bench.backends_memory import largest_resident_set
from bench.records import write
from dpfewshot.backends.llama_cpp.streams import LogSoftmax
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.mechanisms import Gaussian

LABELS = (10, 32, 100, 316, 1000)
OF_A_LABEL = 100
VOCABULARIES = (2_621, 8_000, 26_214, 49_152, 151_936, 262_144)
RECORDS = (10_000, 100_000, 1_000_000, 10_000_000)
TOKENS, PROMPTS = 4, 20


class Instant:
    """Answers at once with one fixed distribution; each row takes the log-softmax of an in-process backend."""

    batch_invariant = True
    end_token_ids = frozenset({0})

    def __init__(self, vocabulary_size: int = 1000) -> None:
        self.vocabulary_size = vocabulary_size
        self._logits = np.linspace(-8, 8, vocabulary_size, dtype=np.float32)
        self._softmax = LogSoftmax(vocabulary_size)

    def tokenize(self, text: str) -> list[int]:
        """A token a word."""
        return [1 + hash(word) % (self.vocabulary_size - 1) for word in text.split()]

    def detokenize(self, tokens: Tokens) -> str:
        """A word a token."""
        return "".join(f" word{token}" for token in tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """The same for each prompt."""
        columns = slice(None) if support is None else np.asarray(support)
        rows = [self._softmax(self._logits, columns) for _ in prompts]
        return np.asarray(rows, dtype=np.float32)


def own() -> dict[str, Any]:
    """Labels, with a budget in memory and in SQLite, and the vocabulary."""
    from bench.scale import series

    setup = f"{OF_A_LABEL} records a label, M = {PROMPTS}, T = R = {TOKENS}, no model"
    return {
        "labels": series("labels", f"{setup}, budget in memory", LABELS, partial(of_labels, durable=False)),
        "labels, SQLite": series(
            "labels", f"{setup}, ledger in SQLite", LABELS[:4], partial(of_labels, durable=True), rounds=2
        ),
        "vocabulary": series(
            "V",
            f"M = {PROMPTS}, a token on one draw, with the log-softmax of each row",
            VOCABULARIES,
            of_a_token,
        ),
    }


def of_labels(labels: int, *, durable: bool) -> float:
    """Seconds from records to all demonstrations, one a label."""
    names = tuple(f"label {number}" for number in range(labels))
    task = dpf.Task("tickets", "Write a ticket.", "Kind", "Ticket", names)
    records = [dpf.Record(f"ticket number {i}", name) for name in names for i in range(OF_A_LABEL)]
    with tempfile.TemporaryDirectory() as folder:
        ledger: dict[str, Any] = {
            "ledger": f"sqlite:///{folder}/budget.db",
            "dataset": "tickets",
            "create": True,
        }
        started = time.process_time()
        with dpf.Synthesizer(
            task, records, Instant(), budget=dpf.PrivacyBudget(4, 1e-5), mechanism=Gaussian(), prompts_per_draw=PROMPTS,
            max_tokens=TOKENS, tokens_per_draw=TOKENS, **(ledger if durable else {}),
        ) as made:  # fmt: skip
            made.generate_all()
        return time.process_time() - started


def of_a_token(vocabulary_size: int) -> float:
    """Seconds for a token, the mean of 20."""
    records = [dpf.Record(f"ticket number {i}", "one") for i in range(OF_A_LABEL)]
    task = dpf.Task("tickets", "Write a ticket.", "Kind", "Ticket", ("one",))
    with dpf.Synthesizer(
        task, records, Instant(vocabulary_size), budget=dpf.PrivacyBudget(4, 1e-5), mechanism=Gaussian(), prompts_per_draw=PROMPTS,
        max_tokens=20, tokens_per_draw=20, shots_per_label=2,
    ) as made:  # fmt: skip
        made.generate("one")
        started = time.process_time()
        tokens = made.generate("one").token_count
        return (time.process_time() - started) / tokens


def records() -> dict[str, Any]:
    """An index of n records: seconds to index and to open again, peak memory, milliseconds of a draw."""
    found: dict[int, dict[str, Any]] = {}
    for number in RECORDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tickets.jsonl")
            write(path, number)
            measured = f"from bench.records import measure; measure(Path({str(path)!r}), None)"
            on_processor = "import time; from pathlib import Path; time.perf_counter = time.process_time"
            command = [sys.executable, "-c", f"{on_processor}; {measured}"]
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            found[number] = json.loads(answer.stdout)
            print(number, found[number], flush=True)
    setup = "made-up tickets of 50 labels in JSONL, no unit column"

    def one(name: str, unit: str) -> dict[str, Any]:
        points = [[number, [each[name]]] for number, each in found.items() if each[name] > 0]
        return {"variable": "n", "unit": unit, "setup": setup, "points": points}

    return {
        "index": one("seconds to index", "s"),
        "open index": one("seconds to open with the index", "s"),
        "group": one("seconds to group by label", "s"),
        "memory of n": one("MB at most", "MB"),
        "draw": one("ms of a draw, median", "ms"),
    }


def memory() -> dict[str, Any]:
    """The peak memory of a process with the packaged model, by the prompts that it keeps."""
    from bench.scale import series

    def peak(kept: int) -> float:
        command = [sys.executable, "-c", f"from bench.scale_own import keep; keep({kept})"]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
        return float(answer.stdout)

    setup = "the packaged model, 256 tokens a prompt, after one draw of M = kept_prompts and two answers"
    return {"memory of M": series("kept_prompts", setup, (1, 15, 45, 100), peak, unit="MB", rounds=1)}


def keep(kept: int) -> None:
    """Load the model, keep so many prompts, and print the peak in MB."""
    path = dpf.backends.packaged_model_path()
    with dpf.backends.LlamaCpp(path, context_tokens=256, kept_prompts=kept, threads=1) as backend:
        with_block = backend.open_block((), [backend.tokenize("Where is Perth ?")] * kept, 2)
        with_block.next_token_logprobs((1,))
        with_block.append(1)
        with_block.next_token_logprobs((1,))
    print(1024 * largest_resident_set())
