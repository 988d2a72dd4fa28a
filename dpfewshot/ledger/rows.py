"""Rows of the ledger's tables, and the queries that `store` makes."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select, update

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.draws import NOT_COUNTED, DrawCounts
from dpfewshot.budget.tally import Tally
from dpfewshot.budget.totals import Totals
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import columns, draws_in, draws_of, plan_facts
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


def events_of(connection: Connection, account: int, entry: int) -> list[dict[str, Any]]:
    """All events of an entry."""
    return rows_of(connection, history, (history.c.account_id == account) & (history.c.entry == entry))


def grants_of(connection: Connection, account: int, entry: int) -> list[dict[str, Any]]:
    """The event that reserved an entry, and those that resumed it."""
    of_entry = (history.c.account_id == account) & (history.c.entry == entry)
    return rows_of(connection, history, of_entry & history.c.act.in_((RESERVE, RESUME)))


def count_of(connection: Connection, account: int, entry: int, act: str, details: str) -> int:
    """How many events of an entry have this act and these details."""
    of_entry = (history.c.account_id == account) & (history.c.entry == entry)
    alike = of_entry & (history.c.act == act) & (history.c.details == details)
    return int(connection.execute(select(func.count()).where(alike)).scalar_one())


def granted_by(event: dict[str, Any]) -> DrawCounts | None:
    """The draws that an event granted."""
    return draws_in(json.loads(event["details"]))


def reserved_with(reserved: dict[str, Any], scope: str | None, cost: Amount, details: str) -> bool:
    """Whether the event that reserved an entry states this plan, under its hash."""
    told = plan_facts(json.loads(reserved["details"]))
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


def totals_in_entries(connection: Connection, account: int) -> Totals:
    """The totals of an account, added up from its entries."""
    without = entries.c.renyi.is_(None)
    sums = [func.sum(column) for column in (entries.c.epsilon, entries.c.delta, entries.c.renyi)]
    rows = connection.execute(
        select(entries.c.scope, without, *sums, func.count())
        .where((entries.c.account_id == account) & (entries.c.state != CANCELLED))
        .group_by(entries.c.scope, without)
    )
    totals = Totals()
    for scope, unbounded, epsilon, delta, renyi, count in rows:
        cost = Amount(int(epsilon), int(delta))  # PostgreSQL's sum is an exact Decimal
        totals.add(scope, Tally.of(cost, None if unbounded else int(renyi)), count)
    return totals


def last_entry(connection: Connection, account: int) -> tuple[str | None, Tally] | None:
    """The scope and the cost of the newest entry that was not given back; None before the first."""
    found = select(entries).where(entries.c.account_id == account, entries.c.state != CANCELLED)
    row = connection.execute(found.order_by(entries.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else (row.scope, Tally.of(Amount(row.epsilon, row.delta), row.renyi))


def last_events(connection: Connection, account: int, limit: int) -> list[dict[str, Any]]:
    """The last rows of an account's history as they were hashed, the newest first."""
    of_account = select(history).where(history.c.account_id == account)
    found = connection.execute(of_account.order_by(history.c.number.desc()).limit(limit)).mappings()
    return [told(dict(row)) for row in found]


def append(connection: Connection, account: int, event: HistoryEvent) -> None:
    """Add a row to an account's history; only `totals.record` calls this."""
    last = last_events(connection, account, 1)
    number, previous = (last[0]["number"], last[0]["hash"]) if last else (0, NOTHING_BEFORE)
    connection.execute(insert(history).values(account_id=account, **chained(event, number + 1, previous)))
