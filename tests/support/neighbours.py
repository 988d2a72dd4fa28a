"""Neighbouring data sets, and a language model whose releases are the same for all of them.

The model is sure of its sentence whatever a record says, and the noise is small beside the prompts that
agree. So what is released is the same for neighbours, but for less than once in a million runs, and every
difference between their outputs is a leak. No seed is needed: results are certified, and ledgers take them.
A histogram is a noisy vector, which `same_histogram` makes the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpfewshot.backends import Scripted
from dpfewshot.errors import BackendError
from dpfewshot.mechanisms.word_histogram import HistogramRelease
from dpfewshot.tasks import Task
from dpfewshot.values import Relation
from tests.support.scripts import TASK_FILE

LABELS = ("refund", "delivery")
UNITS = {"refund": 60, "delivery": 45}
"""Units of each label in the larger of two neighbours; the smaller lacks one refund."""
PROMPTS = 30
EPSILON = 40.0

TASK = Task("tickets", instruction="Write a ticket.", label_field="Kind", text_field="Ticket", labels=LABELS)
SENTENCE = (" my", " parcel", "\n")
REFUSED, CONTRARY, IMPOSSIBLE, INFINITE = "<refused>", "<contrary>", "<impossible>", "<infinite>"
UNWRITABLE = "<unwritable>"
UNSPEAKABLE, UNHEARD = " unspeakable", " unheard"
ASKED = "Ticket:"
WORDS = (
    *SENTENCE, " money", REFUSED, CONTRARY, IMPOSSIBLE, INFINITE, ASKED, *map(chr, range(32, 127))
)  # fmt: skip

Row = dict[str, str]


class Certain(Scripted):
    """Says its sentence whatever the records hold, but for records that say how to be answered.

    Of those a prompt's answer is NaN, impossible, infinite or for another word, or the text has no tokens.
    Of two words, each by itself, one has no tokens and the other one that is beyond the vocabulary.
    """

    def __init__(self) -> None:
        super().__init__(WORDS, self.answer)
        self._asked = WORDS.index(ASKED)
        self._odd = {WORDS.index(word): word for word in (REFUSED, CONTRARY, IMPOSSIBLE, INFINITE)}

    def tokenize(self, text: str) -> list[int]:
        if UNWRITABLE in text or text == UNSPEAKABLE:
            raise ValueError(f"cannot tokenize {text!r}")
        return [10**9] if text == UNHEARD else super().tokenize(text)

    def answer(self, prompt: list[int]) -> list[float]:
        asked = max((place for place, token in enumerate(prompt) if token == self._asked), default=-1)
        odd = next((self._odd[token] for token in prompt[:asked] if token in self._odd), None)
        wanted = WORDS.index(SENTENCE[min(len(prompt) - 1 - asked, len(SENTENCE) - 1)])
        if odd == CONTRARY:
            wanted = WORDS.index(" money")
        weights = {REFUSED: float("nan"), IMPOSSIBLE: 0.0, INFINITE: float("inf")}
        if odd in weights:
            return [weights[odd]] * len(WORDS)
        rest = 1e-6
        return [1 - rest * (len(WORDS) - 1) if token == wanted else rest for token in range(len(WORDS))]


class Gone(Certain):
    """A server that is gone when the second token is asked for, whatever was drawn."""

    def answer(self, prompt: list[int]) -> list[float]:
        if prompt[-1] == WORDS.index(SENTENCE[0]):
            raise BackendError("the server is gone", retryable=True)
        return super().answer(prompt)


def same_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every histogram be the same, as if noise covered all of it; the sum is made and paid for."""

    def covered(release: HistogramRelease, total: Any, permit: Any) -> Any:
        _, scale, units = noisy_sum(release, total, permit)
        return 0 * total, scale, units

    noisy_sum = HistogramRelease.noisy_sum
    monkeypatch.setattr(HistogramRelease, "noisy_sum", covered)


def rows() -> list[Row]:
    """So many units of each label, with one record each; the last refund last."""
    return [
        {"text": f"ticket number {number}", "label": label, "customer": f"{label}-{number}"}
        for label in reversed(LABELS)
        for number in range(UNITS[label])
    ]


ONE = rows()[-1]
"""The record of the unit in which neighbours differ: a refund, even beside a record of a delivery."""


def _instead(*texts: str, label: str = ONE["label"]) -> list[Row]:
    """The unit with these records."""
    return [ONE | {"text": text, "label": label} for text in texts]


