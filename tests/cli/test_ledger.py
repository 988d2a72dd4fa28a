"""`dpfewshot ledger` on real files: what it prints, and how it ends."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dpfewshot import open_account
from dpfewshot.account.draws import DrawCounts, columns, granted
from dpfewshot.account.scopes import Partition
from dpfewshot.cli.application import run
from dpfewshot.errors import BudgetExceeded
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, charged, resume
from tests.support.commands import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.db"


@pytest.fixture
def command(command: Run, path: Path) -> Run:
    """Runs a command of `ledger` on one account."""
    account = ("--ledger", f"sqlite:///{path}", "--dataset", "tickets")
    return lambda name, *arguments: command("ledger", name, *account, *arguments)


@pytest.fixture
def account(command: Run, path: Path) -> None:
    assert command("create", "--epsilon", "1", "--delta", "1e-5")[0] == 0
    opened = open_account(f"sqlite:///{path}", "tickets")
    charged(opened, "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 15})


@pytest.mark.usefixtures("account")
def test_show_prints_one_object_and_no_more_than_readers_know(command: Run) -> None:
    status, out, _ = command("show", "--json")
    assert status == 0
    spent, remaining = {"epsilon": 0.25, "delta": 1e-6}, {"epsilon": 0.75, "delta": 9e-6}
    assert json.loads(out) == {
        "dataset": "tickets",
        "budget": {"epsilon": 1.0, "delta": 1e-5},
        "spent": spent,
        "entries": 1,
        "strata": [{"scope": "trec: Location", **spent, "remaining": remaining, "plans_left": 3}],
        "rule": "sum",
        "plans_left": 3,
        "chain_tip": json.loads(command("verify", "--json")[1])["head"],
    }
    assert ["trec:", "Location", "0.25", "0.75", "1e-06", "9e-06", "3"] in map(
        str.split, command("show")[1].splitlines()
    )


def test_without_an_account_show_lists_all_of_the_ledger(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'several.db'}"
    show = ["ledger", "show", "--ledger", url]
    assert run(show) == 2
    assert "the ledger has no account" in capsys.readouterr().err
    for name in ("tickets", "notes"):
        open_account(url, name, create=PrivacyBudget(1, 1e-5))
    capsys.readouterr()
    assert run([*show, "--json"]) == 0
    listed = [json.loads(line)["dataset"] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["notes", "tickets"]
    assert run(show) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == listed
    with closing(sqlite3.connect(tmp_path / "several.db")) as database:
        database.execute("UPDATE dpfewshot_account SET epsilon = 'zz' WHERE dataset = 'notes'")
        database.commit()
    assert run(show) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("tickets: ")
    assert shown.err.startswith("dpfewshot: 'notes': ")


def test_show_says_by_label_how_many_plans_fit(command: Run, path: Path) -> None:
    """A label that another run left alone keeps its plans, whatever the last label has spent."""
    partition = Partition("trec", ("Location", "Number"))
    assert command("create", "--epsilon", "4", "--delta", "1e-5")[0] == 0
    found = open_account(f"sqlite:///{path}", "tickets")
    for label, epsilon in (("Number", 2.0), ("Location", 2.0), ("Location", 2.0)):
        charged(found, partition.generating(label), PrivacySpend(epsilon, 0.0))
    with pytest.raises(BudgetExceeded, match=r"Exhausted.*'Location'.*Not exhausted: 'Number'") as caught:
        found.reserve(partition.generating("Location"), PrivacySpend(2.0, 0.0), {}, DRAWS)
    assert (caught.value.asked, caught.value.remaining) == ((2.0, 0.0), (0.0, 1e-5))
    assert (caught.value.remaining_by_scope or {})[partition.generating("Number")] == (2.0, 1e-5)
    head, _, *strata, meaning = command("show")[1].splitlines()
    assert "the account counts the largest of them" in meaning
    assert "plans like" not in head
    assert [line.split()[-1] for line in strata] == ["0", "1"]  # more plans


def test_show_lists_strata_with_short_fingerprints(command: Run, path: Path) -> None:
    partition = Partition("trec", ("Location", "Number"), holdout=("rule",))
    scopes = (partition.generating("Location"), partition.choosing, None)
    assert command("create", "--epsilon", "4", "--delta", "1e-5")[0] == 0
    found = open_account(f"sqlite:///{path}", "tickets")
    for place, scope in enumerate(scopes, start=1):
        charged(found, scope, PrivacySpend(place / 4, 0.0))
    found.cancel(found.reserve(partition.generating("Number"), PrivacySpend(0.5, 0.0), {}, DRAWS).entry)
    rows = [line.strip() for line in command("show")[1].splitlines()[2:]]
    name = str(scopes[0]).split(": ")[0]
    assert [re.split("  +", row) for row in rows] == [
        ["whole data set", "0.75", "2.75", "0.0", "1e-05", "3"],
        [f"{name[:13]}: chooses", "0.5", "2.75", "0.0", "1e-05", "3"],
        [f"{name[:13]}: generates: Location", "0.25", "3.0", "0.0", "1e-05", "4"],
    ]
    assert name not in command("history")[1]
    document = json.loads(command("show", "--json")[1])
    assert {one["scope"] for one in document["strata"]} == set(scopes)


@pytest.mark.usefixtures("account")
def test_history_lists_every_act(command: Run) -> None:
    lines = command("history")[1].splitlines()
    assert [line.split()[2] for line in lines] == ["create", "reserve", "charge"]
    assert "trec: Location" in lines[1]
    document = json.loads(command("history", "--json")[1])
    assert [row["act"] for row in document["history"]] == ["create", "reserve", "charge"]
    details = document["history"][1]["details"]
    assert re.fullmatch("[0-9a-f]{32}", details.pop("reservation"))
    assert details == {"steps": 15, **granted(DRAWS)}


@pytest.mark.usefixtures("account")
def test_stored_words_cannot_forge_a_line_of_the_history(command: Run, path: Path) -> None:
    """A ledger of before may hold any actor, and a task may have any label."""
    forged = "me  charge\n2026-01-01  auditor  settle\x1b[2K\u202e"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE dpfewshot_history SET actor = ?, scope = ? WHERE number = 2", [forged] * 2)
    lines = command("history")[1].splitlines()
    assert len(lines) == 3
    shown = r"me \x20charge\n2026-01-01 \x20auditor \x20settle\x1b[2K\u202e"
    assert lines[1].split("  ")[1:5] == [shown, "reserve", "entry 1", shown]


@pytest.mark.usefixtures("account")
def test_history_shows_what_a_resume_left(command: Run, path: Path) -> None:
    found = open_account(f"sqlite:///{path}", "tickets")
    entry = found.reserve("trec: Number", PrivacySpend(0.25, 1e-6), {}, DrawCounts(4, "first")).entry
    words = entry, "trec: Number", PrivacySpend(0.25, 1e-6), {}
    found.draw(entry, "first")
    resume(found, *words, lease="second")
    assert command("history")[1].splitlines()[-1].split("  ")[2:] == [
        "resume", "entry 2", "trec: Number", "draws left: 3"
    ]  # fmt: skip
    assert command("verify")[0] == 0


@pytest.mark.usefixtures("account")
def test_verify_prints_a_head_and_finds_it_again(command: Run) -> None:
    document = json.loads(command("verify", "--json")[1])
    assert (document["ok"], document["acts"], document["problems"]) == (True, 3, [])
    status, out, _ = command("verify", "--head", document["head"])
    assert (status, f"the history contains {document['head']}" in out) == (0, True)
    status, _, err = command("verify", "--head", document["head"][:12])
    assert (status, "--head must be a whole chain tip" in err) == (2, True)
    status, _, err = command("verify", "--head", "0" * 64)
    assert status == 2
    assert "copy" in err


@pytest.mark.usefixtures("account")
def test_verify_fails_where_somebody_changed_a_cost(command: Run, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE dpfewshot_entry SET epsilon = 1")
    status, out, err = command("verify", "--json")
    assert status == 2
    assert not json.loads(out)["ok"]
    assert "entry 1" in err


@pytest.mark.usefixtures("account")
def test_export_is_one_object_with_whole_units(command: Run) -> None:
    document = json.loads(command("export", "--json")[1])
    cost = {"epsilon_in_1e-12": 250_000_000_000, "delta_in_1e-18": 10**12, "renyi_in_1e-12": None}
    words = {"id": 1, "scope": "trec: Location", "state": "charged"}
    assert document["entries"] == [{**words, **cost, **columns(DRAWS.after(""))}]
    assert document["head"] == document["history"][-1]["hash"]


@pytest.mark.usefixtures("account")
def test_a_changed_budget_is_recorded(command: Run) -> None:
    status, out, err = command("change-budget", "--epsilon", "4", "--delta", "2e-5", "--json")
    assert (status, "becomes at most 98.21 % sure" in err) == (0, True)
    assert json.loads(out)["budget"] == {"epsilon": 4.0, "delta": 2e-5}
    assert command("history")[1].splitlines()[-1].split()[2:] == ["change-budget", "epsilon=4", "delta=2e-05"]
    assert "sure" not in command("change-budget", "--epsilon", "3", "--delta", "2e-5")[2]


def test_a_sequential_account_takes_any_task(command: Run, path: Path) -> None:
    assert command("create", "--epsilon", "1", "--delta", "1e-5", "--sequential")[0] == 0
    account = open_account(f"sqlite:///{path}", "tickets")
    account.reserve("trec: Location", PrivacySpend(0.25, 0.0), {}, DRAWS)
    account.reserve("mood: glad", PrivacySpend(0.25, 0.0), {}, DRAWS)
    assert account.spent == PrivacySpend(0.5, 0.0)
    status, _, err = command("create", "--epsilon", "1", "--delta", "1e-5")
    assert (status, "parallel=False" in err) == (2, True)


def test_a_recorded_command_line_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "show", "postgresql://me:ter2secret@host/budget"]) == 2
    assert run(["ledger", "postgresql://me:ter2secret@host/budget"]) == 2
    shown = capsys.readouterr().err
    assert "ter2secret" not in shown
    assert "://...@host" in shown


# ---- the ledger in the environment -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:swordfish@127.0.0.1:1/budget",
        "postgresql+psycopg://me:swordfish@127.0.0.1:port/budget",
        "mysql://me:swordfish@host/budget",
        "swordfish",
    ],
)
def test_the_environment_names_a_ledger_and_no_message_its_password(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    create = ["ledger", "create", "--dataset", "tickets", "--epsilon", "1", "--delta", "1e-5"]
    monkeypatch.setenv("DPFEWSHOT_LEDGER", f"sqlite:///{path}")
    assert run(create) == 0
    assert run(["ledger", "show", "--dataset", "tickets"]) == 0
    assert run(["report", "--output", str(path.with_name("report.html"))]) == 2  # of no account that it names
    assert "there is nothing to report" in capsys.readouterr().err
    monkeypatch.setenv("DPFEWSHOT_LEDGER", url)
    assert run(create) == 2
    printed = capsys.readouterr()
    assert "swordfish" not in printed.out + printed.err
