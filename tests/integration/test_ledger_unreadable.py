"""Rows that hold what no ledger writes: `verify` names them, and whatever fails on them says to run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpfewshot.account.account import Claim
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacySpend
from tests.support.accounts import DRAWS
from tests.support.ledgers import drew, tamper, three_plans

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
        account.resume([Claim(1, None, PrivacySpend(0.0, 0.0), {}, "third")])
