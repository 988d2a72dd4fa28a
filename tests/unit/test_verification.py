"""Histories whose hashes are all right and which could not have happened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpfewshot.accounting.account import Units
from dpfewshot.ledger.history import NOTHING_BEFORE, Act, act_now, chained
from dpfewshot.ledger.verification import Book, check

WORDS = {"dataset": "tickets", "relation": "zero-out", "unit": None, "parallel": True}
CREATED = act_now("create", amounts=Units(10, 10), details=json.dumps(WORDS))


def book(*acts: Act, entries: tuple[dict[str, Any], ...] = ()) -> Book:
    rows, previous = [], NOTHING_BEFORE
    for number, act in enumerate(acts, start=1):
        rows.append(chained(act, number, previous))
        previous = rows[-1]["hash"]
    account = WORDS | {"id": 1, "epsilon": 10, "delta": 10, "partition": None}
    return Book(account=account, entries=list(entries), history=rows)


def reserve(entry: int, epsilon: int) -> Act:
    return act_now("reserve", entry=entry, amounts=Units(epsilon, 0))


def on(act: str, entry: int) -> Act:
    return act_now(act, entry=entry)


def kept(entry: int, epsilon: int, state: str) -> dict[str, Any]:
    row = {"id": entry, "scope": None, "epsilon": epsilon, "delta": 0, "state": state}
    return row | {"blocks": None, "lease": None, "draws_hash": None}


def test_a_history_that_could_have_happened() -> None:
    acts = [CREATED, reserve(1, 10), on("cancel", 1), reserve(2, 10), on("charge", 2), on("settle", 2)]
    assert check(book(*acts, entries=(kept(1, 10, "cancelled"), kept(2, 10, "settled")))).ok


@pytest.mark.parametrize(
    ("acts", "problem"),
    [
        ([CREATED, CREATED], "act 2 cannot be: an account is created once"),
        ([reserve(1, 1)], "act 1 cannot be: an account is created once, and first"),
        ([CREATED, on("charge", 1)], "there is no entry 1 to charge"),
        ([CREATED, reserve(1, 1), on("settle", 1)], "what was reserved became settled"),
        ([CREATED, reserve(1, 1), on("charge", 1), on("cancel", 1)], "what was charged became cancelled"),
        ([CREATED, reserve(1, 1), reserve(1, 1)], "entry 1 was reserved twice"),
        ([CREATED, reserve(1, 6), reserve(2, 5)], "entry 2 did not fit the budget"),
        ([CREATED, reserve(1, 1), on("vanish", 1)], "there is no entry 1 to vanish"),
        ([], "the account has no history"),
    ],
)
def test_a_history_that_could_not_have_happened(acts: list[Act], problem: str) -> None:
    found = check(book(*acts))
    assert not found.ok
    assert problem in found.problems[0]
