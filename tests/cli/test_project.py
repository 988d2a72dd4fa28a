"""The project that options describe: what is refused before a model is loaded, defaults, and stages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

import dpfewshot as dpf
from dpfewshot.cli import project
from dpfewshot.cli.models import Model
from dpfewshot.cli.options import takes
from dpfewshot.cli.project import AccountName, Budget, Data, PlanOptions, Project, finite_or_inf
from dpfewshot.cli.replace import JUDGE
from dpfewshot.mechanisms import InvisibleInk, Mechanism, PublicCentred
from dpfewshot.planning.defaults import INK_TEMPERATURE
from dpfewshot.planning.settings import Settings
from dpfewshot.records import identifiers
from dpfewshot.sampling import Holdout, partition_of_units
from dpfewshot.values import Columns
from tests.support.accounts import charged
from tests.support.commands import Run
from tests.support.factory import demonstration
from tests.support.scripts import TASK

DATA = ("--task", "task.toml", "--records", "records.jsonl", "--backend", "tests.support.scripts:Sentence")
PLAN = (*DATA, "--epsilon", "2", "--delta", "1e-6", "--max-tokens", "5", "--set", "top_k=8")
ACCOUNT = ("--ledger", "sqlite:///budget.db", "--dataset", "tickets")


@pytest.fixture(autouse=True)
def here(desk: Path) -> Iterator[dpf.Account]:
    """A task, records, demonstrations, and an account of ε = 4."""
    assert desk.exists()
    dpf.Demonstrations([demonstration(relation="add-remove")]).to_jsonl("demos.jsonl")
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        yield ledger.create("tickets", dpf.PrivacyBudget(4.0, 1e-5))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""

    def loaded(*_: object, **__: object) -> NoReturn:
        pytest.fail("the model was loaded")

    monkeypatch.setattr(project, "open_backend", loaded)


GENERATE = ("generate", *PLAN)
CHOOSE = ("choose", *DATA, "--epsilon", "2", "--candidates", "demos.jsonl")
LEDGER = ACCOUNT[:2]
NOBODY = (*LEDGER, "--dataset", "nobody")
PUBLIC_NUMBERS = ("--set=population.refund=200", "--set=population.delivery=50")


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*GENERATE, *NOBODY), "has no account"),
        ((*CHOOSE, *NOBODY), "has no account"),
        ((*GENERATE, "--label", "complaint"), ": 'complaint': task "),
        ((*GENERATE, "--label", "refnud"), "'refnud' (did you mean 'refund'?): task "),
        (("plan", *PLAN, "-M", "161"), "161 is above the population 160"),
        ((*GENERATE, "--set", "holdout=1"), "holdout must be"),
        ((*GENERATE, "--set", "tokens_per_draw=9"), "--set tokens_per_draw=9 is more than --max-tokens 5"),
        ((*CHOOSE, "--set", "holdout=1"), "holdout must be"),
        ((*CHOOSE, "--set", "scored_units=0"), "scored_units"),
        ((*CHOOSE, "--set", "population.refund=1"), "population"),
        ((*GENERATE, *ACCOUNT, *PUBLIC_NUMBERS), "relation"),
        ((*GENERATE, *LEDGER), "--account"),
    ],
)
def test_what_needs_no_model_is_refused_before_it(command: Run, words: tuple[str, ...], says: str) -> None:
    status, out, err = command(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.usefixtures("no_model")
def test_a_record_that_cannot_be_masked_is_named_by_its_line(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("records.jsonl").write_text(f"\n{Path('records.jsonl').read_text()}")
    for name, stands_for in (("_recognizers", ()), ("_masked_columns", Columns()), ("_masked", None)):
        monkeypatch.setattr(identifiers, name, lambda *_, found=stands_for: found)
    says = "dpfewshot: records.jsonl: line 2: its text cannot be masked; drop the record\n"
    assert command(*GENERATE, "--set", "mask_identifiers=en") == (2, "", says)


@pytest.mark.parametrize("words", [GENERATE, CHOOSE])
@pytest.mark.parametrize("rule", ["sum", "renyi"])
def test_a_budget_that_is_gone_is_refused_before_the_model(
    command: Run, words: tuple[str, ...], rule: str
) -> None:
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        gone = ledger.create(rule, dpf.PrivacyBudget(4.0, 1e-5), rule=rule)
        charged(gone, None, dpf.PrivacySpend(2.5 if rule == "sum" else 4.0, 2.5e-6))
    status, out, err = command(*words, *LEDGER, "--dataset", rule)
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
    status, out, err = command(*GENERATE, *LEDGER, "--dataset", "one")
    assert (status, out) == (3, "")
    assert err.endswith("It needs a larger budget: dpfewshot ledger change-budget\n")  # of all labels in all
    scope = partition_of_units(TASK, dpf.read_records("records.jsonl"), Holdout(0.2)).generating("delivery")
    charged(here, scope, dpf.PrivacySpend(3.0, 0.0))
    status, out, err = command(*GENERATE, *ACCOUNT)
    assert (status, out) == (3, "")
    assert "epsilon is short. It needs epsilon=2, delta=1e-06, and epsilon=1, delta=1e-05 is left" in err
    assert "is left, for 'generates: delivery'" in err  # not the other
    assert err.startswith("dpfewshot: generate --resume ends an interrupted run. A further run is refused: ")
    assert ". It needs a larger budget: dpfewshot ledger change-budget" in err
    assert "change-budget --epsilon 5 --delta 1e-05, for good" in err  # no more than is short
    larger = re.search(r"dpfewshot (ledger change-budget --epsilon \S+ --delta \S+), for good: 50 % ", err)
    assert larger is not None
    assert command(*GENERATE, *ACCOUNT, "--label", "refund", "--quiet")[0] == 0
    assert command(*larger[1].split(), *ACCOUNT)[0] == 0
    status, _, err = command(*GENERATE, *ACCOUNT, "--output", "more.jsonl")
    assert status == 0
    in_all = (
        "With what was spent before: epsilon 5.0000, delta 2e-06, and 50 % sure becomes at most 99.331 % sure"
    )
    assert in_all in err
    assert (
        "spent: epsilon 2.0000, delta 1e-06\nspent from the account in all: epsilon 5.0000, delta 2e-06"
        in err
    )


def test_a_second_account_of_a_ledger_is_no_second_budget_for_the_same_people(command: Run) -> None:
    for name, told in (("tickets", 0), ("mails", 1)):
        made = command(*GENERATE, *LEDGER, "--dataset", name, "--set", "create=true")
        assert (made[0], made[2].count("apart from the 1 account that the ledger has")) == (0, told)


def test_a_failed_run_creates_no_account(command: Run, here: dpf.Account) -> None:
    assert command(*GENERATE, *NOBODY, "--set", "create=true", "--backend", "no.such:backend")[0] == 2
    with dpf.BudgetLedger.open("sqlite:///budget.db") as ledger:
        assert ledger.datasets() == [here.dataset]


# ---- the holdout -------------------------------------------------------------------------------------------


def test_after_generating_with_the_defaults_choosing_costs_nothing_further(
    command: Run, here: dpf.Account
) -> None:
    generate = (*GENERATE[:-4], "--max-tokens", "5", "--set", "top_k=8", *ACCOUNT, "--quiet")
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
    plan = ("plan", *PLAN, "--set", "probe_seconds=0.01", "--quiet")
    status, out, err = command(*plan)
    assert (status, err) == (0, "")
    assert "`choose`" not in out
    assert "20 % of the units are kept for `choose`" in command(*plan, "--details")[1]
    assert "`choose`" not in command(*plan, "--details", "--set", "holdout=0")[1]


@pytest.mark.parametrize(
    ("given", "holdout"),
    [
        (Project(), 0.2),
        (Project(settings=PlanOptions(holdout=0.0)), 0.0),
        (Project(settings=PlanOptions(holdout=0.3, preset="tang")), 0.3),
        (Project(settings=PlanOptions(sampling="fixed-size")), 0.0),
        (Project(settings=PlanOptions(preset="tang")), 0.0),
        (Project(budget=Budget(epsilon=float("inf"))), 0.0),
        (Project(data=Data(mask_identifiers="en")), 0.0),
        (Project(data=Data(mask_identifiers="en", unit="customer")), 0.2),
    ],
)
def test_there_is_no_holdout_by_default_where_there_can_be_none(given: Project, holdout: float) -> None:
    assert given.holdout == holdout


# ---- stages ------------------------------------------------------------------------------------------------


def test_a_pipe_reads_a_line_for_each_stage_and_nothing_with_quiet(command: Run, here: dpf.Account) -> None:
    status, out, err = command(*GENERATE, *ACCOUNT, "--output", "new.jsonl")
    stages = [line for line in err.splitlines() if not line.startswith(("plan: ", " ", "warning: "))]
    assert (status, out) == (0, "")
    assert stages == [
        "loading the model",
        "planning",
        "generating 2 demonstrations",
        "a line follows when a text is done, the first one after a minute or more with a real model",
        "generated 1 of 2: refund",
        "generated 2 of 2: delivery",
        "done: 2 demonstrations in new.jsonl",
        f"account tickets: chain tip {here.chain_tip}",
        "spent: epsilon 2.0000, delta 1e-06",
        (
            "you may publish these texts, or use them in prompts to any model, without limit; "
            "names and facts in them may be invented"
        ),
        f"texts that you would not use: delete their lines; {JUDGE}",
    ]
    status, out, err = command(*GENERATE, *ACCOUNT, "--output", "new.jsonl", "--quiet")
    assert (status, out) == (0, "")
    assert [line for line in err.splitlines() if not line.startswith("warning: ")] == []


@pytest.mark.usefixtures("no_model")
def test_advice_on_prompts_fits_the_smallest_label(command: Run) -> None:
    _, _, err = command(*GENERATE, *PUBLIC_NUMBERS, "-M", "1000")
    assert "1000 is above the population" in err
    assert "--prompts-per-draw 40 would fit" in err


@pytest.mark.parametrize("words", ["verify demos.jsonl", "ledger show --account tickets"])
def test_a_missing_ledger_is_named(command: Run, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPFEWSHOT_LEDGER", raising=False)
    status, out, err = command(*words.split())
    assert (status, out) == (2, "")
    assert "Missing option '--ledger'" in err


# ---- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["1e309", "-1e309", "nan", "-inf", "+inf", "Infinity", "INF", " inf", "four"]
)
def test_what_is_neither_finite_nor_the_word_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="word inf"):
        finite_or_inf(text)


def test_numbers_and_the_word_are_taken() -> None:
    assert finite_or_inf("inf") == math.inf
    assert [finite_or_inf(text) for text in ("4", "0.5", "1e-3", 4.0)] == [4.0, 0.5, 1e-3, 4.0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--set population=refund", "--set population: must be a table of whole numbers or a whole number"),
        ("--set epsilon=1", "--set epsilon: an option or the environment gives it, too"),
        ("--set items=1", "--set items: `generate` does not use it"),
        ("--set swordfish=1", "--set swordfish: unknown key; there are records, text, "),
        ("--set instruction=Write.", "--set instruction: unknown key; change [task] in the file: it is "),
        ("--set holdut=0", "--set holdut: unknown key; did you mean holdout?"),
        ("--holdout 0", "--holdout is no option: give the line of the project file, --set holdout=..."),
        ("--max_tokens 5", "Did you mean '--max-tokens'?"),
        ("--set top_k", "--set must read KEY=VALUE, not 'top_k'"),
        ("--set holdout=some", "--set holdout: must be a number"),
        (f"--set rounds={'1' * 5000}", "--set rounds: must be a whole number"),
        ("--set create=1", "--set create: must be true or false"),
        ("--set preset=3x", "--set preset: '3x' is not one of 'tang', 'adadpsyn'"),
        ("--set preset=tang", "top_k with preset needs --mechanism"),
    ],
)
def test_values_that_cannot_be_read_are_refused(command: Run, words: str, says: str) -> None:
    status, _, err = command(*GENERATE, *words.split())
    assert (status, says in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, None),
        ({"top_k": 8}, InvisibleInk(8, INK_TEMPERATURE)),
        ({"top_k": "all"}, InvisibleInk(None, INK_TEMPERATURE)),
        ({"temperature": 0.8}, InvisibleInk(1000, 0.8)),
        ({"top_k": 8, "temperature": 0.8}, InvisibleInk(8, 0.8)),
        ({"top_k": 8, "sampling": "fixed-size"}, PublicCentred(8)),
        ({"top_k": 8, "top_p": 0.9}, PublicCentred(8, top_p=0.9)),
        ({"temperature": 0.8, "clip": 0.2}, PublicCentred(clip=0.2, temperature=0.8)),
        ({"mechanism": "invisible-ink", "top_k": 8}, InvisibleInk(8)),
    ],
)
def test_settings_without_a_mechanism_are_those_of_the_planners_if_it_has_them(
    options: dict[str, Any], made: Mechanism | None
) -> None:
    assert PlanOptions(**options).made_mechanism() == made


def test_settings_without_a_value_are_those_of_the_package() -> None:
    """The command line states the defaults itself: --help must not import NumPy."""
    given = Project(settings=PlanOptions(holdout=0.0)).expert_settings()
    assert given == Settings()


def test_options_and_keys_become_a_project() -> None:
    made: list[Project] = []

    @click.command()
    @takes(Data, Model, Budget, PlanOptions, AccountName, "output")
    def any_command(*, project: Project, as_json: bool) -> None:  # noqa: ARG001 - every command has it
        made.append(project)

    words = (
        "--task t --set text.Ticket=a --set text.Name=b --set population.x=3 --label x -M 4 "
        "--output o --set threads=2 --set base_url=http://one --set mask_identifiers=de --dataset d"
    )
    for given in ((), words.split()):
        any_command.main(given, standalone_mode=False)
    assert made[0] == Project()
    assert made[1] == Project(
        data=Data(task="t", text={"Ticket": "a", "Name": "b"}, mask_identifiers="de"),
        budget=Budget(population={"x": 3}),
        account=AccountName(account="d"),
        model=Model(threads=2, base_url=("http://one",)),
        settings=PlanOptions(labels=("x",), prompts_per_draw=4),
        output="o",
    )
