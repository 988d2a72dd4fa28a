"""No output depends on a record, but for what the noise covers: every verb, on neighbouring data sets.

The language model makes what is released the same for neighbours (neighbours.py), so all that is put out must
be the same, byte by byte, but for clocks and the like (outputs.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest

from dpfewshot.cli.application import run
from dpfewshot.cli.project import MECHANISM_NAMES, WORD_HISTOGRAM
from dpfewshot.errors import DPFewShotError
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.sampling import PoissonSampler
from tests.cli.test_application import COMMANDS
from tests.support.factory import planned_once
from tests.support.neighbours import (
    EPSILON,
    NEIGHBOURS,
    PROMPTS,
    RELATIONS,
    UNITS,
    Certain,
    Neighbouring,
    rows,
    same_histogram,
    write,
)
from tests.support.outputs import Outputs, differences, outputs, quick_garbage

FIXTURES = (quick_garbage,)
BACKEND = ("--backend", "tests.support.neighbours:Certain")
FILES = ("--task", "task.toml", "--records", "records.jsonl", *BACKEND, "--epsilon", str(EPSILON))
SET_UP = (*FILES, "--prompts-per-draw", str(PROMPTS), "--max-tokens", "4", "--set", "top_k=all")
ACCOUNT = ("--ledger", "sqlite:///budget.db", "--dataset", "tickets")
LABELS = ("--records", "records.jsonl", "--count", "2", "--epsilon", "5")
CHOOSE = (
    *("--task", "task.toml", "--records", "records.jsonl", "--candidates", "demos.jsonl"),
    *("--epsilon", "5", "--set", "record_token_cap=0", *BACKEND),
)
PROBE = ("--set", "probe_seconds=0.01")
SHOWN = ("--demonstrations", "demos.jsonl")


@dataclass(frozen=True)
class Verb:
    """A command, and what of it must be the same for neighbours.

    Attributes:
        name: of the command, with its group's.
        arguments: further ones than the name.
        takes: which options of a relation go with it, of "options" and "unit".
        status: with which it exits.
        public: what of its outputs is for others than the operator; None is everything.
        operator_alone: why the rest is not.
    """

    name: str
    arguments: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    status: int = 0
    public: Callable[[Outputs], Outputs] | None = None
    operator_alone: str = ""

    def __str__(self) -> str:
        return " ".join((self.name, *self.arguments))

    def told(self, folder: Path, relation: Neighbouring) -> Outputs:
        """What it puts out."""
        words = [*self.name.split(), *self.arguments]
        words += relation.options if "options" in self.takes else ()
        words += relation.of_unit("--unit") if "unit" in self.takes else ()
        told = outputs(folder, lambda: run(words))
        if self.public is not None:
            return self.public(told)
        assert told["result"] == str(self.status), told["stderr"]
        return told


def planned(name: str, *arguments: str, status: int = 0) -> Verb:
    return Verb(name, (*SET_UP, *arguments), ("options", "unit"), status)


def private_finding(told: Outputs) -> Outputs:
    """That there is a finding, of what kind, and that it is private."""
    document = json.loads(told["stdout"])
    assert document["confidential"] is True
    kinds = [(each["kind"], each["title"], each["confidential"]) for each in document["findings"]]
    return {"findings": str(kinds), "stderr": told["stderr"], "warnings": told["warnings"]}


def private_results(told: Outputs) -> Outputs:
    """Which trials there were, at which (ε, δ); that they are confidential; and not how accurate they are."""
    document = json.loads(told["stdout"])
    assert document["confidential"] is True
    measured = {"accuracy", "low", "high"}
    kept = [sorted((name, one[name]) for name in one.keys() - measured) for one in document["summaries"]]
    return {"summaries": str(kept), **{name: told[name] for name in ("result", "stderr", "warnings")}}


def audit(name: str, *arguments: str, takes: tuple[str, ...] = ()) -> Verb:
    why = "it reads records outside of every budget: what it finds is private, and says so"
    return Verb(f"audit {name}", (*arguments, "--json"), takes, 0, private_finding, why)


CREATE = ("ledger create", (*ACCOUNT, "--epsilon", "45", "--delta", "1e-4"))

BRIEF = (
    planned("plan", "--json", *PROBE),
    planned("generate", *ACCOUNT, "--output", "demos.jsonl", "--resume"),
    planned("generate", *ACCOUNT, "--backend", "tests.support.neighbours:Gone", "--epsilon", "5",
            "--output", "gone.jsonl", "--resume", status=2),
    Verb("labels", (*LABELS, "--delta", "1e-6"), ("unit",)),
    Verb("ledger export", ACCOUNT),
)  # fmt: skip

BY_COUNT = (*FILES, "--max-tokens", "4", "--mechanism", WORD_HISTOGRAM, *ACCOUNT, "--output", "demos.jsonl")
COUNTED = (
    Verb("generate", (*BY_COUNT, "--shots", "2"), ("options", "unit")),
    Verb("replace", ("2", *BY_COUNT, "--shots", "2", "--json"), ("options", "unit")),
    Verb("replace", (*BY_COUNT, "--shots", "1"), ("options", "unit")),
    Verb("ledger export", ACCOUNT),
)
"""By the mechanism that is the default, where labels are given and draws have no fixed size."""

FURTHER = (
    planned("plan", *PROBE),
    planned("plan", "--max-tokens", "1", "--json", *PROBE),
    planned("generate", *ACCOUNT, "--output", "demos.jsonl", "--resume"),  # all of it from the ledger
    planned("generate", *ACCOUNT, "--output", "more.jsonl", "--json", status=3),  # no budget is left
    planned("generate", "--json", "--delta", "0.5"),  # with a warning
    planned("generate", "--prompts-per-draw", "61", status=2),  # more than the population
    *(Verb(f"ledger {name}", ACCOUNT) for name in ("show", "history", "verify")),
    *(Verb(f"ledger {name}", (*ACCOUNT, "--json")) for name in ("show", "history", "verify")),
    Verb("labels", (*LABELS, "--candidates", "labels.txt", "--json"), ("unit",)),
    Verb("choose", CHOOSE, ("unit",), status=2),  # accuracies are noisy: see test_outputs_python.py
    Verb("search", CHOOSE, ("unit",), status=2),  # likewise
    Verb("report", (*SHOWN, *ACCOUNT)),
    Verb("prompt", ("late", "--task", "task.toml", "--demonstrations", "demos.jsonl")),
    Verb("verify", ("demos.jsonl", *ACCOUNT[:2])),
    Verb("verify", ("demos.jsonl", *ACCOUNT[:2], "--json")),
    Verb("ledger change-budget", (*ACCOUNT, "--epsilon", "50", "--delta", "1e-4")),
    Verb("report", (*SHOWN, "--json")),
    audit("leak", *SHOWN, "--records", "records.jsonl", takes=("unit",)),
    audit("membership", "--task", "task.toml", "--records", "records.jsonl",
          "--held-out", "public.jsonl", *SHOWN, *BACKEND),
    audit("influence", "--task", "task.toml", "--test", "records.jsonl",
          "--set", "items=2", *SHOWN, *BACKEND),
    Verb("evaluate", (*SET_UP[:-2], "--test", "public.jsonl", "--shots", "2", "--json"),  # no top_k
         ("unit",), 0, private_results, "accuracy on private data is measured outside of every budget"),
    Verb("doctor", BACKEND),
    Verb("init", ("records.jsonl", "--text", "text", "--label-column", "label", "--unit", "none", "--yes")),
    Verb("demo", ("--epsilon", "40")),  # on made-up records of its own
    Verb("demo", ("--epsilon", "40", "--json")),
)  # fmt: skip

PLAYED = (*SET_UP, "--max-tokens", "1", "--set", "plays=100")
CANARY = (audit("canary", *PLAYED, takes=("options", "unit")),)
"""Takes seconds."""
TEXTS = (audit("canary", *PLAYED, "--set", "texts_only=true", takes=("options", "unit")),)

OTHER_SETTINGS = (
    *(planned("generate", "--mechanism", name) for name in MECHANISM_NAMES[:-1]),  # the last: COUNTED
    planned("generate", "--mechanism", "gaussian", "--set", "temperature=0.01", "--set", "top_p=0.9"),
    planned("generate", "--set", "records_per_prompt=2", "-M", "18", "--set", "tokens_per_draw=4"),
    planned("generate", "--set", "disjoint_parts=2", "--set", "holdout=0", "-M", "20", "--shots", "2"),
    planned("generate", "--set", "top_k=20", "--set", "record_token_cap=5", "--label", "refund"),
)
"""What else there is to choose, each for itself: without an account."""

IN_FULL = (
    ("add-remove", "the same"),
    *((relation, "all that the model can read") for relation in ("add-remove", "zero-out", "replace-one")),
)
"""The relations and neighbours for which every verb is tried: that takes a second each."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with the scripted model."""
    monkeypatch.setattr("dpfewshot.cli.doctor.open_backend", lambda *_, **__: Certain())
    monkeypatch.setattr("dpfewshot.planning.planner.plan_stratum", planned_once)
    same_histogram(monkeypatch)


