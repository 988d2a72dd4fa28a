"""Whether an account agrees with the tip of its history: checked under the lock before anything is spent.

It recomputes the hashes of the last event, of its link to the event before, and of the events that made the
account and its present budget. The database sums what the history reserved. The rest of the chain is for
`verify`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.scopes import partition_after
from dpfewshot.budget.tally import EMPTY, Tally
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import VERIFY
from dpfewshot.ledger.history import (
    CANCEL,
    CHANGE_BUDGET,
    CREATE,
    NAME_UNIT,
    NOTHING_BEFORE,
    RESERVE,
    hash_of,
    told,
)
from dpfewshot.ledger.rows import sums_in
from dpfewshot.ledger.tables import accounts, history

Sums = Mapping[str | None, Tally]


def check_tip(connection: Connection, account: int, sums: Sums) -> None:
    """Refuse an account that was changed behind the ledger's back.

    Args:
        connection: in a transaction that holds the account's lock.
        account: its number.
        sums: what its entries cost together, for each scope.

    Raises:
        LedgerError: it does not agree with its history; nothing may be spent.
    """
    row = dict(connection.execute(select(accounts).where(accounts.c.id == account)).mappings().one())
    for problem in _problems(connection, row, sums):
        raise LedgerError(
            f"the account of {row['dataset']!r} does not agree with its history ({problem}), so nothing is "
            f"reserved: {VERIFY}"
        )


def _problems(connection: Connection, account: Mapping[str, Any], sums: Sums) -> Iterator[str]:
    of_account = history.c.account_id == account["id"]
    last = _events(connection, of_account, newest_first=True, limit=2)
    if not last:
        yield "it has none"
        return
    yield from _broken_link(*last)
    if connection.scalar(select(func.count()).where(of_account)) != last[0]["number"]:
        yield "an event is missing"
    named = _events(connection, of_account & (history.c.act == NAME_UNIT), newest_first=True, limit=1)
    created = _events(connection, of_account & (history.c.act == CREATE), limit=1)
    yield from _other_settings(account, *created, named=named)
    budgets = of_account & history.c.act.in_((CREATE, CHANGE_BUDGET))
    yield from _other_budget(account, *_events(connection, budgets, newest_first=True, limit=1))
    scoped = of_account & (history.c.act == RESERVE) & history.c.scope.is_not(None)
    first, latest = (
        _events(connection, scoped, limit=1),
        _events(connection, scoped, newest_first=True, limit=1),
    )
    yield from _other_partition(account, [*first, *latest])
    if _reserved(connection, of_account) != _counted(sums):
        yield "the entries' costs are not those that were reserved"


def _broken_link(last: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Iterator[str]:
    number, previous = (0, NOTHING_BEFORE) if before is None else (before["number"], before["hash"])
    if hash_of(last) != last["hash"] or (last["number"], last["previous"]) != (number + 1, previous):
        yield "its last event was changed, or does not follow the event before it"


def _other_settings(
    account: Mapping[str, Any],
    created: Mapping[str, Any] | None = None,
    *,
    named: list[dict[str, Any]],
) -> Iterator[str]:
    if (
        created is None
        or created["number"] != 1
        or any(hash_of(event) != event["hash"] for event in (created, *named))
    ):
        yield "the event that made the account was changed"
        return
    settings = {"renyi_order": None} | json.loads(created["details"])
    for event in named:
        settings |= json.loads(event["details"])
    if any(account[name] != value for name, value in settings.items()):
        yield "the account was made with other settings"


def _other_budget(account: Mapping[str, Any], latest: Mapping[str, Any] | None = None) -> Iterator[str]:
    if latest is None or hash_of(latest) != latest["hash"] or _amount(latest) != _amount(account):
        yield "the budget is another one"


def _other_partition(account: Mapping[str, Any], scoped: list[dict[str, Any]]) -> Iterator[str]:
    partition = None
    for event in scoped:
        partition = partition_after(partition, event["scope"])
    if account["partition"] != partition:
        yield "the partition is another one"


def _events(
    connection: Connection, which: ColumnElement[bool], *, newest_first: bool = False, limit: int
) -> list[dict[str, Any]]:
    """Events as they were hashed."""
    order = history.c.number.desc() if newest_first else history.c.number
    found = connection.execute(select(history).where(which).order_by(order).limit(limit)).mappings()
    return [told(dict(row)) for row in found]


def _reserved(connection: Connection, of_account: ColumnElement[bool]) -> Sums:
    """What the history reserved and did not give back, for each scope that has any."""
    given_back = select(history.c.entry).where(of_account & (history.c.act == CANCEL))
    reserved = of_account & (history.c.act == RESERVE) & history.c.entry.not_in(given_back)
    return _counted(sums_in(connection, history, reserved)[0])


def _counted(sums: Sums) -> Sums:
    """The scopes that cost anything."""
    return {scope: tally for scope, tally in sums.items() if tally != EMPTY}


def _amount(row: Mapping[str, Any]) -> Amount:
    return Amount(row["epsilon"], row["delta"])
