"""The store of an account in a SQL database: each transaction makes one change with its rows of history.

The account's row holds its running totals and the tip of its history, under a **seal**: a hash over the row.
Every event replaces it. Totals without the right seal are never used: they are added up again from the
history. Before anything is spent the account is compared with its history. A short one is verified as a
whole. Of a longer one only the last event, its link to the event before and the seal are, in constant time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Select, Table, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from dpfewshot.account.amounts import Amount
from dpfewshot.account.database import Database
from dpfewshot.account.draws import BEGUN, DrawCounts, columns, draws_of
from dpfewshot.account.history import (
    CANCELLED,
    CREATE,
    NOTHING_BEFORE,
    RESERVE,
    RESERVED,
    VERIFY,
    HistoryEvent,
    as_json,
    chained,
    hash_if_readable,
)
from dpfewshot.account.memory import AccountSettings, Entry
from dpfewshot.account.rule import Rule, Standing, Tally, Totals
from dpfewshot.account.scopes import partition_of
from dpfewshot.account.tables import accounts, create_tables, entries, history, is_there
from dpfewshot.account.verification import Row, Snapshot, amount_of, check, tally_of
from dpfewshot.errors import LedgerError, RunTakenOver
from dpfewshot.runtime.forking import cached_property

WHOLE: Final = 100
"""Histories of up to this many events are verified as a whole."""

UNSEALED: Final = ""
"""The seal of a row whose totals are not known."""


class SqlLedger:
    """The accounts of the database at a URL. The first one creates the tables if they are missing."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.name = self.database.name
        self._is_there = is_there(self.database)

    @property
    def is_there(self) -> bool:
        """Whether there are tables; another process may have created them since this was opened."""
        self._is_there = self._is_there or is_there(self.database)
        return self._is_there

    def datasets(self) -> list[str]:
        """The names of all accounts, sorted."""
        if not self.is_there:
            return []
        with self.database.read() as connection:
            return sorted(connection.scalars(select(accounts.c.dataset)))

    def find(self, dataset: str) -> SqlStore | None:
        """The account of a data set."""
        if not self.is_there:
            return None
        with self.database.read() as connection:
            settings = _found(connection, dataset)
        return None if settings is None else SqlStore(self.database, settings)

    def find_or_add(self, limit: Amount, wanted: AccountSettings) -> SqlStore:
        """The account of a data set: a new one, or the one that another process created first."""
        words: Row = {name: getattr(wanted, name) for name in ("dataset", "relation", "unit", "parallel")}
        order = {} if wanted.rule.order is None else {"renyi_order": wanted.rule.order}
        dialect = sqlite if self.database.is_sqlite else postgresql
        nothing = {"sums": "[]", "events": 0, "chain_tip": NOTHING_BEFORE, "seal": UNSEALED}
        statement = (
            dialect.insert(accounts)
            .on_conflict_do_nothing(index_elements=[accounts.c.dataset])
            .values(**words, **order, **limit._asdict(), **nothing)
            .returning(accounts.c.id)
        )
        if not self.is_there:
            create_tables(self.database)
            self._is_there = True
        with self.database.write() as connection:
            number = connection.execute(statement).scalar_one_or_none()
            settings = _found(connection, words["dataset"])
            if settings is None:
                raise LedgerError(f"{self.name} did not keep the account of {wanted.dataset!r}")
            if number is not None:
                transaction = SqlTransaction(connection, settings)
                transaction.lock()
                transaction.record(CREATE, details=as_json({**words, **order}), totals=Totals(), limit=limit)
        return SqlStore(self.database, settings)


