"""Rows of the ledger's tables, and the queries that `store` makes."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, update

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.draws import NOT_COUNTED, DrawCounts
from dpfewshot.budget.tally import EMPTY, Tally
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import LEASE, columns, draws_in, draws_of
from dpfewshot.ledger.history import (
    CANCELLED,
    NOTHING_BEFORE,
    OPEN,
    RESERVE,
    RESERVED,
    RESUME,
    HistoryEvent,
    chained,
    hash_of,
    told,
)
from dpfewshot.ledger.tables import entries, history

Sums = defaultdict[str | None, Tally]
"""What each scope costs."""


def rows_of(connection: Connection, table: Table, condition: Any) -> list[dict[str, Any]]:
    """Rows in the order of their keys, as they are hashed."""
    found = connection.execute(select(table).where(condition).order_by(*table.primary_key))
    return [told(dict(row)) for row in found.mappings()]


def entry_of(connection: Connection, account: int, entry: int) -> dict[str, Any] | None:
    """An entry of an account; None if the number is unknown."""
    found = rows_of(connection, entries, (entries.c.id == entry) & (entries.c.account_id == account))
    return found[0] if found else None


def change_entry(connection: Connection, entry: int, **values: str | None) -> None:
    """Replace some columns of an entry."""
    connection.execute(update(entries).where(entries.c.id == entry).values(**values))


def open_draws(row: dict[str, Any] | None, entry: int) -> DrawCounts:
    """The draws of an entry that may still draw."""
    state = row["state"] if row else "never made"
    if row is None or state not in OPEN:
        raise LedgerError(f"entry {entry} was {state}: it draws no more")
    draws = draws_of(row)
    if draws is None:
        raise LedgerError(NOT_COUNTED)
    return draws


def grants_of(connection: Connection, account: int, entry: int) -> list[dict[str, Any]]:
    """The event that reserved an entry, and those that resumed it."""
    of_entry = (history.c.account_id == account) & (history.c.entry == entry)
    return rows_of(connection, history, of_entry & history.c.act.in_((RESERVE, RESUME)))


def granted_by(event: dict[str, Any]) -> DrawCounts | None:
    """The draws that an event granted."""
    return draws_in(json.loads(event["details"]))


def reserved_with(reserved: dict[str, Any], scope: str | None, cost: Amount, details: str) -> bool:
    """Whether the event that reserved an entry states this plan, under its hash."""
    told = json.loads(reserved["details"])
    told.pop(LEASE, None)
    return (
        hash_of(reserved) == reserved["hash"]
        and reserved["scope"] == scope
        and Amount(reserved["epsilon"], reserved["delta"]) == cost
        and told == json.loads(details)
    )


def add_entry(
    connection: Connection, account: int, scope: str | None, tally: Tally, draws: DrawCounts | None
) -> int:
    """Insert an entry and return its number."""
    values = {"account_id": account, "scope": scope, **tally.cost._asdict(), "renyi": tally.stated}
    statement = insert(entries).values(**values, state=RESERVED, **columns(draws)).returning(entries.c.id)
    return int(connection.execute(statement).scalar_one())


def sums_of(connection: Connection, account: int) -> tuple[Sums, int]:
    """What each scope has spent, and the number of entries."""
    counting = (entries.c.account_id == account) & (entries.c.state != CANCELLED)
    return sums_in(connection, entries, counting)


def sums_in(connection: Connection, table: Table, condition: Any) -> tuple[Sums, int]:
    """What rows cost together in each scope, and their number."""
    unbounded = table.c.renyi.is_(None)
    rows = connection.execute(
        select(
            table.c.scope,
            unbounded,
            func.sum(table.c.epsilon),
            func.sum(table.c.delta),
            func.sum(table.c.renyi),
            func.count(),
        )
        .where(condition)
        .group_by(table.c.scope, unbounded)
    )
    sums: Sums = defaultdict(lambda: EMPTY)
    rows_counted = 0
    for scope, without, epsilon, delta, renyi, count in rows:
        cost = Amount(int(epsilon), int(delta))  # PostgreSQL's sum is an exact Decimal
        sums[scope] = sums[scope].plus(Tally.of(cost, None if without else int(renyi)))
        rows_counted += count
    return sums, rows_counted


def last_entry(connection: Connection, account: int) -> tuple[str | None, Tally] | None:
    """The scope and the cost of the newest entry that was not given back; None before the first."""
    found = select(entries).where(entries.c.account_id == account, entries.c.state != CANCELLED)
    row = connection.execute(found.order_by(entries.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else (row.scope, Tally.of(Amount(row.epsilon, row.delta), row.renyi))


def tip_of(connection: Connection, account: int) -> tuple[int, str]:
    """The number and the hash of the last row of an account's history."""
    last = (
        select(history.c.number, history.c.hash)
        .where(history.c.account_id == account)
        .order_by(history.c.number.desc())
        .limit(1)
    )
    row = connection.execute(last).one_or_none()
    return (row.number, row.hash) if row else (0, NOTHING_BEFORE)


def record(connection: Connection, account: int, event: HistoryEvent) -> None:
    """Add a row to an account's history. The caller holds the account's lock, or just made it."""
    number, previous = tip_of(connection, account)
    connection.execute(insert(history).values(account_id=account, **chained(event, number + 1, previous)))
