"""Prompts as plain text and in the model's chat template, for writing and for using: docs/decisions/chat.md.

    python -m bench.chat DATA MODEL.gguf NAME docs/results/raw/chat.jsonl

Certified demonstrations at ε = 1 on one thread, written in either form and used in either form by the model that wrote
them. A line is one set of demonstrations in one form of use; lines that are there already are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import dpfewshot as dpf
from dpfewshot import icl
from dpfewshot.icl.extractor import same_label

BUDGET = dpf.PrivacyBudget(epsilon=1.0, delta=1e-5)
PROMPTS = 60
TOKENS = {"trec": 15, "mit-d": 20}
FILES = {"trec": "trec", "mit-d": "mit_d"}
DIRECTORS = ("steven spielberg", "alfred hitchcock", "quentin tarantino", "martin scorsese")
FORMS = {"plain": False, "chat": True}


@dataclass(frozen=True)
class Line:
    """One set of demonstrations, used in one form."""

    model: str
    task: str
    written: str
    used: str
    repetition: int
    outcomes: str
    calibrated: str
    texts: list[list[str]]
    seconds_writing: float
    seconds_using: float


def written(
    task: dpf.Task, records: Sequence[dpf.Record], backend: dpf.backends.LlamaCpp, *, chat: bool
) -> dpf.Demonstrations:
    """Demonstrations at ε = 1, one of each label."""
    labels = task.labels or DIRECTORS
    with dpf.Synthesizer(
        replace(task, chat=chat),
        records,
        backend,
        budget=BUDGET,
        prompts_per_draw=PROMPTS,
        max_tokens=TOKENS[task.name],
        tokens_per_draw=TOKENS[task.name],
        labels=labels,
        record_token_cap=40,
    ) as synthesizer:
        return synthesizer.generate_all()


def outcomes(
    task: dpf.Task,
    backend: dpf.backends.LlamaCpp,
    shown: Sequence[dpf.Demonstration],
    items: Sequence[dpf.Record],
    *,
    chat: bool,
) -> tuple[str, str]:
    """Which items are labelled right: without calibration, and with contextual calibration."""
    words = replace(icl.prompt_format(task), chat=chat)
    texts, truth = [one.text for one in items], [one.label for one in items]
    if task.labels is None:
        found = icl.Extractor(words, backend, shown, max_tokens=8).predict(texts)
        right = _bits(map(same_label, found, truth))
        return right, right
    classifier = icl.Classifier(words, backend, shown)
    rows = classifier.predict_proba(texts)
    ways = (rows * classifier.content_free, rows)
    bare, calibrated = (
        _bits(task.labels[best] == label for best, label in zip(np.argmax(way, axis=1), truth, strict=True))
        for way in ways
    )
    return bare, calibrated


def _bits(right: object) -> str:
    return "".join("01"[bool(each)] for each in right)  # type: ignore[attr-defined]


def main() -> None:
    """Measures what the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("name")
    parser.add_argument("output", type=Path)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", default=[*TOKENS])
    asked = parser.parse_args()
    there = set()
    if asked.output.exists():
        lines = map(json.loads, asked.output.read_text().splitlines())
        there = {
            tuple(line[key] for key in ("model", "task", "written", "used", "repetition")) for line in lines
        }
    with dpf.backends.LlamaCpp(asked.model, threads=1, weights="file", kept_prompts=75) as backend:
        for repetition in range(asked.repetitions):
            for name in asked.tasks:
                task = dpf.tasks.by_name(name)
                train, test = (
                    dpf.read_records(asked.data / f"{FILES[name]}.{part}.jsonl.gz")
                    for part in ("train", "test")
                )
                for way in (*FORMS, "nothing"):
                    keys = {form: (asked.name, name, way, form, repetition) for form in FORMS}
                    if there.issuperset(keys.values()) or (way == "nothing" and repetition):
                        continue
                    began = time.monotonic()
                    shown: Sequence[dpf.Demonstration] = ()
                    if way != "nothing":
                        shown = list(written(task, train, backend, chat=FORMS[way]))
                    took = time.monotonic() - began
                    for form, chat in FORMS.items():
                        began = time.monotonic()
                        found = outcomes(task, backend, shown, test[: asked.items], chat=chat)
                        texts = [[one.label, one.text] for one in shown]
                        line = Line(
                            *keys[form], *found, texts, round(took, 1), round(time.monotonic() - began, 1)
                        )
                        with asked.output.open("a") as file:
                            file.write(json.dumps(asdict(line)) + "\n")


if __name__ == "__main__":
    main()
