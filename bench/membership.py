"""Membership inference against 1-shot prompts: private records and synthetic demonstrations.

    python -m bench.membership DATA gemma-3-270m.gguf > docs/results/membership.md

DATA is a folder with trec.train.jsonl.gz and agnews.train_subset.jsonl.gz. Every finished cell is kept in
docs/results/raw/membership.json and not run again; delete the file to start afresh. Without arguments the page is
made from the finished cells alone. One thread; progress goes to standard error.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import dpfewshot as dpf
from dpfewshot.audit.membership import Loss, Trial, membership_inference, trials_of_records
from dpfewshot.backends import LlamaCpp, packaged_model_path
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parent.parent / "docs" / "results" / "raw" / "membership.json"
DELTA = 1e-5
POPULATION = 200
"""Records behind a synthetic demonstration: half of a fair draw of twice as many."""


class Setup(NamedTuple):
    """A task, its file, tokens of a demonstration, tokens of a record in the prompts that make it."""

    task: dpf.Task
    file: str
    max_tokens: int
    record_tokens: int


SETUPS = (
    Setup(dpf.tasks.TREC, "trec.train.jsonl.gz", 8, 25),
    Setup(dpf.tasks.AGNEWS, "agnews.train_subset.jsonl.gz", 8, 30),
)
RECORDS, NO_PRIVACY = "records", "inf"
SETTINGS = (RECORDS, NO_PRIVACY, "1", "4", "8")
TRIALS = {setting: 12 if setting == RECORDS else 8 for setting in SETTINGS}
PROMPTS = 12
CANDIDATES: dict[Loss, int] = {"label": 4, "record": 2}
"""Members, and as many non-members, that each attack scores in a trial; whole records take longest."""


class Split(NamedTuple):
    """Members and non-members of one label, told apart by a fair draw."""

    members: list[dpf.Record]
    non_members: list[dpf.Record]


def splits(records: list[dpf.Record], trials: int) -> Iterator[Split]:
    """One split a trial; labels take turns."""
    by_label: dict[str, list[dpf.Record]] = {}
    for record in records:
        by_label.setdefault(record.label, []).append(record)
    large = [label for label in sorted(by_label) if len(by_label[label]) >= 2 * POPULATION]
    for trial in range(trials):
        drawn = random.Random(trial).sample(by_label[large[trial % len(large)]], 2 * POPULATION)
        yield Split(drawn[:POPULATION], drawn[POPULATION:])


def shown_in(setting: str, setup: Setup, split: Split, backend: LlamaCpp) -> dpf.Demonstration:
    """The demonstration of one trial."""
    if setting == RECORDS:
        return trials_of_records(split.members[:1], split.non_members, each=1)[0].demonstration
    return synthetic(setting, setup, split.members, backend)


def trial_of(loss: Loss, setting: str, shown: dpf.Demonstration, split: Split) -> Trial:
    """One trial of one attack. A record in the prompt is the only member."""
    asked = CANDIDATES[loss]
    inside = split.members[: 1 if setting == RECORDS else asked]
    return Trial(shown, tuple(inside), tuple(split.non_members[:asked]))


def synthetic(setting: str, setup: Setup, members: list[dpf.Record], backend: LlamaCpp) -> dpf.Demonstration:
    """One demonstration of the members: the Gaussian mechanism, one draw of about twelve records."""
    budget = dpf.NO_PRIVACY if setting == NO_PRIVACY else dpf.PrivacyBudget(float(setting), DELTA)
    synthesizer = dpf.Synthesizer(
        setup.task,
        members,
        backend,
        budget=budget,
        labels=[members[0].label],
        mechanism=dpf.mechanisms.Gaussian(),
        prompts_per_draw=PROMPTS,
        max_tokens=setup.max_tokens,
        tokens_per_draw=setup.max_tokens,
        record_token_cap=setup.record_tokens,
    )
    return synthesizer.generate(members[0].label)


def run(models: dict[str, Path], data: Path, cells: dict[str, Any]) -> None:
    """Measures the missing cells."""
    for name, path in models.items():
        if all(
            f"{name} | {setup.task.name} | {setting}" in cells for setup in SETUPS for setting in SETTINGS
        ):
            continue
        # The packaged model's Q4_1 is slow for whole prompts.
        weights = "bf16" if path == packaged_model_path() else None
        with closing(
            LlamaCpp(path, context_tokens=384, kept_prompts=30, threads=1, weights=weights)
        ) as backend:
            for setup in SETUPS:
                records = dpf.read_records(data / setup.file)
                for setting in SETTINGS:
                    key = f"{name} | {setup.task.name} | {setting}"
                    if key not in cells:
                        cells[key] = cell(setting, setup, records, backend)
                        RAW.parent.mkdir(exist_ok=True)
                        write_whole(RAW, json.dumps(cells, indent=1, ensure_ascii=False) + "\n")


def cell(setting: str, setup: Setup, records: list[dpf.Record], backend: LlamaCpp) -> dict[str, Any]:
    """One setting's demonstrations, and every attack's finding."""
    started = time.perf_counter()
    drawn = list(splits(records, TRIALS[setting]))
    shown = [shown_in(setting, setup, split, backend) for split in drawn]
    findings: dict[str, Any] = {}
    for loss in CANDIDATES:
        pairs = zip(shown, drawn, strict=True)
        trials = [trial_of(loss, setting, one, split) for one, split in pairs]
        findings[loss] = membership_inference(setup.task, backend, trials, loss=loss).as_dict()
        print(f"{setup.task.name} {setting} {loss}:", findings[loss]["statement"], file=sys.stderr)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    texts = [] if setting == RECORDS else [f"{one.label}: {one.text}" for one in shown]
    return {"population": POPULATION, "demonstrations": texts, **findings}


def table(cells: dict[str, Any], loss: str) -> Iterator[str]:
    """One row a model, task and setting."""
    yield "| model | task | demonstration | trials | members, non-members asked | AUC | 95 % interval | the most that ε, δ allow |"
    yield "|---|---|---|---|---|---|---|---|"
    for key, found in cells.items():
        model, task, setting = key.split(" | ")
        figure, details = found[loss]["figures"][0], found[loss]["details"]
        shown = {RECORDS: "a private record", NO_PRIVACY: "synthetic, ε = ∞"}.get(
            setting, f"synthetic, ε = {setting}"
        )
        bound = "" if figure["reference"] is None else f"{figure['reference']:.3f}"
        yield (
            f"| {model} | {task} | {shown} | {details['trials']} | {details['members']}, {details['non_members']} "
            f"| {figure['value']:.3f} | {figure['low']:.3f} to {figure['high']:.3f} | {bound} |"
        )


def main(data: str = "", gemma: str = "") -> None:
    """Measures the missing cells if the data are given, and prints the page."""
    cells = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    if data:
        run({"Gemma 3 270M": Path(gemma), "SmolLM2-135M": packaged_model_path()}, Path(data), cells)
    text = (Path(__file__).parent / "membership.md").read_text(encoding="utf-8")
    for loss in CANDIDATES:
        text = text.replace(f"<{loss.upper()}>", "\n".join(table(cells, loss)))
    sys.stdout.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
