"""What the ledger says when the database fails, is damaged, forged or not there."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.sql import WHOLE
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS, LEASE, resume
from tests.support.ledgers import BUDGET, COST, drew, rows, run, tamper, three_plans

LAZY = """
import sys
import dpfewshot
import dpfewshot.account.ledger
from dpfewshot.errors import MissingExtra

assert "sqlalchemy" not in sys.modules
sys.modules[sys.argv[1]] = None
try:
    budget = dpfewshot.PrivacyBudget(1.0, 1e-5)
    dpfewshot.account.ledger.BudgetLedger.open(sys.argv[2]).create("tickets", budget)
except MissingExtra as error:
    print(error)
"""


def test_a_lock_that_is_held_too_long_says_to_try_later(account: Account, path: Path) -> None:
    with BudgetLedger.open(f"sqlite:///{path}?timeout=0.1") as impatient:
        same = impatient.account("tickets")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="try again later"):
                same.reserve(None, COST, {}, DRAWS)
            assert same.spent == PrivacySpend(0.0, 0.0)  # readers go on
        same.reserve(None, COST, {}, DRAWS)
    assert account.spent == COST


@pytest.mark.parametrize("names", [["letters"], ["letters", "others"]])
@pytest.mark.parametrize(
    "use",
    [
        lambda account: account.spent,
        lambda account: account.check([(None, COST)]),
        Account.verify,
        Account.history,
        lambda account: account.reserve(None, COST, {}, DRAWS),
    ],
)
def test_an_account_is_not_read_from_a_ledger_that_took_the_place_of_its_own(
    tmp_path: Path, names: list[str], use: Callable[[Account], object]
) -> None:
    with BudgetLedger.open(f"sqlite:///{tmp_path / 'other.db'}") as ledger:
        for name in names:
            ledger.create(name, BUDGET)
    opened = BudgetLedger.open(f"sqlite:///{tmp_path / 'budget.db'}")
    opened.create("mails", BUDGET)
    account = opened.create("tickets", BUDGET)
    account.reserve(None, COST, {}, DRAWS)
    for file in tmp_path.glob("budget.db*"):
        file.unlink()
    (tmp_path / "other.db").rename(tmp_path / "budget.db")
    with pytest.raises(LedgerError, match="'tickets' is not as it was opened: its ledger was replaced"):
        use(account)


def test_a_missing_directory_a_directory_and_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"text,label\n" * 1000)
    for where, says in (
        (path.parent / "missing/budget.db", r"missing/budget\.db.*does its directory exist"),
        (path.parent, "cannot be opened"),
        (path, "not a SQLite database"),
    ):
        with pytest.raises(LedgerError, match=says):
            BudgetLedger.open(f"sqlite:///{where}")
    assert path.read_bytes() == b"text,label\n" * 1000


def test_a_damaged_file(account: Account, path: Path) -> None:
    account.reserve(None, COST, {}, DRAWS)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    for call in (lambda: account.reserve(None, COST, {}, DRAWS), lambda: account.spent):
        with pytest.raises(LedgerError, match="damaged"):
            call()


@pytest.mark.parametrize(
    "name", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "budget.db", ""]
)
def test_what_would_not_last_is_refused(name: str) -> None:
    with pytest.raises(LedgerError, match=r"sqlite:///budget\.db"):
        BudgetLedger.open(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("sqlalchemy", "sqlite:///budget.db", "ledger"),
        ("psycopg", "postgresql+psycopg://127.0.0.1:1/budget", "postgresql"),
    ],
)
def test_the_database_libraries_are_imported_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = run(LAZY, module, name)
    assert f"pip install '.[{extra}]'" in finished.stdout, finished.stderr


def test_a_new_ledger_waits_for_another_program_in_its_file(path: Path, url: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE theirs (number INTEGER)")
        other.execute("BEGIN IMMEDIATE")
        done = threading.Timer(0.3, other.rollback)
        done.start()
        with BudgetLedger.open(url) as ledger:
            assert ledger.datasets() == []
            ledger.create("tickets", BUDGET)
        done.join()
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


# ---- rows that hold what no ledger writes: `verify` names them, and whatever fails on them says to run it --

ADVICE = "run dpfewshot ledger verify"
EVENTS = [
    ("1", "details = 'x'"),
    ("1", "epsilon = NULL"),
    ("2", "details = 'x'"),
    ("2", "details = '[1]'"),
    ("2", "delta = 'x'"),
    ("2", "renyi = 'x'"),
    ("3", "renyi = x'00'"),
    ("3", "entry = 'x'"),
    ("4", "actor = x'00'"),
]


def failure_of(call: Callable[..., object], *arguments: object) -> str:
    """The message; the advice if there is no failure."""
    try:
        call(*arguments)
    except LedgerError as error:
        return str(error)
    return ADVICE


@pytest.mark.parametrize(("number", "change"), EVENTS)
def test_an_event_that_cannot_be_read_is_named(path: Path, url: str, number: str, change: str) -> None:
    account = three_plans(url)
    tamper(path, f"UPDATE dpfewshot_history SET {change} WHERE number = {number}")  # noqa: S608 - its own
    assert any(problem.startswith(f"event {number} ") for problem in account.verify().problems)
    assert ADVICE in failure_of(account.history)
    assert ADVICE in failure_of(account.reserve, None, PrivacySpend(0.0, 0.0), {}, DRAWS)


@pytest.mark.parametrize("order", ["0", "1", "'x'", "x'00'"])
def test_an_order_that_cannot_be_read_is_named(path: Path, url: str, order: str) -> None:
    three_plans(url)
    tamper(path, f"UPDATE dpfewshot_account SET renyi_order = {order}")  # noqa: S608 - its own
    account = BudgetLedger.open(url).account("tickets")
    assert "renyi_order" in account.verify().problems[0]
    for call in (account.summary, lambda: account.plans_left):
        with pytest.raises(LedgerError, match=ADVICE):
            call()


def test_a_plan_whose_grant_cannot_be_read_is_not_resumed(path: Path, url: str) -> None:
    account = drew(url)
    tamper(path, "UPDATE dpfewshot_history SET details = 'x' WHERE number = 2")
    with pytest.raises(LedgerError, match=ADVICE):
        resume(account, 1, None, PrivacySpend(0.0, 0.0), {}, lease="third")


# ---- doors that a review found open: a forged state, unreadable counts, options of URLs ---------

LARGE, SMALL = PrivacySpend(0.9, 9e-6), PrivacySpend(0.01, 1e-9)


@pytest.mark.parametrize(("state", "settle"), [("settled", True), ("cancelled", False)])
def test_a_forged_state_gives_no_budget_back(account: Account, path: Path, state: str, settle: bool) -> None:
    """In a history so long that it is not verified before every reservation."""
    large = account.reserve(None, LARGE, {}, DRAWS).entry
    if settle:
        account.draw(large, LEASE)
        account.settle(large, LEASE)
    for _ in range(WHOLE // 2):
        account.cancel(account.reserve(None, SMALL, {}, DRAWS).entry)
    if not settle:
        account.cancel(large)
    spent = account.spent
    with closing(sqlite3.connect(path)) as database, database:
        found = database.execute("select state from dpfewshot_entry where id = ?", [large]).fetchone()
        assert found == (state,)
        database.execute("update dpfewshot_entry set state = 'reserved' where id = ?", [large])
    with pytest.raises(LedgerError, match="behind the ledger's back"):
        account.cancel(large)
    if settle:
        assert account.spent == spent
        with pytest.raises(BudgetExceeded):
            account.reserve(None, LARGE, {}, DRAWS)
    assert not account.verify().ok


def test_counts_that_cannot_be_read_back_are_refused(account: Account) -> None:
    with pytest.raises(LedgerError, match="whole numbers"):
        account.reserve(None, SMALL, {}, DrawCounts(5, 5))  # type: ignore[arg-type]
    account.reserve(None, SMALL, {}, DRAWS)
    assert account.verify().ok


@pytest.mark.parametrize("option", ["uri=true&mode=memory", "vfs=unix-none&uri=true", "check_same_thread=0"])
def test_an_option_that_names_another_file_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(LedgerError, match=r"takes one option, \?timeout="):
        BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db?{option}").datasets()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["nan", "inf", "-3", "soon", "1&timeout=2"])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, seconds: str) -> None:
    with pytest.raises(LedgerError, match="a number of seconds from 0"):
        BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db?timeout={seconds}")
