"""Chooses among the prompts of bench/utility_scores.py, and calibrates the choice: docs/results/raw/choice.jsonl.

    python -m bench.utility_choice DATA STORE

No model runs: every outcome comes from the kept arrays, so a longer measurement is one more call. A line holds one
repetition of one task and user: the outcome of every test item by prompt and calibration, and what is chosen in draws
with the real noise. Lines of kind "cross-fit" choose on test items of docs/results/raw/utility.jsonl instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.choosing import Chosen, Outcomes, chosen, cross_fit, released_mean
from bench.utility import MODELS
from bench.utility import RAW as CELLS
from bench.utility_data import ALL_SETS
from bench.utility_pool import EPSILON, INSTRUCTION, MOST_REPETITIONS, compared, free, pool
from bench.utility_scores import CONTENT_FREE, Items, Scores
from bench.utility_tables import NOTHING_READ, OURS, SHOTS
from dpfewshot.evaluation import Cell, Results
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parents[1] / "docs/results/raw/choice.jsonl"
CALIBRATION_EPSILON = 0.5
"""Of a released calibration; the choice before it has the rest of `EPSILON`."""

SINGLE: tuple[str, ...] = ("none", "contextual")
"""Calibrations for a service that labels one text at a time; "batch" is for texts that are labelled together."""

ByCalibration: TypeAlias = dict[str, dict[str, Outcomes]]
"""Outcomes by prompt and calibration."""


@dataclass(frozen=True)
class Line:
    """One repetition of one task and user, as stored.

    Attributes:
        kind: "held-out" or "cross-fit".
        population: the number of held-out records, of which the first `held_out` were scored.
        outcomes: by prompt and calibration, one character a test item.
        chosen: by what is served: "single" texts or texts "together".
        held: accuracy on the held-out records that were scored, by prompt and calibration.
        released: for each test item, in how many draws the chosen prompt is right with a released calibration.
    """

    kind: str
    task: str
    user: str
    repetition: int
    items: int
    held_out: int
    population: int
    epsilon: float
    outcomes: Mapping[str, Mapping[str, str]]
    chosen: Mapping[str, Chosen]
    held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    released: Sequence[int] | None = None

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Line:
        """Read a stored line."""
        return cls(**{**line, "chosen": {name: Chosen(**one) for name, one in line["chosen"].items()}})


@dataclass(frozen=True)
class Answers:
    """What a prompt answers: log-probabilities, shape (items, labels), or right and wrong, shape (items, 1)."""

    test: NDArray[np.float64]
    held: NDArray[np.float64]
    content_free: NDArray[np.float64] | None

    @classmethod
    def of(cls, scores: Scores, task: str, name: str) -> Answers | None:
        """A prompt's kept arrays; None if there are no test items."""
        test, held = (scores.of(task, name, split) for split in ("test", "held-out"))
        if test is None:
            return None
        bias = scores.path(task, name, CONTENT_FREE)
        return cls(
            test.astype(np.float64),
            np.zeros((0, test.shape[1])) if held is None else held.astype(np.float64),
            np.load(bias)[0].astype(np.float64) if bias.exists() else None,
        )

    def first(self, test: int, held: int) -> Answers:
        """Those of the first items."""
        return Answers(self.test[:test], self.held[:held], self.content_free)

    def right(self, split: str, truth: NDArray[np.int64]) -> dict[str, Outcomes]:
        """Outcomes by calibration. That of a batch is by the test texts, without their labels."""
        answers = self.test if split == "test" else self.held
        if self.content_free is None:
            return {"none": answers[:, 0] > 0}
        biases = {"none": 0.0, "contextual": self.content_free, "batch": self.test.mean(axis=0)}
        return {name: (answers - bias).argmax(axis=1) == truth for name, bias in biases.items()}


def options(right: ByCalibration, names: Sequence[str], calibrations: Sequence[str]) -> dict[str, Outcomes]:
    """The prompts with each calibration, to choose from."""
    return {f"{name} {kind}": right[name][kind] for kind in calibrations for name in names}


def measured(
    task: str, user: str, repetition: int, scores: Scores, items: Items, *, most: int | None = None
) -> Line | None:
    """The line of one pool, on at most so many items of each kind; None while it lacks a prompt."""
    names = [each.name for each in pool(items.data, repetition)]
    found = {name: Answers.of(scores, task, name) for name in names}
    answers = {name: one for name, one in found.items() if one is not None and len(one.held)}
    if len(answers) < len(names):
        return None
    size = min(len(one.test[:most]) for one in answers.values())
    held = min(len(one.held[:most]) for one in answers.values())
    for each in [*free(repetition), *compared(repetition)]:
        beside = Answers.of(scores, task, each.name)
        if beside is None or len(beside.test) < size:
            continue
        if each.source == INSTRUCTION and len(beside.held) >= held:
            names.append(each.name)
        answers[each.name] = beside
    answers = {name: one.first(size, held) for name, one in answers.items()}
    truth = {"test": items.truth("test", size), "held-out": items.truth("held-out", held)}
    right = {name: one.right("test", truth["test"]) for name, one in answers.items()}
    private = {name: answers[name].right("held-out", truth["held-out"]) for name in names}
    classes = items.data.task.labels is not None
    served = {"single": SINGLE, "together": ("batch",)} if classes else {"single": ("none",)}
    population = len(items.splits["held-out"])
    return Line(
        kind="held-out",
        task=task,
        user=MODELS[user][0],
        repetition=repetition,
        items=size,
        held_out=held,
        population=population,
        epsilon=EPSILON,
        outcomes=as_text(right),
        chosen={
            service: chosen(options(private, names, kinds), options(right, names, kinds), EPSILON)
            for service, kinds in served.items()
        },
        held={
            name: {kind: round(float(row.mean()), 4) for kind, row in kinds.items()}
            for name, kinds in private.items()
        },
        released=released(answers, names, private, truth["test"], population) if classes else None,
    )


