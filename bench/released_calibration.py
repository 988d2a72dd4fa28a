"""What a released calibration is worth: docs/results/raw/released-calibration.json, and the tables made from it.

    python -m bench.released_calibration DATA STORE    # measures
    python -m bench.released_calibration               # prints the tables of docs/decisions/calibration.md

No model runs: test items and held-out records have their answers in the arrays of bench/utility_scores.py. The means are
those of the held-out records. The noise is the product's, for n units that are read. Labels that are not equally
frequent are made so by weights: of records in the mean, and of test items in the accuracy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.utility import MODELS
from bench.utility_choice import Answers
from bench.utility_data import ALL_SETS
from bench.utility_scores import Items, Scores
from dpfewshot import _core
from dpfewshot.account.amounts import NOTHING
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.releases.calibration import GRID, NoisyMean, Weights, integers_of
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parents[1] / "docs/results/raw/released-calibration.json"
EPSILON, DELTA = 0.1, 1e-6
DRAWS = 50
LEAST_ITEMS = 100
UNITS = (1_000, 5_000)
NORMS = (2.0, 4.0, 8.0)
"""R in nats, beside the rule's 2√K."""

Vector = NDArray[np.float64]
Row = dict[str, float]
"""Accuracy in % by calibration."""


class Prompt:
    """One prompt's answers for test items and held-out records, with labels."""

    def __init__(self, answers: Answers, truth: NDArray[np.int64], held_truth: NDArray[np.int64]) -> None:
        self.test, self.truth, self.held_truth = _normalised(answers.test), truth, held_truth
        self.held = np.exp(_normalised(answers.held))
        self.content_free = answers.content_free
        self.labels = answers.test.shape[1]
        self.sigma = calibrate(lambda s: PoissonGaussian(1.0, s, 1), epsilon=EPSILON, delta=DELTA)

    def accuracy(self, bias: Vector | float, frequencies: Vector | None = None) -> float:
        """In %, divided by a bias; with the labels' frequencies, as if the test items had these."""
        right = (self.test - bias).argmax(axis=1) == self.truth
        return 100 * float(np.average(right, weights=_weights(self.truth, frequencies)))

    def noisy(self, mean: Vector, norm: float, units: float) -> Iterator[Vector]:
        """Draws of a mean over so many units, each with a row of this norm at most."""
        release = NoisyMean(Fraction(1), self.sigma, self.labels, NOTHING)
        for _ in range(DRAWS):
            yield mean + _core.rounded_normals(release.scale, self.labels) * norm / GRID / units

    @property
    def rule(self) -> float:
        """R = 2√K, in nats."""
        return NoisyMean(Fraction(1), self.sigma, self.labels, NOTHING).clip

    def logarithms(self, norm: float, frequencies: Vector | None = None) -> Vector:
        """The mean of clipped, centred logarithms, as the product makes it."""
        integers = integers_of(self.held, norm)
        return np.average(integers, axis=0, weights=_weights(self.held_truth, frequencies)) * norm / GRID


def measured(prompt: Prompt) -> Row:
    """Every calibration, with labels as frequent as the data have them."""
    found = {"none": prompt.accuracy(0.0), "batch": prompt.accuracy(prompt.test.mean(axis=0))}
    if prompt.content_free is not None:
        found["contextual"] = prompt.accuracy(prompt.content_free)
    norms = {"rule": prompt.rule, **{f"{norm:g}": norm for norm in NORMS}}
    probabilities = prompt.held.mean(axis=0)
    found["probabilities"] = prompt.accuracy(np.log(probabilities))
    for name, norm in norms.items():
        found[f"R {name}"] = prompt.accuracy(prompt.logarithms(norm))
    for units in UNITS:
        floor = max(prompt.sigma / units, 1e-6)
        found[f"probabilities, {units}"] = fmean(
            prompt.accuracy(np.log(np.maximum(draw, floor)))
            for draw in prompt.noisy(probabilities, 1.0, units)
        )
        for name, norm in norms.items():
            found[f"R {name}, {units}"] = fmean(
                map(prompt.accuracy, prompt.noisy(prompt.logarithms(norm), norm, units))
            )
    return found