def session(relation: Neighbouring, neighbour: str | None, verbs: Sequence[Verb]) -> dict[str, Outputs]:
    """What the verbs put out, one after another in one folder; the base's where no neighbour is named."""
    named = ("--relation", str(relation.name), *relation.of_unit("--unit"))
    create = Verb(CREATE[0], (*CREATE[1], *named))
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, relation.base if neighbour is None else NEIGHBOURS[neighbour], free=relation.free)
        numbered = enumerate((create, *verbs))
        return {f"{number} {verb}": verb.told(folder, relation) for number, verb in numbered}


def found(relation: str, neighbour: str, verbs: Sequence[Verb]) -> list[str]:
    """Where the outputs of a neighbour differ from those of the base."""
    one, other = (session(RELATIONS[relation], each, verbs) for each in (None, neighbour))
    return differences(one, other)


@cache
def base(relation: str, verbs: tuple[Verb, ...]) -> dict[str, Outputs]:
    return session(RELATIONS[relation], None, verbs)


@pytest.mark.parametrize(
    ("relation", "neighbour"), [(name, each) for name, one in RELATIONS.items() for each in one.neighbours]
)
def test_neighbours_put_out_the_same(relation: str, neighbour: str) -> None:
    for verbs in (BRIEF,) if RELATIONS[relation].free else (BRIEF, COUNTED):
        assert differences(base(relation, verbs), session(RELATIONS[relation], neighbour, verbs)) == []


