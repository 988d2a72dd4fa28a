"""What needs no model is refused before it is loaded; the holdout's default; a line for each stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import pytest

import dpfewshot as dpf
from dpfewshot.cli import options, releases
from dpfewshot.cli.application import cli
from dpfewshot.sampling import Holdout, partition_of_units
from tests.support.commands import Run
from tests.support.factory import demonstration
from tests.support.scripts import TASK, tickets

DATA = ("--task", "task.toml", "--records", "records.jsonl", "--backend", "tests.support.scripts:Sentence")
PLAN = (*DATA, "--epsilon", "2", "--delta", "1e-6", "--max-tokens", "5", "--top-k", "8")
ACCOUNT = ("--ledger", "sqlite:///budget.db", "--dataset", "tickets")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dpf.Account]:
    """A task, records, demonstrations, and an account of ε = 4."""
    monkeypatch.chdir(tmp_path)
    Path("task.toml").write_text(
        'name = "tickets"\ninstruction = "Write a ticket."\nlabel_field = "Kind"\ntext_field = "Ticket"\n'
        'labels = ["refund", "delivery"]\n'
    )
    rows = [{"text": one.text, "label": one.label} for one in tickets()]
    Path("records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dpf.Demonstrations([demonstration(relation="add-remove")]).to_jsonl("demos.jsonl")
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        yield ledger.create("tickets", dpf.PrivacyBudget(4.0, 1e-5))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""

    def loaded(*_: object, **__: object) -> NoReturn:
        pytest.fail("the model was loaded")

    for module in (options, releases):
        monkeypatch.setattr(module, "open_backend", loaded)


GENERATE = ("generate", *PLAN)
CHOOSE = ("choose", *DATA, "--epsilon", "2", "--candidates", "demos.jsonl")
CALIBRATE = ("calibrate", *DATA, "--epsilon", "2", "--delta", "1e-6", "--output", "new.json")
NOBODY = ("--ledger", "sqlite:///budget.db", "--dataset", "nobody")


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*GENERATE, *NOBODY), "has no account"),
        ((*CHOOSE, *NOBODY), "has no account"),
        ((*CALIBRATE, *NOBODY), "has no account"),
        ((*GENERATE, "--label", "complaint"), "has no such label"),
        ((*GENERATE, "-M", "1000"), "1000 is above the population"),
        (("plan", *PLAN, "-M", "161"), "161 is above the population 160"),
        ((*GENERATE, "--holdout", "1"), "holdout must be"),
        ((*GENERATE, "--tokens-per-draw", "9"), "--tokens-per-draw 9 is more than --max-tokens 5"),
        ((*CHOOSE, "--holdout", "1"), "holdout must be"),
        ((*CHOOSE, "--scored-units", "0"), "--scored-units"),
        ((*CALIBRATE, "--population", "refund=1"), "population"),
        ((*GENERATE, *ACCOUNT, "--population", "refund=200", "--population", "delivery=200"), "relation"),
        ((*GENERATE, "--ledger", "sqlite:///budget.db"), "--dataset"),
    ],
)
def test_what_needs_no_model_is_refused_before_it(command: Run, words: tuple[str, ...], says: str) -> None:
    status, out, err = command(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("words", [GENERATE, CHOOSE, CALIBRATE])
@pytest.mark.parametrize("rule", ["sum", "renyi"])
def test_a_budget_that_is_gone_is_refused_before_the_model(
    command: Run, words: tuple[str, ...], rule: str
) -> None:
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        gone = ledger.create(rule, dpf.PrivacyBudget(4.0, 1e-5), rule=rule)
        gone.charge(gone.reserve(None, dpf.PrivacySpend(2.5 if rule == "sum" else 4.0, 2.5e-6), {}).entry)
    status, out, err = command(*words, "--ledger", "sqlite:///budget.db", "--dataset", rule)
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert "does not fit" in err


@pytest.mark.usefixtures("no_model")
def test_so_are_labels(command: Run) -> None:
    labels = ("labels", "--records", "nowhere.jsonl", "--count", "1", "--delta", "1e-6", *ACCOUNT)
    assert "does not fit" in command(*labels, "--epsilon", "5")[2]
    assert "no such file" in command(*labels, "--epsilon", "4")[2]


def test_no_label_generates_if_another_has_no_budget(command: Run, here: dpf.Account) -> None:
    """By sums and by labels that a sequential account adds up, where each alone would fit."""
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        ledger.create("one", dpf.PrivacyBudget(3.0, 1e-5), parallel=False)
    status, out, _ = command(*GENERATE, "--ledger", "sqlite:///budget.db", "--dataset", "one")
    assert (status, out) == (3, "")
    scope = partition_of_units(TASK, dpf.read_records("records.jsonl"), Holdout(0.2)).generating("delivery")
    here.charge(here.reserve(scope, dpf.PrivacySpend(3.0, 0.0), {}).entry)
    status, out, err = command(*GENERATE, *ACCOUNT)
    assert (status, out) == (3, "")
    assert "Exhausted for this plan: 'generates: delivery'" in err
    assert command(*GENERATE, *ACCOUNT, "--label", "refund", "--quiet")[0] == 0


def test_a_failed_run_creates_no_account(command: Run, here: dpf.Account) -> None:
    assert command(*GENERATE, *NOBODY, "--create", "--backend", "no.such:backend")[0] == 2
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        assert ledger.datasets() == [here.dataset]


def test_no_command_has_an_option_twice() -> None:
    def leaves(group: click.Group) -> Iterator[click.Command]:
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            yield from leaves(command) if isinstance(command, click.Group) else (command,)

    for command in leaves(cli):
        names = [name for one in command.params for name in one.opts]
        assert len(set(names)) == len(names), command.name


# ---- the holdout -------------------------------------------------------------------------------------------


def test_after_generating_with_the_defaults_choosing_costs_nothing_further(
    command: Run, here: dpf.Account
) -> None:
    generate = (*GENERATE[:-4], "--max-tokens", "5", "--top-k", "8", *ACCOUNT, "--quiet")
    assert command(*generate, "--epsilon", "4", "--delta", "1e-5", "--output", "new.jsonl")[0] == 0
    spent = here.spent
    partition = partition_of_units(TASK, dpf.read_records("records.jsonl"), Holdout(0.2))
    here.check([(partition.choosing, dpf.PrivacySpend(4.0, 0.0))])
    assert spent.epsilon > 3.9
    assert {one["scope"] for one in here.summary()["strata"]} == {  # type: ignore[attr-defined]
        partition.generating("refund"),
        partition.generating("delivery"),
    }


def test_the_plan_says_what_the_holdout_buys(command: Run) -> None:
    plan = ("plan", *PLAN, "--probe-seconds", "0.01", "--quiet")
    status, out, err = command(*plan)
    assert (status, err) == (0, "")
    assert "20 % of the units are kept for `choose`, which then costs no further budget" in out
    assert "`choose`" not in command(*plan, "--holdout", "0")[1]


@pytest.mark.parametrize(
    ("given", "holdout"),
    [
        ({}, 0.2),
        ({"holdout": 0.0}, 0.0),
        ({"holdout": 0.3, "preset": "tang"}, 0.3),
        ({"sampling": "fixed-size"}, 0.0),
        ({"preset": "tang"}, 0.0),
        ({"epsilon": float("inf")}, 0.0),
        ({"mask_identifiers": "en"}, 0.0),
        ({"mask_identifiers": "en", "unit": "customer"}, 0.2),
    ],
)
def test_there_is_no_holdout_by_default_where_there_can_be_none(
    given: dict[str, object], holdout: float
) -> None:
    nothing = dict.fromkeys(("holdout", "preset", "mask_identifiers", "unit"))
    assert options.holdout_of({**nothing, "sampling": "poisson", "epsilon": 4.0, **given}) == holdout


# ---- stages ------------------------------------------------------------------------------------------------


def test_a_pipe_reads_a_line_for_each_stage_and_nothing_with_quiet(command: Run) -> None:
    status, out, err = command(*GENERATE, *ACCOUNT, "--output", "new.jsonl")
    stages = [line for line in err.splitlines() if not line.startswith(("plan: ", " ", "warning: "))]
    assert (status, out) == (0, "")
    assert stages == [
        "loading the model",
        "planning",
        "generating 2 demonstrations",
        "generated 1 of 2: refund",
        "generated 2 of 2: delivery",
        "done",
    ]
    status, out, err = command(*GENERATE, *ACCOUNT, "--output", "new.jsonl", "--quiet")
    assert (status, out, [line for line in err.splitlines() if not line.startswith("warning: ")]) == (
        0,
        "",
        [],
    )


@pytest.mark.usefixtures("no_model")
def test_advice_on_prompts_fits_the_smallest_label(command: Run) -> None:
    sizes = ("--population", "refund=200", "--population", "delivery=50")
    _, _, err = command(*GENERATE, *sizes, "-M", "1000")
    assert "--prompts-per-draw 40 would fit" in err


@pytest.mark.parametrize("words", ["verify demos.jsonl", "ledger show --dataset tickets"])
def test_a_missing_ledger_is_named(command: Run, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPFEWSHOT_LEDGER", raising=False)
    status, out, err = command(*words.split())
    assert (status, out) == (2, "")
    assert "Missing option '--ledger'" in err