def frequencies_of(prompt: Prompt) -> Iterator[tuple[str, Vector]]:
    """Frequencies of labels: the records' own; each label in turn has half of them, or a tenth of an equal share."""
    labels = prompt.labels
    yield "own", np.bincount(prompt.held_truth, minlength=labels) / len(prompt.held_truth)
    for label in range(labels):
        half = np.full(labels, 0.5 / (labels - 1))
        half[label] = 0.5
        yield "half", half
        rare = np.full(labels, (1 - 0.1 / labels) / (labels - 1))
        rare[label] = 0.1 / labels
        yield "rare", rare


def as_released(frequencies: Vector) -> Vector:
    """The product's weights."""
    counts = {str(label): max(1, round(1e6 * share)) for label, share in enumerate(frequencies)}
    weights = Weights.of(counts)
    return np.array([float(weights.by_label[label]) for label in counts])


WEIGHTS: Mapping[str, Callable[[Vector], Vector]] = {
    "alike": np.ones_like,
    "least": lambda frequencies: np.maximum(frequencies.min(), 1e-6) / np.maximum(frequencies, 1e-6),
    "median": as_released,
}
"""The weight of a label's records, at most 1: all 1, by the rarest label, and by the median one."""


def unbalanced(prompt: Prompt, units: int = 1_000) -> dict[str, Row]:
    """By the labels' frequencies: the accuracy of no calibration and of each weighting.

    "…, balanced": on test items whose labels are equally frequent, from the same records.
    """
    rows: dict[str, list[Row]] = {}
    equal = np.full(prompt.labels, 1 / prompt.labels)
    for name, frequencies in frequencies_of(prompt):
        found: dict[str, Row] = {}
        for served, tested in ((name, frequencies), (f"{name}, balanced", equal)):
            found[served] = {"none": prompt.accuracy(0.0, tested)}
        for kind, weight in WEIGHTS.items():
            weighted = frequencies * weight(frequencies)
            mean = prompt.logarithms(prompt.rule, weighted / weighted.sum())
            draws = list(prompt.noisy(mean, prompt.rule, units * float(weighted.sum())))
            for served, tested in ((name, frequencies), (f"{name}, balanced", equal)):
                found[served][kind] = fmean(prompt.accuracy(draw, tested) for draw in draws)
        for served, row in found.items():
            rows.setdefault(served, []).append(row)
    return {served: _mean(found) for served, found in rows.items()}


def _normalised(logprobs: Vector) -> Vector:
    normalised: Vector = logprobs - np.logaddexp.reduce(logprobs, axis=1, keepdims=True)
    return normalised


def _weights(truth: NDArray[np.int64], frequencies: Vector | None) -> Vector | None:
    """A weight for each item, so that its label is as frequent as wanted."""
    if frequencies is None:
        return None
    counts = np.bincount(truth, minlength=len(frequencies))
    weights: Vector = (frequencies / np.maximum(counts, 1))[truth]
    return weights


def _mean(rows: list[Row]) -> Row:
    return {name: round(fmean(row[name] for row in rows), 2) for name in rows[0]}


def prompts(task: str, user: str, data: Path, store: Path) -> Iterator[tuple[str, Prompt]]:
    """Each prompt with its kind: "ours", "instruction" or "none"."""
    items, scores = Items.of(ALL_SETS[task], data), Scores.between(store, user)
    folder = scores.folder / task
    names = (
        {path.name.split("_")[0] for path in folder.glob("*_held-out_00.npy")} if folder.exists() else set()
    )
    for name in sorted(names):
        kind = name.partition("-")[0]
        answers = Answers.of(scores, task, name)
        if answers is None or kind not in ("ours", "instruction", "none"):
            continue
        if min(len(answers.test), len(answers.held)) >= LEAST_ITEMS:
            truths = (items.truth("test", len(answers.test)), items.truth("held-out", len(answers.held)))
            yield kind, Prompt(answers, *truths)