class SqlStore:
    """One account of a database. Threads, processes and forked children may use it at the same time."""

    durable = True

    def __init__(self, database: Database, settings: AccountSettings) -> None:
        self.settings = settings
        self._database = database

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process opens the ledger at the same address. The pickle holds its password."""
        return _reopened, (self._database.address, self.settings)

    @contextmanager
    def change(self) -> Iterator[SqlTransaction]:
        """Begin a change: on disk when this is left without an error, and else nothing of it."""
        with self._database.write() as connection:
            yield SqlTransaction(connection, self.settings)

    def entry_of(self, lease: str) -> int | None:
        """The number of the entry with this lease."""
        having = (entries.c.account_id == self.settings.number) & (entries.c.lease == lease)
        with self._database.read() as connection:
            return connection.scalars(select(entries.c.id).where(having)).first()

    def run_of(self, plan: str, run: str | None, stratum: int | None) -> list[Entry]:
        """See `Account.run_of`. Cancelled entries have no run."""
        mine = (entries.c.account_id == self.settings.number) & (entries.c.plan == plan)
        newest = select(entries.c.run).where(mine).order_by(entries.c.id.desc()).limit(1).scalar_subquery()
        query = select(entries).where(mine, entries.c.run == (newest if run is None else run))
        if stratum is not None:
            query = query.where(entries.c.stratum == stratum)
        with self._database.read() as connection:
            return [_entry(row) for row in _rows(connection, query.order_by(entries.c.id))]

    def newest_plan(self, scope: str) -> Mapping[str, Any]:
        """See `Account.changed_records`. Empty without a plan over the scope."""
        of_scope = _of(history, self.settings.number).where(
            history.c.act == RESERVE, history.c.scope == scope
        )
        with self._database.read() as connection:
            found = _rows(connection, of_scope.order_by(history.c.number.desc()).limit(1))
        return json.loads(found[0]["details"]) if found else {}

    def standing(self) -> Standing:
        """The account at this moment."""
        number = self.settings.number
        newest = _of(entries, number).where(entries.c.state != CANCELLED).order_by(entries.c.id.desc())
        with self._database.read() as connection:
            row = _row(connection, self.settings)
            totals = sealed_totals(row) or totals_in_entries(connection, number)
            last = _rows(connection, newest.limit(1))
            [tip] = _last_events(connection, number, 1) or [{"hash": NOTHING_BEFORE}]
        found = (last[0]["scope"], tally_of(last[0])) if last else None
        return Standing(self.settings.rule, amount_of(row), totals, row["partition"], found, tip["hash"])

    def snapshot(self) -> Snapshot:
        """Everything that is stored, at this moment."""
        with self._database.read() as connection:
            return _snapshot(connection, _row(connection, self.settings))


class SqlTransaction:
    """One change of an account. It begins with `lock`, `checked` or `entry`, which lock the account's row."""

    def __init__(self, connection: Connection, settings: AccountSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._row: Row = {}  # the account's, as it was read

    # ---- what is read

    def lock(self) -> None:
        """Lock the account, which must be the one that was opened."""
        self._row = _row(self._connection, self._settings, lock=True)

    def checked(self) -> Standing:
        """Lock the account and return it. Refuses one that does not agree with its history."""
        self.lock()
        totals = self.totals
        if totals is None or not self._is_long_and_linked():
            found = check(_snapshot(self._connection, self._row))
            if not found.ok:
                raise LedgerError(
                    f"the account of {found.dataset!r} does not agree with its history "
                    f"({found.problems[0]}), so nothing is reserved: {VERIFY}"
                )
            totals = found.totals
        return Standing(self._settings.rule, amount_of(self._row), totals, self._row["partition"])

    def entry(self, number: int) -> Entry | None:
        """Lock the account and return one of its entries; None if it has no such entry."""
        self.lock()
        having = entries.c.account_id == self._settings.number, entries.c.id == number
        found = _rows(self._connection, select(entries).where(*having))
        return _entry(found[0]) if found else None

    def events(self, entry: int) -> list[Row]:
        """The events of an entry in their order, unchanged."""
        query = _of(history, self._settings.number).where(history.c.entry == entry).order_by(history.c.number)
        rows = _rows(self._connection, query)
        if any(hash_if_readable(row) != row["hash"] for row in rows):
            raise LedgerError(f"entry {entry} was changed behind the ledger's back: {VERIFY}")
        return rows

    # ---- what is written

    def add(self, scope: str | None, tally: Tally, draws: DrawCounts) -> Entry:
        """A new reserved entry, which counts once its event is recorded.

        `RunTakenOver` if its run, which has no entry yet, was to be the plan's first and is not.
        """
        if draws.key is not None and draws.key.first:
            mine = (entries.c.account_id == self._settings.number) & (entries.c.plan == draws.key.plan)
            runs = self._connection.scalars(select(entries.c.run).where(mine)).all()
            if runs and draws.key.run not in runs:
                raise RunTakenOver(BEGUN)
        values = {"account_id": self._settings.number, "scope": scope, **tally.cost._asdict()}
        statement = insert(entries).values(**values, renyi=tally.stated, state=RESERVED, **columns(draws))
        number = self._connection.execute(statement.returning(entries.c.id)).scalar_one()
        return Entry(number, scope, tally, RESERVED, draws)

    def replace(self, entry: Entry) -> None:
        """Replace an entry's state and draws."""
        values = {"state": entry.state, **columns(entry.draws)}
        self._connection.execute(update(entries).where(entries.c.id == entry.number).values(**values))

    def record(
        self,
        act: str,
        entry: Entry | None = None,
        details: str = "{}",
        *,
        totals: Totals | None = None,
        limit: Amount | None = None,
    ) -> None:
        """Add an event to the history, and seal the account's row again.

        Args:
            entry: that it happened to; None for events of the account.
            totals: what the entries cost from now on; None if the event changes nothing in that.
            limit: the budget from now on; None if the event does not change it.
        """
        number, previous = self._tip()
        reserved = entry.tally if entry is not None and act == RESERVE else None
        amount = limit if reserved is None else reserved.cost
        event = HistoryEvent(
            act=act,
            entry=None if entry is None else entry.number,
            scope=None if entry is None else entry.scope,
            **({} if amount is None else amount._asdict()),
            renyi=reserved and reserved.stated,
            details=details,
        )
        row = chained(event, number + 1, previous)
        after = {**self._row, "events": row["number"], "chain_tip": row["hash"]}
        if reserved is not None and after["partition"] is None and event.scope is not None:
            after["partition"] = partition_of(event.scope)
        if totals is not None:
            after["sums"] = json.dumps(totals.rows())
        if limit is not None:
            after |= limit._asdict()
        known = totals is not None or self.totals is not None
        after["seal"] = seal_of(after) if known else UNSEALED
        changed = {name: value for name, value in after.items() if value != self._row[name]}
        account = self._settings.number
        self._connection.execute(insert(history).values(account_id=account, **row))
        self._connection.execute(update(accounts).where(accounts.c.id == account).values(**changed))
        self._row = after  # what the next event of this change follows

    @cached_property
    def totals(self) -> Totals | None:
        """What the entries cost; None if the totals lack their seal."""
        return sealed_totals(self._row)

    def _tip(self) -> tuple[int, str]:
        """The number and the hash of the last event."""
        if self.totals is not None:
            return self._row["events"], self._row["chain_tip"]
        last = _last_events(self._connection, self._settings.number, 1)
        return (last[0]["number"], last[0]["hash"]) if last else (0, NOTHING_BEFORE)

    def _is_long_and_linked(self) -> bool:
        """Whether it has more than `WHOLE` events, and the last one is unchanged and linked."""
        if self._row["events"] <= WHOLE:
            return False
        match _last_events(self._connection, self._settings.number, 2):
            case [last, before]:
                return (
                    (last["number"], last["hash"]) == (self._row["events"], self._row["chain_tip"])
                    and (last["number"], last["previous"]) == (before["number"] + 1, before["hash"])
                    and last["hash"] == hash_if_readable(last)
                )
        return False


def sealed_totals(row: Mapping[str, Any]) -> Totals | None:
    """The totals in an account's row; None if the row was changed since it was sealed."""
    return Totals.of_rows(json.loads(row["sums"])) if row["seal"] == seal_of(row) else None


def seal_of(row: Mapping[str, Any]) -> str | None:
    """The seal of an account's row."""
    return hash_if_readable({name: value for name, value in row.items() if name != "seal"})


def totals_in_entries(connection: Connection, account: int) -> Totals:
    """The totals of an account, added up from its entries."""
    totals = Totals()
    for row in _rows(connection, _of(entries, account).where(entries.c.state != CANCELLED)):
        totals.add(row["scope"], tally_of(row))
    return totals


def _row(connection: Connection, settings: AccountSettings, *, lock: bool = False) -> Row:
    """The row of an opened account. A ledger that took the place of its own may have another at its number.

    Args:
        lock: to change the account, whose settings must then be those that it was opened with.
    """
    opened = (accounts.c.id == settings.number) & (accounts.c.dataset == settings.dataset)
    query = select(accounts).where(opened)
    found = _rows(connection, query.with_for_update() if lock else query)
    if not found or (lock and _settings(found[0]) != settings):
        raise LedgerError(
            f"the account {settings.dataset!r} is not as it was opened: its ledger was replaced, or it was "
            f"tampered with. Open it again, or {VERIFY}"
        )
    return found[0]


def _found(connection: Connection, dataset: str) -> AccountSettings | None:
    found = _rows(connection, select(accounts).where(accounts.c.dataset == dataset))
    return _settings(found[0]) if found else None


def _settings(row: Mapping[str, Any]) -> AccountSettings:
    named = {name: row[name] for name in ("relation", "unit", "dataset")}
    return AccountSettings(Rule(row["renyi_order"]), bool(row["parallel"]), **named, number=row["id"])


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(row["id"], row["scope"], tally_of(row), row["state"], draws_of(row))


def _of(table: Table, account: int) -> Select[Any]:
    """The rows of an account, as they are hashed and exported: without its number."""
    kept = [column for column in table.c if column.name != "account_id"]
    return select(*kept).where(table.c.account_id == account)


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _last_events(connection: Connection, account: int, limit: int) -> list[Row]:
    """The last rows of an account's history, the newest first."""
    return _rows(connection, _of(history, account).order_by(history.c.number.desc()).limit(limit))


def _snapshot(connection: Connection, row: Row) -> Snapshot:
    """Everything that is stored of the account with this row."""
    plans = _rows(connection, _of(entries, row["id"]).order_by(entries.c.id))
    events = _rows(connection, _of(history, row["id"]).order_by(history.c.number))
    return Snapshot(row, plans, events, sealed_totals(row))


_database_at = functools.lru_cache(maxsize=8)(Database)  # one for each ledger that pickled accounts name


def _reopened(address: str, settings: AccountSettings) -> SqlStore:
    return SqlStore(_database_at(address), settings)
