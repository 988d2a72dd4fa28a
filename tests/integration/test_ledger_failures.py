"""What the ledger says when the database fails, is damaged or is not there."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS
from tests.support.ledgers import BUDGET, COST, rows, run

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
