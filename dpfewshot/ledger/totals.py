"""An account's running totals, so that a reservation need not add up all entries.

They are stored beside the account under a **seal**: a hash over the totals, the account's row and the hash of
the last event. Totals without the right seal are never used. Every event replaces the seal, so an event of a
package that knows no totals, or a changed row, breaks it; the totals are then added up again from the history
(`tip`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update

from dpfewshot.budget.totals import Totals
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import VERIFY
from dpfewshot.ledger.history import RESERVE, HistoryEvent
from dpfewshot.ledger.rows import append, last_events, rows_of
from dpfewshot.ledger.tables import accounts, entries, history, running_totals
from dpfewshot.ledger.verification import Snapshot, hash_if_readable, tally_of


def totals_of(connection: Connection, account: int) -> Totals | None:
    """The totals of an account; None if they are missing or their seal is not that of the account now."""
    found = connection.execute(
        select(running_totals).where(running_totals.c.account_id == account)
    ).one_or_none()
    if found is None or found.seal != _seal(connection, account, found.sums):
        return None
    return Totals.of_rows(json.loads(found.sums))


def store_totals(connection: Connection, account: int, totals: Totals) -> None:
    """Replace an account's totals, under the seal of the account as it is now."""
    sums = json.dumps(totals.rows())
    values = {"sums": sums, "seal": _seal(connection, account, sums)}
    of_account = running_totals.c.account_id == account
    if not connection.execute(update(running_totals).where(of_account).values(**values)).rowcount:
        connection.execute(insert(running_totals).values(account_id=account, **values))


def without_entry(totals: Totals | None, entry: int, events: Sequence[Mapping[str, Any]]) -> Totals | None:
    """The totals once an entry is cancelled.

    What is cancelled gives budget back, and an entry's state is one word in a row. So its history decides.

    Args:
        totals: with the entry; None if they are unknown.
        entry: its number.
        events: all of the entry's.

    Raises:
        LedgerError: they are not those of a plan that was reserved and nothing else.
    """
    if [event["act"] for event in events] != [RESERVE] or hash_if_readable(events[0]) != events[0]["hash"]:
        raise LedgerError(f"entry {entry} was changed behind the ledger's back: {VERIFY}")
    if totals is not None:
        totals.remove(events[0]["scope"], tally_of(events[0]))
    return totals


def record(connection: Connection, account: int, event: HistoryEvent, totals: Totals | None) -> None:
    """Add an event to an account's history. The caller holds the account's lock, or just made it.

    Args:
        connection: in a write transaction, in which the account's row is as the event leaves it.
        account: its number.
        event: what happened.
        totals: after the event; None if they are unknown, so that the next reservation adds them up.
    """
    append(connection, account, event)
    if totals is not None:
        store_totals(connection, account, totals)


def snapshot_of(connection: Connection, account: int) -> Snapshot:
    """Everything that is stored of an account."""
    [row] = rows_of(connection, accounts, accounts.c.id == account)
    return Snapshot(
        account=row,
        entries=rows_of(connection, entries, entries.c.account_id == account),
        history=rows_of(connection, history, history.c.account_id == account),
        totals=totals_of(connection, account),
    )


def _seal(connection: Connection, account: int, sums: str) -> str | None:
    [row] = rows_of(connection, accounts, accounts.c.id == account)
    [tip] = last_events(connection, account, 1) or [{"hash": None}]
    return hash_if_readable({"account": row, "sums": sums, "tip": tip["hash"]})
