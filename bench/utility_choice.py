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
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.choosing import (
    SINGLE,
    Chosen,
    Outcomes,
    Sample,
    by_score,
    chosen,
    cross_fit,
    options,
    steps_of,
)
from bench.recalibrating import Recalibrated
from bench.utility import MODELS
from bench.utility import RAW as CELLS
from bench.utility_data import ALL_SETS
from bench.utility_pool import EPSILON, MOST_REPETITIONS, compared, free, pool
from bench.utility_scores import CONTENT_FREE, Items, Scores
from bench.utility_tables import NOTHING_READ, OURS, SHOTS
from dpfewshot.evaluation import Cell, Results
from dpfewshot.runtime.files import write_whole

RAW = Path(__file__).parents[1] / "docs/results/raw/choice.jsonl"
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
        released_by_score: as `Chosen.by_score`, with a released calibration.
        shift: the total variation distance between the label frequencies of the test items and of the records that were
            scored, in 0..1; None where labels are free.
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
    released_by_score: Mapping[str, float] = field(default_factory=dict)
    shift: float | None = None

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

    def likelihood(self, truth: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """The probabilities of the held-out records' labels, by calibration."""
        if self.content_free is None:
            return {"none": self.held[:, 0]}
        biases = {"none": 0.0, "contextual": self.content_free, "batch": self.test.mean(axis=0)}
        found = {}
        for name, bias in biases.items():
            odds = np.exp(self.held - bias - (self.held - bias).max(axis=1, keepdims=True))
            found[name] = odds[np.arange(len(odds)), truth] / odds.sum(axis=1)
        return found

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


@dataclass(frozen=True)
class Pool:
    """The kept answers of one repetition's prompts.

    Attributes:
        names: of the prompts to choose from.
        answers: theirs, and those of the prompts beside them.
    """

    task: str
    user: str
    repetition: int
    names: Sequence[str]
    answers: Mapping[str, Answers]

    @classmethod
    def of(cls, task: str, user: str, repetition: int, scores: Scores) -> Pool | None:
        """A repetition's; None while it lacks a prompt."""
        names = [each.name for each in pool(ALL_SETS[task], repetition)]
        beside = [each.name for each in (*free(repetition), *compared(repetition))]
        found = {name: Answers.of(scores, task, name) for name in (*names, *beside)}
        answers = {name: one for name, one in found.items() if one is not None}
        if any(name not in answers or not len(answers[name].held) for name in names):
            return None
        return cls(task, user, repetition, names, answers)

    @property
    def size(self) -> tuple[int, int]:
        """The test items and the held-out records that all prompts of the repetition have."""
        own = [self.answers[name] for name in self.names]
        return min(len(one.test) for one in own), min(len(one.held) for one in own)

    def first(self, items: int, held: int) -> Pool:
        """On the first items, with other repetitions' prompts that have been scored on them."""
        others = {each.name for each in free(self.repetition)}
        kept = {name: one for name, one in self.answers.items() if len(one.test) >= items}
        more = [name for name in kept if name in others and len(kept[name].held) >= held]
        cut = {name: one.first(items, held) for name, one in kept.items()}
        return Pool(self.task, self.user, self.repetition, [*self.names, *more], cut)


def measured(given: Pool, items: Items, known: Sequence[Line] = ()) -> Line:
    """The line of a pool. One that is known and has the same outcomes is not made again."""
    answers, names = given.answers, given.names
    size, held = given.size
    truth = {"test": items.truth("test", size), "held-out": items.truth("held-out", held)}
    right = {name: one.right("test", truth["test"]) for name, one in answers.items()}
    private = {name: answers[name].right("held-out", truth["held-out"]) for name in names}
    sample = Sample(held, len(items.splits["held-out"]))
    line = Line(
        kind="held-out",
        task=given.task,
        user=MODELS[given.user][0],
        repetition=given.repetition,
        items=size,
        held_out=held,
        population=sample.population,
        epsilon=EPSILON,
        outcomes=as_text(right),
        chosen={},
        held={
            name: {kind: round(float(row.mean()), 4) for kind, row in kinds.items()}
            for name, kinds in private.items()
        },
        shift=_shift(truth["test"], truth["held-out"]) if items.data.task.labels is not None else None,
    )
    for one in known:
        if replace(one, chosen={}, released=None, released_by_score={}, shift=line.shift) == line:
            return replace(one, shift=line.shift)
    if items.data.task.labels is None:
        return replace(line, chosen=_served(private, right, names, {"single": ("none",)}, sample))
    likelihood = {name: answers[name].likelihood(truth["held-out"]) for name in names}
    served = {"single": SINGLE, "together": ("batch",)}
    picked = _served(private, right, names, served, sample)
    for service, kinds in served.items():
        seen, told = options(private, names, kinds), options(likelihood, names, kinds)
        picked[service] = replace(picked[service], by_score=by_score(seen, told, sample.rate(EPSILON)))
    prompts = Recalibrated(
        logprobs={name: answers[name].held for name in names},
        scores={
            "accuracy": steps_of(options(private, names, SINGLE).values()),
            "likelihood": steps_of(options(likelihood, names, ("contextual",)).values()),
        },
        sample=sample,
        epsilon=EPSILON,
    )
    tests = {name: answers[name].test for name in names}
    return replace(
        line,
        chosen=picked,
        released=prompts.released(tests, truth["test"]),
        released_by_score=prompts.by_score(truth["held-out"]),
    )


def _shift(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    count = 1 + int(max(first.max(), second.max()))
    frequencies = [np.bincount(each, minlength=count) / len(each) for each in (first, second)]
    return round(float(np.abs(frequencies[0] - frequencies[1]).sum() / 2), 4)


def _served(
    private: ByCalibration,
    right: ByCalibration,
    names: Sequence[str],
    served: Mapping[str, Sequence[str]],
    sample: Sample,
) -> dict[str, Chosen]:
    return {
        service: chosen(options(private, names, kinds), options(right, names, kinds), sample.rate(EPSILON))
        for service, kinds in served.items()
    }


def pools(task: str, user: str, scores: Scores, items: Items, known: Sequence[Line]) -> list[Line]:
    """The lines of all repetitions, on the items that all of them have."""
    found = (Pool.of(task, user, repetition, scores) for repetition in range(MOST_REPETITIONS))
    complete = [one for one in found if one is not None]
    if not complete:
        return []
    least = [min(sizes) for sizes in zip(*(one.size for one in complete), strict=True)]
    return [measured(one.first(*least), items, known) for one in complete]


def crossed(cells: Sequence[Cell], known: Sequence[Line]) -> Iterator[Line]:
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
                yield _cross_fit(cell, {"none": bare, **free, "ours": cell}, repetition, known)


def _cross_fit(cell: Cell, prompts: Mapping[str, Cell], repetition: int, known: Sequence[Line]) -> Line:
    right = {name: by_calibration(each) for name, each in prompts.items()}
    served = {"single": tuple(kind for kind in SINGLE if kind in right["none"])}
    if all("batch" in kinds for kinds in right.values()):  # the first cells lack it
        served["together"] = ("batch",)
    line = Line(
        kind="cross-fit",
        task=cell.task,
        user=cell.model,
        repetition=repetition,
        items=cell.items,
        held_out=0,
        population=0,
        epsilon=EPSILON,
        outcomes=as_text(right),
        chosen={},
    )
    for one in known:
        if replace(one, chosen={}) == line:
            return one
    found = {
        service: cross_fit(options(right, list(right), kinds), Fraction(EPSILON))
        for service, kinds in served.items()
    }
    return replace(line, chosen=found)


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
    """Writes the raw file anew from all that was scored; lines whose outcomes are the same stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    arguments = parser.parse_args()
    known = read()
    lines = list(crossed(Results(CELLS).cells, known))
    for task, data in ALL_SETS.items():
        items = Items.of(data, arguments.data)
        for user in MODELS:
            scores = Scores.between(arguments.store, user)
            lines += pools(task, user, scores, items, known)
    write_whole(RAW, "".join(json.dumps(asdict(line)) + "\n" for line in lines))


if __name__ == "__main__":
    main()