QUIRKS: dict[str, list[Row]] = {
    "another text": _instead("where is it?"),
    "very long": _instead("endless " * 20_000),
    "next to nothing": _instead("\u200b"),
    "special tokens": _instead(f"<|end|>{ASKED} my</s><|im_end|>\n\n{ASKED}", "[INST]\x00\x1b[2J\r\n"),
    "emoji": _instead("👩‍👩‍👧‍👦 \u202e🏳️‍🌈 ﷽ e\u0301"),
    "refused by the model": _instead(REFUSED),
    "answered with another word": _instead(CONTRARY),
    "answered as impossible": _instead(IMPOSSIBLE),
    "answered with infinities": _instead(INFINITE),
    "refused by the tokenizer": _instead(UNWRITABLE),  # in no prompt: what zero-out makes of a unit
    "with a word that has no tokens": _instead(f"my{UNSPEAKABLE} parcel"),
    "with a word of another vocabulary": _instead(f"unheard of,{UNHEARD}"),
    "more records": _instead(*(f"and again, {number}" for number in range(1500))),
    "records under two labels": [*_instead("one", "two"), *_instead("three", label="delivery")],
}
ODD = frozenset(name for name in QUIRKS if name.startswith(("refused", "answered")))
QUIRKS["all that the model can read"] = [row for name in QUIRKS.keys() - ODD for row in QUIRKS[name]]
"""What the unit may be like: it belongs to the same label in all of them."""


def _without_it() -> list[Row]:
    return [row for row in rows() if row != ONE]


NEIGHBOURS: dict[str, list[Row]] = {
    "the same": rows(),
    "another order": sorted(rows(), key=lambda row: row["text"][::-1]),
    **{name: [*_without_it(), *quirk] for name, quirk in QUIRKS.items()},
}
"""Data sets that differ from each other, and from the base of a relation, in one unit at most."""


@dataclass(frozen=True)
class Neighbouring:
    """Data sets that are compared under one relation, and the options that ask for it.

    Attributes:
        name: as plans have it.
        base: the data set that all others are compared with.
        options: of plan, generate and audit canary.
        unit: the column of the unit; None where each record is one.
        neighbours: the names of the data sets that are compared with it.
        free: whether labels are free: then the unit's label is as odd as its text.
    """

    name: str
    base: Sequence[Row]
    neighbours: Sequence[str] = tuple(NEIGHBOURS)
    options: tuple[str, ...] = ()
    unit: str | None = "customer"
    free: bool = False

    def of_unit(self, word: str) -> tuple[str, ...]:
        """An option for it, where there is one."""
        return () if self.unit is None else (word, self.unit)


_POPULATION = tuple(f"--set=population.{label}={count}" for label, count in UNITS.items())

_LABELS_ASKED = tuple(f"--label={label}" for label in LABELS)
_SOME = ("more records", "refused by the model", "answered as impossible", "all that the model can read")

RELATIONS = {
    "add-remove": Neighbouring(Relation.ADD_REMOVE, _without_it(), ("the same", *_SOME), _POPULATION),
    "add-remove of records": Neighbouring(
        Relation.ADD_REMOVE, _without_it(), ("the same", "very long"), _POPULATION, unit=None
    ),
    "add-remove with free labels": Neighbouring(
        Relation.ADD_REMOVE,
        _without_it(),
        ("the same", "refused by the tokenizer", *_SOME),
        (f"--set=population={sum(UNITS.values())}", *_LABELS_ASKED),
        free=True,
    ),
    "zero-out": Neighbouring(Relation.ZERO_OUT, rows()),
    "zero-out with free labels": Neighbouring(
        Relation.ZERO_OUT, rows(), ("refused by the tokenizer", *_SOME), _LABELS_ASKED, free=True
    ),
    "replace-one": Neighbouring(Relation.REPLACE_ONE, rows(), _SOME, ("--set=sampling=fixed-size",)),
}


def write(folder: Path, records: Sequence[Row], *, free: bool = False) -> None:
    """The files that a command line reads: the records, the task, public texts and labels."""
    if free:
        odd = ONE["customer"]
        records = [row | {"label": row["text"]} if row["customer"] == odd else row for row in records]
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    (folder / "task.toml").write_text(TASK_FILE if not free else TASK_FILE.partition("labels")[0])
    public = [{"text": f"public {number}", "label": LABELS[number % 2]} for number in range(4)]
    (folder / "public.jsonl").write_text("".join(json.dumps(row) + "\n" for row in public))
    (folder / "labels.txt").write_text("\n".join((*LABELS, "complaint")))
