"""Texts of several fields and lines, from a file of records to a prompt."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot import audit, icl
from dpfewshot.backends.protocol import ReplayedBlock
from dpfewshot.demonstrations import COLUMNS as LINE
from dpfewshot.errors import BackendError, InvalidRecords, InvalidTask
from dpfewshot.evaluation.conditions import NonPrivateSample, Request
from dpfewshot.mechanisms import Gaussian
from dpfewshot.prompts.writer import PromptWriter
from dpfewshot.releases.candidates import Candidate
from dpfewshot.releases.selection import Estimate
from tests.support.commands import Run
from tests.support.factory import demonstration, synthesizer
from tests.support.fields import COLUMNS, TASK, TOML, Bytes, Writer, records, rows

LATE = {"Subject": "Late", "Body": "Where is it?"}
WRITER = {"Subject": " Late\n", "Body": " Where is it?\n"}
MULTILINE = dataclasses.replace(TASK, multiline=True)
ONE = dpf.Task("mails", "Write a mail.", "Kind", "Body", ("refund", "delivery"))


def fielded(backend: Any = None, **settings: Any) -> dpf.Synthesizer:
    defaults = {"task": TASK, "records": records(), "max_tokens": 30}
    return synthesizer(Writer(WRITER) if backend is None else backend, **(defaults | settings))


@pytest.mark.parametrize("tokens_per_draw", [1, 4, 30])
def test_a_demonstration_has_the_tasks_fields(tokens_per_draw: int) -> None:
    """The names of the fields cost no token: they are written, whatever R is, and never drawn."""
    free = {"budget": dpf.NO_PRIVACY, "tokens_per_draw": tokens_per_draw}
    one = fielded(**free).generate("refund")
    assert one.fields == LATE
    assert one.text == "Subject: Late\n\nBody: Where is it?"
    assert one.token_count == len(" Late\n Where is it?\n")
    short = fielded(**free).generate("refund", max_tokens=4)
    assert (short.fields, short.token_count) == ({"Subject": "Late", "Body": ""}, 4)  # " Lat" was drawn
    assert short.text == "Subject: Late\n\nBody:"
    private = fielded(tokens_per_draw=tokens_per_draw).generate("refund")
    assert private.certified
    assert list(private.fields) == ["Subject", "Body"]
    assert TASK.layout.text(private.fields) == private.text


class Room(Writer):
    """Notes the longest prompts for which room is asked, with the tokens to come."""

    longest = 0

    def open_block(self, prefix: Any, suffixes: Any, tokens: int, *, public: bool = False) -> ReplayedBlock:
        self.longest = max([self.longest, *(len(prefix) + len(suffix) + tokens - 1 for suffix in suffixes)])
        return ReplayedBlock(self, prefix, suffixes, public=public)


@pytest.mark.parametrize("tokens_per_draw", [1, 4, 20])
def test_no_block_asks_for_more_room_than_the_plan_checked(tokens_per_draw: int) -> None:
    """A record at its cap would not fit, and count for nothing."""
    backend = Room(WRITER)
    settings: dict[str, Any] = {"budget": dpf.NO_PRIVACY, "record_token_cap": 12, "max_tokens": 20}
    fielded(backend, tokens_per_draw=tokens_per_draw, **settings).generate("refund")
    writer = PromptWriter(TASK, backend, 12)
    planned = len(writer.for_label("refund").prefix) + writer.longest_suffix("refund", 1, 20)
    assert planned - 3 <= backend.longest <= planned


def test_a_text_keeps_its_lines() -> None:
    backend = Writer({"Subject": " Late\n\n", "Body": " Hello,\nwhere?\n\n"})
    one = fielded(backend, task=MULTILINE, budget=dpf.NO_PRIVACY).generate("refund")
    assert one.fields == {"Subject": "Late", "Body": "Hello,\nwhere?"}
    task = dataclasses.replace(ONE, multiline=True)
    texts = dpf.as_records(rows(), text="mail.text")
    one = fielded(backend, task=task, records=texts, budget=dpf.NO_PRIVACY).generate("refund")
    assert one.text == "Hello,\nwhere?"
    assert one.fields == {}


def test_the_instruction_alone_writes_all_fields() -> None:
    backend = Writer({"Subject": " Late\n\n", "Body": " Hello,\nwhere?\n\n"})
    [one] = dpf.instruction_only_demonstrations(MULTILINE, backend, ["refund"])
    assert one.fields == {"Subject": "Late", "Body": "Hello,\nwhere?"}
    assert one.token_count == len(" Late\n\n Hello,\nwhere?\n\n")


class Dying(Writer):
    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if any(self.detokenize(prompt).rpartition("Kind:")[2].count("Body: W") for prompt in prompts):
            raise RuntimeError
        return super().next_token_logprobs(prompts, support)


def test_a_run_goes_on_in_the_field_where_it_was_interrupted(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ledger": f"sqlite:///{tmp_path / 'budget.db'}"}
    settings |= {"labels": ["refund"], "budget": dpf.PrivacyBudget(100.0, 1e-5)}
    with fielded(Dying(WRITER), **settings) as first, pytest.raises(BackendError):
        first.generate_all()
    [one] = fielded(**settings).generate_all(resume=True)
    assert one.fields == LATE


def test_outputs_tell_the_fields(tmp_path: Path) -> None:
    made = dpf.Demonstrations(
        [dataclasses.replace(demonstration(), text=TASK.layout.text(LATE), fields=LATE)]
    )
    made.to_jsonl(tmp_path / "demos.jsonl")
    assert dpf.Demonstrations.from_jsonl(tmp_path / "demos.jsonl").items == made.items
    assert json.loads((tmp_path / "demos.jsonl").read_text())["fields"] == LATE
    assert list(made.to_pandas().columns) == [*LINE, "fields"]
    assert made.to_messages(TASK)[1]["content"] == "Subject: Late\n\nBody: Where is it?"
    assert made.to_prompt(TASK) == (
        "Give the Kind of the Subject and Body. Answer with one of: refund, delivery.\n\n"
        "Subject: Late\nBody: Where is it?\nKind: refund"
    )
    assert made.to_prompt(MULTILINE, made[0].text).endswith(
        "Subject: Late\n\nBody: Where is it?\n\nKind: refund\n\nSubject: Late\n\nBody: Where is it?\n\nKind:"
    )


@pytest.mark.parametrize(
    "fields",
    [
        *(None, 3, {"Subject": 3}, ["Subject"]),
        *(LATE | {"Body": "Where?"}, {"Subject": "Late"}, {"Title": "Late"}),
    ],
)
def test_a_line_whose_fields_are_not_those_of_its_text_is_refused(fields: object, tmp_path: Path) -> None:
    line = demonstration().as_line() | {"text": TASK.layout.text(LATE), "fields": fields}
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps(line))
    with pytest.raises(InvalidRecords, match="line 1: is not a demonstration"):
        dpf.Demonstrations.from_jsonl(path)


@pytest.mark.parametrize(
    "text",
    ["a plain text", {"Subject": "Late"}, {"Subject": "Late", "Body": None}, 3, "Body: x\n\nSubject: y"],
)
def test_a_text_without_the_fields_is_refused_by_its_position(text: Any) -> None:
    classifier = icl.Classifier(TASK, Bytes())
    both = classifier.predict_proba([LATE, TASK.layout.text(LATE)])
    assert (both[0] == both[1]).all()
    with pytest.raises(
        InvalidRecords, match=r"^texts\[1\] does not have the fields Subject and Body"
    ) as raised:
        classifier.predict([LATE, text])
    assert "Late" not in str(raised.value)


@pytest.mark.parametrize("form", [dpf.Demonstrations.to_prompt, dpf.Demonstrations.to_langchain])
def test_a_demonstration_without_the_fields_is_refused(form: Any) -> None:
    with pytest.raises(InvalidTask, match="does not have the fields Subject and Body"):
        form(dpf.Demonstrations([demonstration()]), TASK)


def test_a_prompt_takes_what_is_labelled_by_field_or_as_a_text() -> None:
    none = dpf.Demonstrations()
    assert none.to_prompt(TASK, LATE) == none.to_prompt(TASK, TASK.layout.text(LATE))
    for other in ("Late Where is it?", {"Subject": "Late"}, " "):
        with pytest.raises(InvalidRecords, match=r"^the text to label does not have the fields"):
            none.to_prompt(TASK, other)


def test_names_of_fields_are_no_part_of_a_leak() -> None:
    held = [dpf.Record(TASK.layout.text({"Subject": "Late", "Body": "No parcel."}), "delivery")]
    one = dataclasses.replace(demonstration(), text=TASK.layout.text(LATE), fields=LATE)
    found = audit.leak_check([one], held, long_run=2)
    assert found.verdict == "passed"


def test_samples_of_records_have_fields() -> None:
    [one] = dpf.non_private_sample(TASK, records(2), ["refund"])
    assert one.fields["Body"] == "Hello, where is order 0? Body: no Bye"
    free = dataclasses.replace(TASK, labels=None)
    request = Request(free, records(4), Bytes(), ("refund",), None, 1e-6, 0)
    [one] = NonPrivateSample().demonstrations(request)
    assert one.fields["Subject"].startswith("Order")


@pytest.mark.parametrize(
    "later", [{}, {"text_field": "", "text_fields": ("Subject", "Body"), "multiline": True}]
)
def test_a_chosen_format_is_read_again(later: Any) -> None:
    words = icl.PromptFormat("Which?", **({"text_field": "Text"} | later), label_field="Kind")
    none = Estimate(0.5, 0.0, 1.0)
    choice = dpf.Choice(0, Candidate([], format=words), none, none, None, "zero-out", None, certified=False)
    told = choice.as_dict()
    assert dpf.Choice.from_dict(json.loads(json.dumps(told))) == choice
    assert json.loads(json.dumps(told["format"])) == json.loads(json.dumps(dataclasses.asdict(words)))


def test_a_holdout_by_texts_is_bound_to_the_names_of_the_fields(tmp_path: Path) -> None:
    """The names are part of the text, so other names divide the records in another way."""
    settings: dict[str, Any] = {"ledger": f"sqlite:///{tmp_path / 'budget.db'}"}
    settings |= {"holdout": 0.5, "budget": dpf.PrivacyBudget(1.0, 1e-6)}
    fielded(prompts_per_draw=10, **settings).generate("refund")
    renamed = dataclasses.replace(TASK, text_fields=("Title", "Body"))
    other = dpf.as_records(rows(), text={"Title": "mail.subject", "Body": "mail.text"})
    with pytest.raises(dpf.LedgerError, match="divides the data set in another way"):
        fielded(task=renamed, records=other, prompts_per_draw=10, **settings).generate("refund")


def test_records_of_other_fields_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'budget.db'}"
    mixed = dpf.as_records(rows(), text={"Body": "mail.text", "Subject": "mail.subject"})
    plain = dpf.as_records(rows(), text="mail.text")
    for task, given in ((TASK, mixed), (TASK, plain), (ONE, records())):
        settings = {"ledger": ledger}
        with pytest.raises(InvalidRecords, match="text field"):
            fielded(task=task, records=given, **settings)
        with pytest.raises(InvalidRecords, match="text field"):
            dpf.choose(task, given, Bytes(), candidates=[[]], budget=dpf.PrivacyBudget(1.0, 1e-6))
        with pytest.raises(InvalidRecords, match="text field"):
            dpf.non_private_sample(task, given, ["refund"])
    assert dpf.open_account(ledger, "tickets").entries == 0
    with pytest.raises(InvalidRecords, match="record 1: does not have the text fields"):
        dpf.as_records([dpf.Record("private", "refund")], text=COLUMNS)
    with pytest.raises(InvalidRecords, match="one of them is blank"):
        dpf.as_records([dpf.Record("Subject: \u00a0\n\nBody:", "refund")], text=COLUMNS)


def test_the_command_line_reads_fields(command: Run, tmp_path: Path) -> None:
    mails, task = tmp_path / "mails.jsonl", tmp_path / "task.toml"
    mails.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    task.write_text(TOML)
    assert dpf.Task.from_file(task) == MULTILINE
    given = ["--set", "text.Subject=mail.subject", "--set", "text.Body=mail.text"]
    common = ["--task", task, "--records", mails, "--backend", "tests.support.fields:backend"]
    status, out, error = command(
        "generate", *common, *given, "--label", "refund", "--epsilon", "4", "--prompts-per-draw", "20",
        "--mechanism", "gaussian", "--max-tokens", "30", "--output", tmp_path / "demos.jsonl",
    )  # fmt: skip
    assert status == 0, error
    assert json.loads((tmp_path / "demos.jsonl").read_text())["fields"].keys() == LATE.keys()
    status, out, error = command("plan", *common, "--epsilon", "4")
    assert (status, out) == (2, "")
    assert "no 'text'" in error


def test_a_longer_prompt_is_planned() -> None:
    """The names of the fields count where the context could be too small."""
    one = dataclasses.replace(TASK, text_fields=(), text_field="Subject")
    plain = dpf.as_records(rows(), text="mail.text")
    small = fielded(task=one, records=plain, mechanism=Gaussian(top_k=8)).plan.prompt_tokens
    large = fielded(mechanism=Gaussian(top_k=8)).plan.prompt_tokens
    assert large == small + 20 * 30 * 2 * len("\nBody:")


@pytest.mark.parametrize(
    ("settings", "trouble"),
    [
        ({"text_field": "Text", "text_fields": ("A", "B")}, "give one of the two"),
        ({"text_fields": ("A", "A")}, "'A' is repeated"),
        ({"text_fields": ("A", "Kind")}, "is one of its text_fields"),
        ({"text_fields": ("A", "B:")}, "must not end with a colon"),
        ({"text_fields": ("A", "B\nC")}, "must be one line"),
        ({"text_fields": "AB"}, "must be a list of strings"),
        ({"text_fields": []}, "are empty"),
        ({}, "text_field is empty"),
        ({"text_field": "A", "multiline": "yes"}, "multiline must be true or false"),
        ({"text_field": "A", "chat": 1}, "chat must be true or false"),
    ],
)
def test_wrong_fields_are_refused(settings: Any, trouble: str) -> None:
    with pytest.raises(InvalidTask, match=trouble):
        dpf.Task("mails", "Write.", "Kind", **settings)
    if "multiline" not in settings:
        with pytest.raises(InvalidTask, match=trouble):
            icl.PromptFormat("Write.", label_field="Kind", **settings)
