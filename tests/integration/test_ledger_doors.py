"""Doors that a review found open: a forged state, unreadable counts, options of URLs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.sql import WHOLE
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS, LEASE

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
        with pytest.raises(dpf.BudgetExceeded):
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
        dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db?{option}").datasets()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["nan", "inf", "-3", "soon", "1&timeout=2"])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, seconds: str) -> None:
    with pytest.raises(LedgerError, match="a number of seconds from 0"):
        dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db?timeout={seconds}")
