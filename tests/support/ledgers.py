"""A ledger in a SQLite file, and an account of it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.values import PrivacyBudget, PrivacySpend
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
