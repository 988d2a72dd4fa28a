"""Accounts of every kind, empty."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.amounts import Cost
from dpfewshot.account.draws import DrawCounts, Terms
from dpfewshot.account.history import Details
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.scopes import Partition
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import LABEL_COLUMN, PrivacySpend

MakeAccount = Callable[..., Account]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeAccount]:
    if request.param == "memory":
        yield Account.in_memory
        return
    from tests.conftest import new_ledger

    with BudgetLedger.open(new_ledger(request, tmp_path)) as ledger:
        yield lambda budget, **words: ledger.create("tickets", budget, **words)


LEASE: Final = "lease"

DRAWS: Final = DrawCounts(2, LEASE)
"""Of a plan whose draws a test does not ask about."""


def spend(epsilon: float, delta: float = 0.0) -> PrivacySpend:
    return PrivacySpend(epsilon, delta)


def scope_name(task: str, labels: Iterable[str], label: str, column: str = LABEL_COLUMN) -> str:
    """The scope of the units of one label."""
    return Partition(task, tuple(labels), column).generating(label) or ""


def entry_of(account: Account, scope: str | None, cost: Cost) -> int:
    return account.reserve(scope, cost, {}, DRAWS).entry


def resume(
    account: Account, entry: int, scope: str | None, cost: Cost, details: Details, *, lease: str
) -> list[tuple[Reserved, DrawCounts]]:
    """Resume one entry under a lease of this name."""
    with patch("dpfewshot.account.account.new_lease", lambda: lease):
        return account.resume({entry: Terms(cost, scope, 1, 1, 1.0, details)})


def charged(account: Account, scope: str | None, cost: Cost, details: Details = {}) -> int:  # noqa: B006 - read
    entry = account.reserve(scope, cost, details, DRAWS).entry
    account.draw(entry, LEASE)
    return entry


def raced(threads: int, calls: int, call: Callable[..., object], *arguments: object) -> Counter[object]:
    """How the calls of several threads ended, which begin at once and make so many each."""
    barrier = threading.Barrier(threads)

    def race(_: int) -> list[object]:
        barrier.wait(30)
        return [outcome(call, *arguments)[0] for _ in range(calls)]

    with ThreadPoolExecutor(threads) as pool:
        return Counter(chain.from_iterable(pool.map(race, range(threads))))


def outcome(
    call: Callable[..., object], *arguments: object, **named: object
) -> tuple[type[Exception] | None, object]:
    try:
        return None, call(*arguments, **named)
    except (BudgetExceeded, LedgerError) as error:
        return type(error), None
