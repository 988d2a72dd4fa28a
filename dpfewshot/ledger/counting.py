"""How an entry stores the draws that it has left, and how events name them.

An entry stores the draws left, its lease and a hash over both. The history has them where they are granted
("reserve", "resume") and where they end ("settle"). A draw changes the entry alone: a row for each draw would
store the order in which plans drew, which depends on how many records they drew
(docs/decisions/checkpoints.md).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from dpfewshot.budget.account import Details
from dpfewshot.budget.draws import DrawCounts
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.history import as_json, hash_of

LEASE: Final = "lease"
"""The member of an event's details that holds its draws."""

RESERVATION: Final = "reservation"
"""The member of a "reserve" event's details that identifies the entry outside of the ledger."""

RELEASED: Final = "line_sha256"
"""The member of a "release" event's details: `certificates.line_hash` of what was released."""

VERIFY: Final = "run dpfewshot ledger verify, which says what was changed"


def columns(draws: DrawCounts | None) -> dict[str, str | None]:
    """The entry's columns for its draws; empty if it counts none."""
    if draws is None:
        return {"blocks": None, "lease": None, "draws_hash": None}
    return {
        "blocks": json.dumps(draws.left),
        "lease": draws.lease,
        "draws_hash": hash_of(_named(draws)),
    }


def draws_of(row: Mapping[str, Any]) -> DrawCounts | None:
    """The draws in an entry's columns; None if it counts none.

    Raises:
        LedgerError: the columns do not match their hash.
    """
    if row["blocks"] is None and row["lease"] is None:
        return None
    try:
        draws = DrawCounts(tuple(json.loads(row["blocks"])), row["lease"])
        agrees = hash_of(_named(draws)) == row["draws_hash"]
    except (TypeError, ValueError):
        agrees = False
    if not agrees:
        raise LedgerError(f"the draws of entry {row['id']} were changed behind the ledger's back: {VERIFY}")
    return draws


def details_of(details: Details, draws: DrawCounts | None) -> str:
    """The details of a "reserve" event, as the history keeps them, with a new random identifier.

    An entry's number would count the plans that were cancelled, and a hash of the event would cover times.

    Raises:
        LedgerError: they are not strings and finite numbers, or use a name that the ledger reserves.
    """
    for name in (LEASE, RESERVATION):
        if name in details:
            raise LedgerError(f"an entry's details cannot be called {name!r}")
    return as_json({**details, **granted(draws), RESERVATION: secrets.token_hex(16)})


def plan_facts(details: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's public facts in a "reserve" event's details: without what the ledger added."""
    return {name: value for name, value in details.items() if name not in (LEASE, RESERVATION)}


def granted(draws: DrawCounts | None) -> dict[str, object]:
    """The details of an event that grants draws, or ends them."""
    return {} if draws is None else {LEASE: _named(draws)}


def draws_in(details: Mapping[str, Any]) -> DrawCounts | None:
    """The draws in an event's details; None if there are none."""
    match details.get(LEASE):
        case {"id": str(lease), "blocks": [*blocks]} if all(isinstance(left, int) for left in blocks):
            return DrawCounts(tuple(blocks), lease)
        case _:
            return None


def _named(draws: DrawCounts) -> dict[str, object]:
    return {"id": draws.lease, "blocks": list(draws.left)}
