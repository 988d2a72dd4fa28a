"""Impossible histories with correct hashes."""

import json
from typing import Any

import pytest

from dpfewshot.account.draws import DrawCounts, columns
from dpfewshot.account.history import NOTHING_BEFORE, HistoryEvent, chained
from dpfewshot.account.verification import Snapshot, check

WORDS = {"dataset": "tickets", "relation": "zero-out", "unit": None, "parallel": True}
CREATED = HistoryEvent(act="create", epsilon=10, delta=10, details=json.dumps(WORDS))


def snapshot(*acts: HistoryEvent, entries: tuple[dict[str, Any], ...] = ()) -> Snapshot:
    rows, previous = [], NOTHING_BEFORE
    for number, act in enumerate(acts, start=1):
        rows.append(chained(act, number, previous))
        previous = rows[-1]["hash"]
    account = WORDS | {"id": 1, "epsilon": 10, "delta": 10, "partition": None}
    return Snapshot(account=account, entries=list(entries), history=rows)


def reserve(entry: int, epsilon: int) -> HistoryEvent:
    return HistoryEvent(
        act="reserve", entry=entry, epsilon=epsilon, delta=0, details=json.dumps(lease("a", 3))
    )


def lease(name: str, draws: int) -> dict[str, Any]:
    return {"lease": {"id": name, "draws": draws}}


GRANTED = reserve(1, 1)


def resume(previous: str, draws: int, name: str, reserved: str | None = None) -> HistoryEvent:
    """Of the entry that the second act granted."""
    [_, grant] = snapshot(CREATED, GRANTED).history
    details = {**lease(name, draws), "previous": previous, "reserve": reserved or grant["hash"]}
    return HistoryEvent(act="resume", entry=1, details=json.dumps(details))


def settle(name: str, draws: int, entry: int = 1) -> HistoryEvent:
    return HistoryEvent(act="settle", entry=entry, details=json.dumps(lease(name, draws)))


def on(act: str, entry: int) -> HistoryEvent:
    return HistoryEvent(act=act, entry=entry)


def kept(entry: int, epsilon: int, state: str) -> dict[str, Any]:
    row = {"id": entry, "scope": None, "epsilon": epsilon, "delta": 0, "state": state, "renyi": None}
    return row | columns(DrawCounts(3, "a"))


def test_a_history_that_could_have_happened() -> None:
    acts = [
        CREATED,
        reserve(1, 10),
        on("cancel", 1),
        reserve(2, 10),
        on("charge", 2),
        settle("a", 3, entry=2),
    ]
    assert check(snapshot(*acts, entries=(kept(1, 10, "cancelled"), kept(2, 10, "settled")))).ok


@pytest.mark.parametrize(
    ("acts", "problem"),
    [
        ([CREATED, CREATED], "event 2 cannot be: an account is created once"),
        ([reserve(1, 1)], "event 1 cannot be: an account is created once, and first"),
        ([CREATED, on("charge", 1)], "there is no entry 1 to charge"),
        ([CREATED, reserve(1, 1), on("settle", 1)], "what was reserved became settled"),
        ([CREATED, reserve(1, 1), on("charge", 1), on("cancel", 1)], "what was charged became cancelled"),
        ([CREATED, reserve(1, 1), reserve(1, 1)], "entry 1 was reserved twice"),
        ([CREATED, reserve(1, 6), reserve(2, 5)], "entry 2 did not fit the budget"),
        ([CREATED, reserve(1, 1), on("vanish", 1)], "there is no entry 1 to vanish"),
        ([CREATED, on("resume", 1)], "there is no entry 1 to resume"),
        ([CREATED, HistoryEvent(act="reserve", entry=1, epsilon=1, delta=0)], "a value in it cannot be read"),
        ([CREATED, GRANTED, on("charge", 1), on("settle", 1)], "a value in it cannot be read"),
        ([CREATED, GRANTED, resume("b", 1, "c")], "entry 1 was resumed by a run without a lease of it"),
        (
            [CREATED, GRANTED, resume("a", 1, "b", reserved="0" * 64)],
            "another event than the one that reserved",
        ),
        ([CREATED, GRANTED, resume("a", 4, "b")], "entry 1 had 3 draws left, and then 4"),
        ([CREATED, GRANTED, resume("a", -1, "b")], "entry 1 had 3 draws left, and then -1"),
        ([CREATED, GRANTED, on("cancel", 1), resume("a", 1, "b")], "what was cancelled was resumed"),
        ([CREATED, GRANTED, resume("a", 2, "b"), settle("b", 3)], "entry 1 had 2 draws left, and then 3"),
        ([CREATED, GRANTED, resume("a", 2, "b"), settle("a", 2)], "entry 1 had 2 draws left"),
        ([], "the account has no history"),
    ],
)
def test_a_history_that_could_not_have_happened(acts: list[HistoryEvent], problem: str) -> None:
    found = check(snapshot(*acts))
    assert not found.ok
    assert problem in found.problems[0]
