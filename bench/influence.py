"""ICLInf: how much one demonstration moves an answer, and private prediction's measured loss beside its claim.

    python -m bench.influence DATA gemma-3-270m.gguf > docs/results/influence.md

DATA is a folder with trec.train.jsonl.gz and trec.test.jsonl.gz. Every finished cell is kept in
docs/results/raw/influence.json and not run again; delete the file to start afresh. Without arguments the page is
made from the finished cells alone. One thread; progress goes to standard error.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dpfewshot as dpf
from dpfewshot.audit.influence import Answers, influence_finding, influences
from dpfewshot.audit.private_prediction import prediction_losses, private_prediction_audit
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.planning.solve import solve
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parent.parent / "docs" / "results" / "raw" / "influence.json"
TASK = dpf.tasks.TREC
SHOTS: dict[int, tuple[Answers, ...]] = {
    1: ("labels", "calibrated labels", "vocabulary"),
    2: ("labels", "calibrated labels", "vocabulary"),
    4: ("labels", "calibrated labels", "vocabulary"),
    8: ("labels",),
}
PROMPTS, TEXTS = 3, 5
DELTA = 1e-5
TABLE_TOKENS, TOKENS = 2000, 8
"""Tokens that the paper's tables account for, and tokens of a run here."""

# ε of the table, and two of c, τ, s: ICLInf, Tables 4 to 6, of which every other row
SETTINGS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    *(("4: τ", e, {"clip": 10.0, "prompts": 50}) for e in (1, 10, 100)),
    *(("5: c", e, {"temperature": 2.0, "prompts": 50}) for e in (1, 10, 100)),
    *(("6: s", e, {"clip": 10.0, "temperature": 2.0}) for e in (10, 50, 100)),
)
LABEL = "Description"


def measured_influence(backend: LlamaCpp, data: Path, shots: int, over: Answers) -> dict[str, Any]:
    """Influence in random prompts of private records, each asked about its own texts; the same for every model."""
    train = dpf.read_records(data / "trec.train.jsonl.gz")
    test = dpf.read_records(data / "trec.test.jsonl.gz")
    measured = []
    for prompt in range(PROMPTS):
        draws = random.Random(prompt)
        shown = [as_demonstration(record) for record in draws.sample(train, max(SHOTS))][:shots]
        texts = [record.text for record in draws.sample(test, TEXTS)]
        measured.append(influences(TASK, backend, shown, texts, over=over))
    return influence_finding(measured, over=over).as_dict()


def as_demonstration(record: dpf.Record) -> dpf.Demonstration:
    """A demonstration that is a private record, unchanged."""
    return dpf.Demonstration(
        text=record.text,
        label=record.label,
        token_count=0,
        certified=False,
        spent=None,
        relation="add-remove",
        mechanism="non-private-sample",
    )


def measured_loss(backend: LlamaCpp, data: Path, epsilon: float, fixed: dict[str, Any]) -> dict[str, Any]:
    """One run of one batch of s records, at the setting that meets ε over the table's tokens."""
    setting = solve(epsilon=epsilon, delta=DELTA, tokens=TABLE_TOKENS, **fixed)
    records = [r for r in dpf.read_records(data / "trec.train.jsonl.gz") if r.label == LABEL]
    batch = random.Random(0).sample(records, setting.prompts)
    losses = prediction_losses(
        TASK, batch, backend, LABEL, setting, max_tokens=TOKENS, top_k=100, record_token_cap=30
    )
    return private_prediction_audit([losses], setting, delta=DELTA).as_dict()


def cells(data: Path) -> Iterator[tuple[str, Callable[[LlamaCpp], dict[str, Any]]]]:
    """Name and measurement of every cell of one model."""
    for shots, kinds in SHOTS.items():
        for over in kinds:
            yield (
                f"influence | {shots} | {over}",
                functools.partial(measured_influence, data=data, shots=shots, over=over),
            )
    for table, epsilon, fixed in SETTINGS:
        yield (
            f"loss | {table} | {epsilon:g}",
            functools.partial(measured_loss, data=data, epsilon=epsilon, fixed=fixed),
        )


def run(models: dict[str, Path], data: Path, found: dict[str, Any]) -> None:
    """Measures the missing cells."""
    for name, path in models.items():
        if all(f"{name} | {cell}" in found for cell, _ in cells(data)):
            continue
        # The packaged model's Q4_1 is slow for whole prompts.
        weights = "bf16" if path == packaged_model_path() else None
        with closing(
            LlamaCpp(path, context_tokens=320, kept_prompts=60, threads=1, weights=weights)
        ) as backend:
            for cell, measure in cells(data):
                key = f"{name} | {cell}"
                if key in found:
                    continue
                started = time.perf_counter()
                found[key] = measure(backend)
                print(
                    f"{key}: {time.perf_counter() - started:.0f} s", found[key]["statement"], file=sys.stderr
                )
                RAW.parent.mkdir(exist_ok=True)
                write_whole(RAW, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def influence_table(found: dict[str, Any]) -> Iterator[str]:
    """One row a model, number of shots and kind of answers."""
    yield "| model | shots | answers | mean influence | 95 % interval | largest | mean by position, first to last |"
    yield "|---|---|---|---|---|---|---|"
    for key, finding in found.items():
        model, kind, shots, over = key.split(" | ")
        if kind != "influence":
            continue
        mean, largest, *positions = finding["figures"]
        by_position = ", ".join(f"{one['value']:.2f}" for one in positions)
        yield (
            f"| {model} | {shots} | {over} | {mean['value']:.2f} | {mean['low']:.2f} to {mean['high']:.2f} "
            f"| {largest['value']:.2f} | {by_position} |"
        )


def loss_table(found: dict[str, Any]) -> Iterator[str]:
    """One row a model and setting."""
    yield (
        f"| model | table: solved for | ε of {TABLE_TOKENS} tokens | c | τ | s | tokens run | loss of a token | claim, 2c/(sτ) "
        "| loss of the run | claim, ε of the run | verdict |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for key, finding in found.items():
        model, kind, table, epsilon = key.split(" | ")
        if kind != "loss":
            continue
        token, total = finding["figures"]
        d = finding["details"]
        yield (
            f"| {model} | {table} | {epsilon} | {d['clip']:.4g} | {d['temperature']:.4g} | {d['prompts']} | {d['tokens']} "
            f"| {token['value']:.4f} | {token['reference']:.4f} | {total['value']:.4f} | {total['reference']:.4f} "
            f"| {finding['verdict']} |"
        )


def main(data: str = "", gemma: str = "") -> None:
    """Measures the missing cells if the data are given, and prints the page."""
    found = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    if data:
        run({"Gemma 3 270M": Path(gemma), "SmolLM2-135M": packaged_model_path()}, Path(data), found)
    text = (Path(__file__).parent / "influence.md").read_text(encoding="utf-8")
    tables = {"<INFLUENCE>": influence_table, "<LOSS>": loss_table}
    for place, table in tables.items():
        text = text.replace(place, "\n".join(table(found)))
    sys.stdout.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