def measure(data: Path, store: Path) -> dict[str, object]:
    """The raw file's content."""
    found: list[dict[str, object]] = []
    for user in MODELS:
        for task, one in ALL_SETS.items():
            by_kind: dict[str, list[Prompt]] = {}
            if one.task.labels is not None:
                for kind, prompt in prompts(task, user, data, store):
                    by_kind.setdefault(kind, []).append(prompt)
            for kind, listed in by_kind.items():
                skewed = [unbalanced(prompt) for prompt in listed]
                row: dict[str, object] = {"user": user, "task": task, "kind": kind, "prompts": len(listed)}
                row["labels"] = listed[0].labels
                row["items"] = [min(len(p.test) for p in listed), max(len(p.test) for p in listed)]
                row["accuracy"] = _mean([measured(prompt) for prompt in listed])
                row["unbalanced"] = {name: _mean([each[name] for each in skewed]) for name in skewed[0]}
                found.append(row)
                print(f"{user} {task} {kind}: {len(listed)} prompts", file=sys.stderr, flush=True)
    sigma = calibrate(lambda s: PoissonGaussian(1.0, s, 1), epsilon=EPSILON, delta=DELTA)
    return {"epsilon": EPSILON, "delta": DELTA, "sigma": sigma, "draws": DRAWS, "rows": found}


def main() -> None:
    """Measures with the data's folder and the store as arguments; without, prints the tables."""
    if len(sys.argv) > 1:
        write_whole(RAW, json.dumps(measure(*map(Path, sys.argv[1:])), indent=1) + "\n")
        return
    print(*tables(json.loads(RAW.read_text(encoding="utf-8"))["rows"]), sep="\n\n")


SHOWN = {
    "none": "uncalibrated",
    "contextual": "contextual",
    "batch": "batch",
    "probabilities, 1000": "probabilities, n = 1,000",
    "R rule, 1000": "**R = 2√K**",
    "R 4, 1000": "R = 4",
    "R 8, 1000": "R = 8",
    "probabilities, 5000": "probabilities, n = 5,000",
    "R rule, 5000": "**R = 2√K**",
}
KINDS = {"ours": "ours", "instruction": "instruction-only", "none": "none"}
FREQUENCIES = ("own", "half", "rare")


def tables(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Accuracy by calibration, and by the weights of labels that are not equally frequent, in Markdown."""
    ordered = sorted(rows, key=_place)
    names = [f"{MODELS[row['user']][0]}, {row['task']} (K = {row['labels']})" for row in ordered]
    kinds = [KINDS[row["kind"]] for row in ordered]
    sizes = [[str(row["prompts"]), " to ".join(map(str, sorted(set(row["items"]))))] for row in ordered]
    whole = [[f"{row['accuracy'][column]:.1f}" for column in SHOWN] for row in ordered]
    columns = [(share, weights) for share in FREQUENCIES for weights in WEIGHTS]
    skewed = [[f"{row['unbalanced'][share][weights]:.1f}" for share, weights in columns] for row in ordered]
    return (
        _table(["", "demonstrations", "prompts", "items", *SHOWN.values()], names, kinds, sizes, whole),
        _table(["", "demonstrations", *map(": ".join, columns)], names, kinds, [[] for _ in ordered], skewed),
    )


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    known: dict[str, Mapping[str, Any]] = {"user": MODELS, "task": ALL_SETS, "kind": KINDS}
    user, task, kind = (list(names).index(row[of]) for of, names in known.items())
    return user, task, kind


def _table(head: list[str], names: list[str], kinds: list[str], *columns: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head)]
    for name, kind, *cells in zip(names, kinds, *columns, strict=True):
        lines.append([name, kind, *(one for row in cells for one in row)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