def test_with_a_population_a_plan_is_the_same_without_any_record_of_a_label() -> None:
    plan = (planned("plan", "--json", *PROBE),)
    relation = RELATIONS["add-remove"]
    hardly_any = replace(relation, base=rows()[:1])
    assert differences(base("add-remove", plan), session(hardly_any, None, plan)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "neighbour"), IN_FULL)
def test_so_they_do_with_every_verb(relation: str, neighbour: str) -> None:
    verbs = (*BRIEF, *FURTHER)
    assert differences(base(relation, verbs), session(RELATIONS[relation], neighbour, verbs)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "verbs",
    [OTHER_SETTINGS, pytest.param(CANARY, marks=pytest.mark.soak), TEXTS],
    ids=["settings", "canary", "canary on texts alone"],
)
def test_so_they_do_with_other_settings_and_in_the_canary_game(verbs: tuple[Verb, ...]) -> None:
    assert found("zero-out", "all that the model can read", verbs) == []


def test_every_verb_is_tried() -> None:
    tried = {verb.name for verb in (*BRIEF, *COUNTED, *FURTHER, *CANARY)} | {CREATE[0]}
    tried |= {"model get"}  # it reads no records: tests/cli/test_downloads.py
    assert tried == {name for name, command in COMMANDS.items() if not isinstance(command, click.Group)}


def test_what_is_not_compared_says_why() -> None:
    everywhere = (*BRIEF, *COUNTED, *FURTHER, *CANARY, *TEXTS, *OTHER_SETTINGS)
    assert all((verb.public is None) is (verb.operator_alone == "") for verb in everywhere)


# ---- controls: leaks that were put in must be found ------------------------------------------------------


def names(found: Sequence[str]) -> set[str]:
    """Of the commands and outputs, without arguments and numbers."""
    return {f"{each.split(' ')[1]}: {each.split(': ')[1]}" for each in found}


def test_control_a_default_delta_that_counts_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dpfewshot.planning.population.default_delta", lambda _, records: min(1e-5, 1 / (100 * len(records)))
    )
    for relation in ("add-remove", "zero-out"):
        leaks = names(found(relation, "more records", BRIEF))
        assert {"plan: stdout", "generate: stderr", "generate: file demos.jsonl", "ledger: stdout"} <= leaks


def test_control_a_log_line_with_the_size_of_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = PoissonSampler.draw

    def draw(sampler: PoissonSampler, sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
        drawn = sound(sampler, sizes)
        logging.getLogger("somebody.else").debug("asking for %d prompts", len(drawn))
        return drawn

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    assert names(found("zero-out", "the same", BRIEF)) == {"generate: logs"}


def test_control_an_error_that_quotes_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(writer: PromptWriter, record: object) -> list[int]:
        try:
            return writer.backend.tokenize(f" {record.text}")
        except ValueError as error:
            raise DPFewShotError(str(error)) from None

    monkeypatch.setattr(PromptWriter, "body", body)
    everyone = str(UNITS["refund"])  # so that the record is in the first draw, not in every second one
    with pytest.raises(AssertionError, match="cannot tokenize ' <unwritable>"):
        found(
            "add-remove",
            "refused by the tokenizer",
            [planned("generate", "-M", everyone, "--set", "holdout=0", "--label", "refund")],
        )