def pools(task: str, user: str, scores: Scores, items: Items) -> list[Line]:
    """The lines of all repetitions, on the items that all of them have."""
    complete: list[Line] = []
    for repetition in range(MOST_REPETITIONS):
        line = measured(task, user, repetition, scores, items)
        complete += [] if line is None else [line]
    most = min((line.items for line in complete), default=None)
    again = (measured(task, user, line.repetition, scores, items, most=most) for line in complete)
    return [line for line in again if line is not None]


def released(
    answers: Mapping[str, Answers],
    names: Sequence[str],
    private: ByCalibration,
    truth: NDArray[np.int64],
    population: int,
) -> list[int]:
    """In how many draws each test item is right: choose, release a calibration of the choice, divide by it."""
    held = options(private, names, SINGLE)
    picks = chosen(held, held, EPSILON - CALIBRATION_EPSILON).picked
    right = np.zeros(len(truth), dtype=np.int64)
    for option, times in picks.items():
        one = answers[option.split()[0]]
        for _ in range(times):
            bias = np.log(released_mean(np.exp(one.held), population, CALIBRATION_EPSILON))
            right += (one.test - bias).argmax(axis=1) == truth
    return [int(count) for count in right]


def crossed(cells: Sequence[Cell]) -> Iterator[Line]:
    """Cross-fits on stored cells: no demonstration, every repetition's instruction-only set, and one set of ours."""
    by = {
        (cell.task, cell.model, cell.condition, cell.epsilon_asked, cell.repetition): cell
        for cell in cells
        if cell.shots in (0, SHOTS)
    }
    for task, user in dict.fromkeys((cell.task, cell.model) for cell in cells):
        bare = by[task, user, "zero-shot", 0.0, 0]
        free = {
            f"instruction-{repetition}": cell
            for (*key, repetition), cell in by.items()
            if key == [task, user, NOTHING_READ[task], 0.0]
        }
        for (*key, repetition), cell in list(by.items()):
            if key == [task, user, OURS[task], EPSILON]:
                yield _cross_fit(cell, {"none": bare, **free, "ours": cell}, repetition)


def _cross_fit(cell: Cell, prompts: Mapping[str, Cell], repetition: int) -> Line:
    right = {name: by_calibration(each) for name, each in prompts.items()}
    served = {"single": tuple(kind for kind in SINGLE if kind in right["none"])}
    if all("batch" in kinds for kinds in right.values()):  # the first cells lack it
        served["together"] = ("batch",)
    return Line(
        kind="cross-fit",
        task=cell.task,
        user=cell.model,
        repetition=repetition,
        items=cell.items,
        held_out=0,
        population=0,
        epsilon=EPSILON,
        outcomes=as_text(right),
        chosen={
            service: cross_fit(options(right, list(right), kinds), EPSILON)
            for service, kinds in served.items()
        },
    )


def by_calibration(cell: Cell) -> dict[str, Outcomes]:
    """A cell's outcomes."""
    kept = {"none": cell.outcomes}
    if cell.uncalibrated is not None:
        kept = {"none": cell.uncalibrated, "contextual": cell.outcomes}
        kept |= {"batch": cell.batch_calibrated} if cell.batch_calibrated is not None else {}
    return {name: np.array([one == "1" for one in outcomes]) for name, outcomes in kept.items()}


def as_text(right: ByCalibration) -> dict[str, dict[str, str]]:
    """Outcomes as the raw files hold them."""
    return {
        name: {kind: "".join("1" if one else "0" for one in row) for kind, row in kinds.items()}
        for name, kinds in right.items()
    }


def read(path: Path = RAW) -> list[Line]:
    """The stored lines; none before the first measurement."""
    if not path.exists():
        return []
    return [Line.from_dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Writes the raw file anew from all that was scored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    arguments = parser.parse_args()
    lines = list(crossed(Results(CELLS).cells))
    for task, data in ALL_SETS.items():
        items = Items.of(data, arguments.data)
        for user in MODELS:
            scores = Scores.between(arguments.store, user)
            lines += pools(task, user, scores, items)
    write_whole(RAW, "".join(json.dumps(asdict(line)) + "\n" for line in lines))


if __name__ == "__main__":
    main()
