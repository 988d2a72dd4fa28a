"""A record that cannot be read is a null: no result, no error and no charge tells it from an absent unit.

Every step from the file to the mechanism fails for one record, in every verb, with every unit sampled. All
other coins are fixed, as in Lemma 1 of docs/proofs/sampling.md. All units agree on what is released and the
noise is small, so each difference is a leak. No seed is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.audit.game import canary_game
from dpfewshot.backends import Scripted
from dpfewshot.evaluation.conditions import Request, Synthetic
from tests.support.factory import planned_once, synthesizer
from tests.support.fleet import Pickling

LABELS = ("refund", "delivery")
TASK = dpf.Task("tickets", "Write a ticket.", "Kind", "Ticket", LABELS)
FREE = replace(TASK, labels=None)
EACH = 8
"""Units of each label."""
POPULATION = dict.fromkeys(LABELS, EACH)
BUDGET = dpf.PrivacyBudget(1000.0, 1e-5)

Z = 0
"""The record in question: the first of the file, of its label and of its unit.

It chooses with a holdout of 0.5, and generates with one of 0.125.
"""
TEXT = f"ticket {Z}"
UNWRITABLE = "ticket that no tokenizer reads"

WORDS = (" my", " parcel", "\n", " refund", " delivery", "Ticket:", "Kind:", " ticket", " ", *"0123456789")


class Model(Scripted):
    """Writes one sentence, and labels every ticket right but the one in question."""

    answered: ClassVar[set[int]] = set()
    """The tickets in the prompts that got an answer."""

    def __init__(self) -> None:
        super().__init__(WORDS, self.answer)

    def tokenize(self, text: str) -> list[int]:
        if UNWRITABLE in text:
            raise ValueError(f"cannot tokenize {text!r}")
        return super().tokenize(text)

    def answer(self, prompt: list[int]) -> list[float]:
        fields = [place for place, token in enumerate(prompt) if WORDS[min(token, 8)] in ("Ticket:", "Kind:")]
        said = len(prompt) - 1 - fields[-1]
        tickets = re.findall(r"ticket (\d+)", self.detokenize(prompt))
        wanted = (" my", " parcel", "\n")[min(said, 2)]
        if WORDS[prompt[fields[-1]]] == "Kind:":
            number = int(tickets[-1]) if tickets else 1
            wanted = "\n" if said else f" {LABELS[1 if number == Z else number % 2]}"
        self.answered.update(map(int, tickets))
        rest = 1e-6
        return [1 - rest * (len(WORDS) - 1) if word == wanted else rest for word in WORDS]


# ---- data sets -------------------------------------------------------------------------------------------


def rows(null: str = "", *, free: bool = False) -> list[dict[str, str]]:
    """Tickets of units with one record each; the one in question is there, or a null in one of two ways."""
    made = [
        {"text": f"ticket {n}", "label": LABELS[n % 2], "customer": f"customer {n}"} for n in range(2 * EACH)
    ]
    if free:
        made[Z]["label"] = "REFUND"  # a label is compared up to case
    if null == "absent":
        del made[Z]
    elif null == "refused":  # what zero-out makes of a unit: it has its place, and enters no prompt
        made[Z]["text"] = UNWRITABLE
    return made


def jsonl(folder: Path, content: Sequence[dict[str, str]]) -> dpf.records.index.IndexedRecords:
    path = folder / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return dpf.index_records(path, unit="customer")


# ---- the steps of reading --------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def raising(patch: Patch, name: str, fails: Callable[..., bool], error: Exception) -> None:
    """Let a function fail on the record in question alone."""
    sound = resolve_name(name)

    def faulty(*arguments: Any, **named: Any) -> Any:
        if fails(*arguments, **named):
            raise error
        return sound(*arguments, **named)

    patch.setattr(name, faulty)


def reads(error: Exception) -> Callable[[Patch], None]:
    return lambda patch: raising(
        patch, "dpfewshot.records.index._Index.record", lambda _, row: row == Z, error
    )


def masks(patch: Patch, *, fails: bool) -> None:
    class Recognizer:
        supported_entities = ("X",)

        def analyze(self, text: str, *_: object) -> list[object]:
            if fails and text == TEXT:
                raise RuntimeError(f"cannot read {text}")
            return []

    patch.setattr("dpfewshot.records.identifiers.version", lambda _name: "0")
    patch.setattr("dpfewshot.records.identifiers._recognizers", lambda _language: (Recognizer(),))


def about_it(*told: object) -> bool:
    """Whether the last word of these is of the record in question."""
    return re.search(rf"{TEXT}\b", str(told[-1])) is not None


def answers_nothing(patch: Patch) -> None:
    sound = Model.answer

    def answer(model: Model, prompt: list[int]) -> list[float]:
        return [float("nan")] * len(WORDS) if about_it(model.detokenize(prompt)) else sound(model, prompt)

    patch.setattr(Model, "answer", answer)


@dataclass(frozen=True)
class Step:
    """A step of reading, and how it fails for the record in question."""

    fails: Callable[[Patch], None]
    masked: bool = False


STEPS = {
    "read": Step(reads(OSError(5, "Input/output error"))),
    "hold": Step(reads(MemoryError())),
    "make a record": Step(
        lambda patch: raising(
            patch, "dpfewshot.records.index.Record", lambda text, *_, **__: text == TEXT, RuntimeError(TEXT)
        )
    ),
    "mask": Step(lambda patch: masks(patch, fails=True), masked=True),
    "hash": Step(
        lambda patch: raising(
            patch,
            "json.dumps",
            lambda what, **_: isinstance(what, list) and what[1:] == ["unit", f"customer {Z}"],
            MemoryError(),
        )
    ),
    "fold": Step(
        lambda patch: raising(
            patch, "dpfewshot.tasks.layout.TextLayout.fold", lambda _, text: text == TEXT, MemoryError()
        )
    ),
    "tokenise": Step(lambda patch: raising(patch, f"{__name__}.Model.tokenize", about_it, ValueError(TEXT))),
    "tokenise, for lack of memory": Step(
        lambda patch: raising(patch, f"{__name__}.Model.tokenize", about_it, MemoryError())
    ),
    "answer": Step(
        lambda patch: raising(
            patch,
            f"{__name__}.Model.answer",
            lambda model, prompt: about_it(model.detokenize(prompt)),
            ValueError(TEXT),
        )
    ),
    "answer with a number": Step(answers_nothing),
    "compare": Step(
        lambda patch: raising(
            patch, "dpfewshot.releases.scoring.same_label", lambda _, label: label == "REFUND", MemoryError()
        )
    ),
}


# ---- the verbs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    records: Any
    folder: Path
    account: dpf.Account

    @property
    def paid(self) -> dict[str, Any]:
        return {"account": self.account}

    @property
    def on_disk(self) -> dict[str, Any]:
        return {"ledger": f"sqlite:///{self.folder}/budget.db"}

    def spent(self) -> object:
        if not (self.folder / "budget.db").exists():
            return self.account.spent
        return dpf.open_account(self.on_disk["ledger"], "tickets").spent

    def synthesizer(self, task: dpf.Task = TASK, prompts: int = EACH, **options: Any) -> dpf.Synthesizer:
        return synthesizer(
            Model(),
            self.records,
            task=task,
            **(
                {
                    "budget": replace(BUDGET, epsilon=40.0),
                    "mechanism": dpf.mechanisms.Gaussian(top_k=None),
                    "prompts_per_draw": prompts,
                    "max_tokens": 3,
                    "population": POPULATION,
                    **self.paid,
                }
                | options
            ),
        )

    def generated(self, **options: Any) -> object:
        with self.synthesizer(**options) as made:
            return [(one.text, one.spent) for one in made.generate_all()]

    def chosen(self, task: dpf.Task = TASK, **options: Any) -> object:
        options = {"holdout": 0, "population": POPULATION, "budget": BUDGET} | self.paid | options
        prompts = [dpf.Candidate(calibrated=False, format=None if task is FREE else words())]
        choice = dpf.choose(task, self.records, Model(), prompts, **options)
        return choice.index, round(choice.accuracy.value, 2), choice.spent, choice.certified

    def calibrated(self, **options: Any) -> object:
        options = {"holdout": 0.0, "population": POPULATION, "budget": BUDGET} | self.paid | options
        found = dpf.release_calibration(TASK, self.records, Model(), prompt_format=words(), **options)
        return replace(found, bias=())

    def spread(self) -> object:
        with self.synthesizer(**self.on_disk) as made, Pickling() as executor:
            done = made.generate_all(executor=executor, worker_backend=Model)
            return [(one.text, one.spent) for one in done]

    def evaluated(self) -> object:
        condition = Synthetic("gaussian", dpf.mechanisms.Gaussian(top_k=None), EACH, max_tokens=3)
        made = condition.demonstrations(Request(TASK, self.records, Model(), LABELS, 40.0, 1e-5))
        return [(one.text, one.spent) for one in made]

    def audited(self) -> object:
        with self.synthesizer(population=None) as made:
            return canary_game(made, plays=100).kind

    def counted(self) -> object:
        return dpf.release_labels(self.records, count=2, epsilon=50, delta=1e-6, account=self.account)


def words() -> dpf.icl.PromptFormat:
    return dpf.icl.PromptFormat("", "Ticket", "Kind", LABELS)


VERBS: dict[str, Callable[[Here], object]] = {
    "generate": lambda here: here.generated(),
    "generate in prompts of several": lambda here: here.generated(prompts=EACH // 2, records_per_prompt=2),
    "generate with a holdout": lambda here: here.generated(prompts=EACH - 1, holdout=0.125),
    "generate in parts": lambda here: here.generated(prompts=EACH // 2, disjoint_parts=2, shots_per_label=2),
    "generate free labels": lambda here: here.generated(
        task=FREE, labels=LABELS, prompts=2 * EACH, population=2 * EACH
    ),
    "generate with workers": Here.spread,
    "choose": lambda here: here.chosen(),
    "choose with a holdout": lambda here: here.chosen(holdout=0.5),
    "choose balanced, by likelihood": lambda here: here.chosen(balanced=True, score="likelihood"),
    "choose for free labels": lambda here: here.chosen(task=FREE, population=2 * EACH),
    "release_calibration": lambda here: here.calibrated(),
    "release_calibration with a holdout": lambda here: here.calibrated(holdout=0.5),
    "release_labels": Here.counted,
    "evaluate": Here.evaluated,
    "audit canary": Here.audited,
}

TAKEN_BY: dict[str, Callable[[str], bool]] = {
    "hash": lambda verb: "holdout" in verb or "parts" in verb,
    "compare": lambda verb: verb == "choose for free labels",
    # A prompt of several records has one answer: the lemmas count that, and nothing is unread.
    "answer": lambda verb: "several" not in verb,
    "answer with a number": lambda verb: "several" not in verb,
}
"""The verbs that take a step, where not all do."""

OF_COUNTED_UNITS = {"evaluate", "audit canary"}
"""Verbs that count the units, so that a null keeps its place among them."""


@dataclass(frozen=True)
class Outcome:
    """All that a verb puts out, and the tickets that the model answered for."""

    result: str
    spent: str
    answered: frozenset[int]


@pytest.fixture(autouse=True)
def _plans_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr("dpfewshot.planning.planner.plan_stratum", planned_once)


def everybody(units: int, numerator: int, denominator: int, subsets: int, _source: object) -> tuple[Any, Any]:
    """In place of a Poisson draw: q is 1 indeed, and every unit has its subset by its position."""
    assert numerator == denominator
    return np.arange(units), np.arange(units) % subsets


def outcome(verb: str, step: Step | None, *, masked: bool = False) -> Outcome:
    """What a verb does with a record for which a step fails; without a step, with a null."""
    free = "free" in verb
    null = "" if step else "refused" if verb in OF_COUNTED_UNITS else "absent"
    Model.answered.clear()
    with Patch.context() as patch, TemporaryDirectory() as name:
        folder = Path(name)
        records = jsonl(folder, rows(null, free=free))
        if masked:
            masks(patch, fails=False)
            records = dpf.mask_identifiers(records)
        if step:
            step.fails(patch)
        if verb != "audit canary":  # which tests the draws
            patch.setattr(_core, "poisson_subsets", everybody)
        here = Here(records, folder, dpf.Account.in_memory(BUDGET))
        try:
            result = repr(VERBS[verb](here))
        except dpf.DPFewShotError as error:
            result = repr(error).replace(name, "")
        return Outcome(result, repr(here.spent()), frozenset(Model.answered))


@cache
def with_a_null(verb: str, *, masked: bool = False) -> Outcome:
    return outcome(verb, None, masked=masked)


TRIED = [
    (step, verb)
    for verb in VERBS
    for step in STEPS
    if verb != "audit canary" and TAKEN_BY.get(step, lambda _: True)(verb)
]


@pytest.mark.parametrize(
    ("step", "verb"),
    # The game draws as `generate` does, so one step of it will do; its plays take seconds.
    [*TRIED, pytest.param("read", "audit canary", marks=pytest.mark.slow)],
)
def test_no_output_tells_a_record_that_cannot_be_read_from_a_null(step: str, verb: str) -> None:
    masked = STEPS[step].masked
    found, expected = outcome(verb, STEPS[step], masked=masked), with_a_null(verb, masked=masked)
    if step == "compare":  # behind the model's answer
        found = replace(found, answered=found.answered - {Z})
    assert found == expected


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in {"release_labels", "audit canary"}])
def test_a_verb_reads_every_other_record(verb: str) -> None:
    """Else the outcomes above would be equal for want of anything to compare."""
    answered = with_a_null(verb).answered
    if "holdout" in verb:
        assert 3 < len(answered) < 2 * EACH - 1
    else:
        assert answered == set(range(2 * EACH)) - {Z}


@pytest.mark.parametrize("verb", ["choose", "release_calibration", "choose with a holdout"])
def test_a_file_that_changed_is_found_whoever_is_drawn_and_costs_nothing(
    verb: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    def nobody(*_: object) -> tuple[Any, Any]:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    monkeypatch.setattr(_core, "poisson_subsets", nobody)
    records = jsonl(tmp_path, rows())
    (tmp_path / "r.jsonl").write_bytes(b"\n")
    with pytest.raises(dpf.InvalidRecords, match="has changed since it was indexed"):
        VERBS[verb](here := Here(records, tmp_path, dpf.Account.in_memory(BUDGET)))
    assert here.account.spent.epsilon == 0
