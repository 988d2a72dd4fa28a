"""Accounts of every kind, empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Cost
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacySpend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeAccount = Callable[..., Account]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeAccount]:
    if request.param == "memory":
        yield Account.in_memory
        return
    from tests.conftest import new_ledger

    with BudgetLedger.open(new_ledger(request, tmp_path)) as ledger:
        yield lambda budget, **words: ledger.create("tickets", budget, **words)


def spend(epsilon: float, delta: float = 0.0) -> PrivacySpend:
    return PrivacySpend(epsilon, delta)


def entry_of(account: Account, scope: str | None, cost: Cost) -> int:
    """The number of a new entry."""
    return account.reserve(scope, cost, {}).entry


def outcome(
    call: Callable[..., object], *arguments: object, **named: object
) -> tuple[type[Exception] | None, object]:
    try:
        return None, call(*arguments, **named)
    except (BudgetExceeded, LedgerError) as error:
        return type(error), None
