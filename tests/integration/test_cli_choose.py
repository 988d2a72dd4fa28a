"""`dpfewshot choose`: what it prints, writes and pays, and one line where the input is bad."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.backends import packaged_model_path
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.values import PrivacySpend
from tests.support.commands import Run
from tests.support.factory import demonstration
from tests.unit.test_scoring import SECRET, Shop

FREE_OF_COST = PrivacySpend(0.0, 0.0)
RECORDS = 1000


class Helped(Shop):
    """Knows money from a parcel once a demonstration has shown it; until then it cannot tell."""

    def answer(self, prompt: list[int]) -> list[float]:
        last = max(index for index, token in enumerate(prompt) if token in (6, 8))
        if 2 in prompt[:last] or prompt[-1] < 2:
            return list(super().answer(prompt))
        return [0.4, 0.4, *[0.2 / 8] * 8]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task, its records, and three files of demonstrations."""
    monkeypatch.chdir(tmp_path)
    Path("tickets.toml").write_text(
        'name = "tickets"\ninstruction = "Write a ticket."\nlabel_field = "Kind"\ntext_field = "Ticket"\n'
        'labels = ["refund", "delivery"]\n'
    )
    rows = [
        {"text": f"money {SECRET.upper()} {i}", "label": "refund"}
        if i % 2
        else {"text": f"parcel {i}", "label": "delivery"}
        for i in range(RECORDS)
    ]
    Path("tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    costless: dict[str, Any] = {"spent": FREE_OF_COST, "relation": "add-remove"}
    for name, shown in (
        ("good", demonstration("money", "refund", **costless)),
        ("poor", demonstration("nothing", "refund", **costless)),
        ("strange", demonstration("money", "complaint", **costless)),
    ):
        dpf.Demonstrations([shown]).to_jsonl(f"{name}.jsonl")
    return tmp_path


DATA = "--task tickets.toml --records tickets.jsonl --backend tests.integration.test_cli_choose:Helped"


def choose(*further: str) -> list[str]:
    return ["choose", *shlex.split(DATA), "--epsilon", "2", "--quiet", *further]


GOOD, POOR = ("--candidates", "good.jsonl"), ("--candidates", "poor.jsonl")


def test_one_line_says_which_and_how_good(command: Run, here: Path) -> None:
    status, out, err = command(*choose(*POOR, *GOOD, "--output", "chosen.jsonl"))
    assert (status, err, out.count("\n")) == (0, "", 1)  # no progress bar in a pipe
    assert out.startswith("good.jsonl: with these demonstrations ")
    assert out.endswith("(ε = 2 for the choice, δ = 0, neighbours zero-out)\n")
    assert (here / "chosen.jsonl").read_text() == (here / "good.jsonl").read_text()


@pytest.mark.usefixtures("here")
def test_json_is_the_choice(command: Run) -> None:
    status, out, err = command(*choose(*GOOD, "--json", "--proxy-choice", "--balanced"))
    assert (status, err) == (0, "")
    document = json.loads(out)
    choice = dpf.Choice.from_dict(document)
    assert choice.as_dict() == document
    assert (choice.index, choice.proxy, choice.balanced, choice.certified) == (1, True, True, True)
    assert choice.accuracy.low > choice.baseline.high
    assert document["statement"] == choice.statement
    assert SECRET.upper() not in out


@pytest.mark.usefixtures("here")
def test_no_demonstrations_are_a_candidate_unless_told_otherwise(command: Run) -> None:
    assert json.loads(command(*choose(*GOOD, "--no-without", "--json"))[1])["index"] == 0
    _, out, _ = command(*choose(*POOR, "--no-without", "--output", "one.jsonl"))
    assert out.startswith("poor.jsonl: with these")
    assert len(dpf.Demonstrations.from_jsonl("one.jsonl")) == 1


@pytest.mark.usefixtures("here")
def test_what_the_model_writes_without_records_may_be_a_candidate(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dpf.Candidate] = []
    real = dpf.choose

    def choosing(*arguments: Any, **options: Any) -> dpf.Choice:
        tried.extend(arguments[3])
        return real(*arguments, **options)

    monkeypatch.setattr("dpfewshot.releases.choosing.choose", choosing)
    assert command(*choose(*POOR, "--instruction-only"))[0] == 0
    assert [one.name for one in tried] == ["no demonstrations", "poor.jsonl", "instruction-only"]
    assert [one.label for one in tried[2].demonstrations] == ["refund", "delivery"]
    assert {one.spent for one in tried[2].demonstrations} == {FREE_OF_COST}


@pytest.mark.usefixtures("here")
def test_generating_and_choosing_on_one_ledger_cost_the_greater(command: Run) -> None:
    account = ["--ledger", "sqlite:///budget.db", "--dataset", "tickets"]
    made = "--delta 1e-6 --max-tokens 2 --tokens-per-draw 2 --prompts-per-draw 20 --top-k 8"
    generate = ["generate", *shlex.split(f"{DATA} {made}"), "--epsilon", "2", *account, "--create"]
    assert command(*generate, "--output", "demos.jsonl")[0] == 0
    further = ["--candidates", "demos.jsonl", *GOOD, *account]
    status, out, _ = command(*choose(*further, "--json"))
    assert status == 0
    Path("choice.json").write_text(out)
    assert json.loads(out)["total"] == {"epsilon": 2.0, "delta": 1e-6}
    shown = json.loads(command("ledger", "show", *account, "--json")[1])
    assert (shown["spent"], shown["entries"]) == ({"epsilon": 2.0, "delta": 1e-6}, 3)
    status, out, _ = command("ledger", "verify", *account)
    assert (status, "events agree" in out) == (0, True)

    status, out, err = command(*choose(*further, "--output", "again.jsonl"))
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert not Path("again.jsonl").exists()

    status, out, _ = command("report", "--choice", "choice.json", *account)
    assert status == 0
    assert "ε = 2 in all on this account, δ = 1e-06, neighbours zero-out)" in out
    head = Path("report.html").read_text().partition("</header>")[0]
    assert "with these demonstrations" in head
    assert "ε = 2 in all on this account" in head


@pytest.mark.usefixtures("here")
def test_without_a_holdout_both_add(command: Run) -> None:
    account = ["--ledger", "sqlite:///budget.db", "--dataset", "tickets"]
    assert command("ledger", "create", *account, "--epsilon", 4, "--delta", 1e-5)[0] == 0
    made = "--delta 1e-6 --max-tokens 1 --prompts-per-draw 20 --top-k 8 --epsilon 2 --holdout 0"
    assert command("generate", *shlex.split(f"{DATA} {made}"), *account)[0] == 0
    status, out, _ = command(*choose(*GOOD, *account, "--json"))
    assert status == 0
    assert json.loads(out)["total"]["epsilon"] > 3.9
    status, _, err = command(*choose(*GOOD, *account))
    assert (status, "since no plan with the same holdout came first" in err) == (3, True)


@pytest.mark.parametrize(
    ("further", "says"),
    [
        ("", "--candidates"),
        ("--candidates nowhere.jsonl", "nowhere.jsonl"),
        ("--candidates tickets.jsonl", "tickets.jsonl"),
        ("--candidates strange.jsonl", "label"),
        ("--candidates good.jsonl --output good.jsonl", "good.jsonl exists"),
        ("--candidates good.jsonl --dataset tickets", "--ledger"),
        ("--candidates good.jsonl --ledger sqlite:///budget.db", "dataset"),
        ("--candidates good.jsonl --ledger sqlite:///budget.db --dataset nobody", "ledger create"),
        ("--candidates good.jsonl --epsilon inf", "finite"),
        ("--candidates good.jsonl --epsilon 0", "epsilon"),
        ("--candidates good.jsonl --holdout 1", "holdout"),
        ("--candidates good.jsonl --scored-units 0", "--scored-units"),
        ("--candidates good.jsonl --score luck", "luck"),
        ("--candidates good.jsonl --population refund=x", "LABEL=N"),
        ("--candidates good.jsonl --label-column kind", "kind"),
        ("--candidates good.jsonl --records nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_bad_input_is_one_line(command: Run, here: Path, further: str, says: str) -> None:
    before = sorted(here.iterdir())
    status, out, err = command(*choose(*shlex.split(further)))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert SECRET.upper() not in err
    assert sorted(here.iterdir()) == before


def test_help_has_an_example(command: Run) -> None:
    status, out, _ = command("choose", "--help")
    assert status == 0
    assert "dpfewshot choose --task trec --records trec.jsonl.gz --candidates demos.jsonl" in out
    assert "  choose " in command("--help")[1]


@pytest.mark.model
def test_a_real_model_chooses() -> None:
    """The packaged model, on about four units of two short records each."""
    task = dpf.Task("tickets", SUPPORT_TICKETS.instruction, "Category", "Ticket", ("Refund", "Delivery"))
    records = [
        dpf.Record(one.text, one.label, f"customer {number // 2}")
        for number, one in enumerate(one for one in support_tickets() if one.label in task.labels)
    ]
    backend = dpf.backends.LlamaCpp(packaged_model_path(), context_tokens=128, kept_prompts=4)
    choice = dpf.choose(
        task,
        records,
        backend,
        [[], [demonstration("I want my money back.", "Refund")]],
        budget=dpf.PrivacyBudget(2.0, 1e-6),
        unit="customer",
        scored_units=4,
        record_token_cap=30,
    )
    assert choice.index in (0, 1)
    assert choice.spent == PrivacySpend(2.0, 0.0)
    assert 0 <= choice.accuracy.low <= choice.accuracy.value <= choice.accuracy.high <= 1
