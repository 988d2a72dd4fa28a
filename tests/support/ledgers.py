"""A ledger in a SQLite file, an account of it, and accounts with a history."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.accounting import PoissonGaussian
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, LEASE, charged, resume
from tests.support.processes import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = PrivacyBudget(1.0, 1e-5)
COST = PrivacySpend(0.75, 1e-6)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def ledger(url: str) -> Iterator[BudgetLedger]:
    with BudgetLedger.open(url) as opened:
        yield opened


@pytest.fixture
def account(ledger: BudgetLedger) -> Account:
    return ledger.create("tickets", BUDGET)


def tamper(path: Path, statements: str) -> None:
    """Change the tables behind the ledger's back."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def lived(url: str) -> Account:
    """An account that has seen every act."""
    account = BudgetLedger.open(url).create("tickets", BUDGET, unit="customer")
    drew = account.reserve(
        "trec: Location", PrivacySpend(0.25, 1e-6), {"mechanism": "gaussian", "steps": 15}, DRAWS
    ).entry
    account.draw(drew, LEASE)
    account.settle(drew, LEASE)
    account.cancel(account.reserve(None, PrivacySpend(0.1, 0.0), {}, DRAWS).entry)
    account.change_budget(PrivacyBudget(2.0, 1e-5))
    charged(account, "trec: Number", PrivacySpend(0.5, 0.0))
    account.reserve(None, PrivacySpend(0.5, 0.0), {}, DRAWS)
    return account


def drew(url: str) -> Account:
    """An account with an entry that drew, was resumed, and has two draws left of four."""
    account = BudgetLedger.open(url).create("tickets", BUDGET)
    entry = account.reserve(
        "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 4}, DrawCounts(4, "first")
    ).entry
    account.draw(entry, "first")
    words = entry, "trec: Location", PrivacySpend(0.25, 1e-6), {"steps": 4}
    resume(account, *words, lease="second")
    account.draw(entry, "second")
    return account


def three_plans(url: str) -> Account:
    """An account with a Rényi rule, with two plans of an event and one without."""
    weekly = EventCost(Amount(10**11, 10**12), PoissonGaussian(0.1, 3.2, 15))
    account = BudgetLedger.open(url).create("tickets", PrivacyBudget(4.0, 1e-5), rule="renyi")
    for cost in (weekly, weekly, PrivacySpend(0.1, 0.0)):
        account.reserve(None, cost, {}, DRAWS)
    return account
