"""The ledger's transactions: each makes one change together with its row of history."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.draws import COUNTED, WHAT_TO_DO, DrawCounts
from dpfewshot.budget.rule import Rule
from dpfewshot.budget.scopes import check_partition, partition_after
from dpfewshot.budget.tally import Tally
from dpfewshot.budget.totals import Totals
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import RELEASED, RESERVATION, VERIFY, columns, draws_of, granted
from dpfewshot.ledger.database import Database
from dpfewshot.ledger.history import (
    CANCEL,
    CHANGE_BUDGET,
    CHARGE,
    CHARGED,
    CREATE,
    MOVES,
    NOTHING_BEFORE,
    OPEN,
    PAID,
    RELEASE,
    RESERVE,
    RESERVED,
    RESUME,
    SETTLE,
    SETTLED,
    as_json,
    event_now,
)
from dpfewshot.ledger.rows import (
    add_entry,
    change_entry,
    count_of,
    entry_of,
    events_of,
    granted_by,
    grants_of,
    last_entry,
    last_events,
    open_draws,
    reserved_with,
    totals_in_entries,
)
from dpfewshot.ledger.schema import create_tables, is_there
from dpfewshot.ledger.standing import Standing
from dpfewshot.ledger.stored_account import StoredAccount, change_account, find, lock
from dpfewshot.ledger.tables import accounts
from dpfewshot.ledger.tip import check_tip
from dpfewshot.ledger.totals import record, snapshot_of, totals_of, without_entry
from dpfewshot.ledger.verification import Snapshot


class Store:
    """The tables at a URL. The first account creates them if they are missing.

    Raises:
        LedgerError: the database cannot be used.
        MissingExtra: its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.name = self._database.place.name
        self._is_there = is_there(self._database)

    @property
    def address(self) -> str:
        """The URL, with its password."""
        return self._database.place.address

    @property
    def is_there(self) -> bool:
        """Whether there is a ledger; another process may have created it since this was opened."""
        self._is_there = self._is_there or is_there(self._database)
        return self._is_there

    def close(self) -> None:
        """Refuse further calls."""
        self._database.close()

    def datasets(self) -> list[str]:
        """The names of all accounts, sorted."""
        if not self.is_there:
            return []
        with self._database.read() as connection:
            return sorted(connection.scalars(select(accounts.c.dataset)))

    def find(self, dataset: str) -> StoredAccount | None:
        """The account of a data set."""
        if not self.is_there:
            return None
        with self._database.read() as connection:
            return find(connection, dataset)

    def find_or_add(
        self, dataset: str, limit: Amount, relation: str, unit: str | None, *, parallel: bool, rule: Rule
    ) -> StoredAccount:
        """The account of a data set: a new one, or the one that another process created first."""
        settings: dict[str, Any] = {
            "dataset": dataset,
            "relation": relation,
            "unit": unit,
            "parallel": parallel,
            **({} if rule.order is None else {"renyi_order": rule.order}),
        }
        event = event_now(CREATE, amount=limit, details=as_json(settings))
        dialect = sqlite if self._database.place.is_sqlite else postgresql
        statement = (
            dialect.insert(accounts)
            .on_conflict_do_nothing(index_elements=[accounts.c.dataset])
            .values(
                **settings,
                epsilon=limit.epsilon,
                delta=limit.delta,
                created_at=event.at,
                package_version=event.package_version,
            )
            .returning(accounts.c.id)
        )
        if not self.is_there:
            create_tables(self._database)
            self._is_there = True
        with self._database.write() as connection:
            number = connection.execute(statement).scalar_one_or_none()
            if number is not None:
                record(connection, number, event, Totals())
            found = find(connection, dataset)
        if found is None:
            raise LedgerError(f"{self.name} did not keep the account of {dataset!r}")
        return found

    def standing(self, account: StoredAccount) -> Standing:
        """What is spent of an account now."""
        with self._database.read() as connection:
            row = connection.execute(select(accounts).where(accounts.c.id == account.number)).one()
            totals = totals_of(connection, account.number) or totals_in_entries(connection, account.number)
            last = last_entry(connection, account.number)
            [tip] = last_events(connection, account.number, 1) or [{"hash": NOTHING_BEFORE}]
        limit = Amount(row.epsilon, row.delta)
        return Standing(account.rule, limit, totals, last, row.partition, tip["hash"])

    def snapshot(self, account: StoredAccount) -> Snapshot:
        """Everything that is stored of an account, at one moment."""
        with self._database.read() as connection:
            return snapshot_of(connection, account.number)

    def reservation_of(self, account: StoredAccount, entry: int) -> str:
        """The random identifier of an entry.

        Raises:
            LedgerError: the history has none.
        """
        with self._database.read() as connection:
            grants = grants_of(connection, account.number, entry)
        if not grants:
            raise LedgerError(f"no event reserved entry {entry}: {VERIFY}")
        return str(json.loads(grants[0]["details"])[RESERVATION])

    def change_budget(self, account: StoredAccount, limit: Amount) -> None:
        """Replace the limit.

        Raises:
            LedgerError: the account was tampered with.
        """
        with self._database.write() as connection:
            lock(connection, account)
            totals = check_tip(connection, account.number)
            change_account(connection, account.number, epsilon=limit.epsilon, delta=limit.delta)
            record(connection, account.number, event_now(CHANGE_BUDGET, amount=limit), totals)

    def reserve(
        self,
        account: StoredAccount,
        scope: str | None,
        tally: Tally,
        details: str,
        draws: DrawCounts | None,
    ) -> int:
        """Add an entry if its cost fits, and return its number.

        Raises:
            BudgetExceeded: it does not fit.
            LedgerError: the scope is a part of another partition, or the account was tampered with.
        """
        scope = scope if account.parallel else None
        if draws is not None:
            draws.check()
        with self._database.write() as connection:
            limit, partition = lock(connection, account)
            if scope is not None:
                check_partition(partition, scope)
            totals = check_tip(connection, account.number)
            tally = account.rule.admitted(totals.sums, scope, tally, limit)
            if scope is not None and partition != partition_after(partition, scope):
                change_account(connection, account.number, partition=partition_after(partition, scope))
            entry = add_entry(connection, account.number, scope, tally, draws)
            event = event_now(
                RESERVE, entry=entry, scope=scope, amount=tally.cost, renyi=tally.stated, details=details
            )
            totals.add(scope, tally)
            record(connection, account.number, event, totals)
            return entry

    def draw(self, account: StoredAccount, entry: int, lease: str, part: int, count: int = 1) -> int:
        """Take draws off a disjoint part of an entry, as many as it has, and return how many.

        The first draw charges the entry.

        Raises:
            BudgetExceeded: the part has no draw left.
            LedgerError: there is no such entry, it draws no more, or another run holds its lease.
        """
        with self._database.write() as connection:
            lock(connection, account)
            row = entry_of(connection, account.number, entry)
            before = open_draws(row, entry)
            draws = before.after(entry, lease, part, count)
            change_entry(connection, entry, state=CHARGED, **columns(draws))
            if row is not None and row["state"] == RESERVED:
                event = event_now(CHARGE, entry=entry, scope=row["scope"])
                record(connection, account.number, event, totals_of(connection, account.number))
        return before.left[part] - draws.left[part]

    def record_release(self, account: StoredAccount, entry: int, lease: str, digest: str, times: int) -> None:
        """Add an event that an entry released a demonstration, unless the history has `times` of them.

        Raises:
            LedgerError: there is no such entry, it never drew, or another run holds its lease.
        """
        details = as_json({RELEASED: digest})
        with self._database.write() as connection:
            lock(connection, account)
            row = entry_of(connection, account.number, entry)
            draws = draws_of(row) if row else None
            if row is None or draws is None or row["state"] not in PAID:
                raise LedgerError(f"entry {entry} was never charged: it releases nothing")
            if draws.lease != lease:
                raise LedgerError(f"entry {entry} was resumed by another run: this run releases no more")
            if count_of(connection, account.number, entry, RELEASE, details) < times:
                event = event_now(RELEASE, entry=entry, scope=row["scope"], details=details)
                record(connection, account.number, event, totals_of(connection, account.number))

    def give_back(self, account: StoredAccount, entry: int, lease: str, part: int, count: int) -> None:
        """Add draws that were taken and not made to those left. Nothing changes if the lease was replaced.

        Raises:
            LedgerError: there is no such entry, it draws no more, or that many were not taken.
        """
        with self._database.write() as connection:
            lock(connection, account)
            draws = open_draws(entry_of(connection, account.number, entry), entry)
            granted = granted_by(grants_of(connection, account.number, entry)[-1])
            if draws.lease == lease and granted is not None:
                change_entry(connection, entry, **columns(draws.given_back(part, count, granted)))

    def resume(
        self,
        account: StoredAccount,
        entry: int,
        plan: tuple[str | None, Amount, str],
        known: Collection[str],
        told: DrawCounts,
    ) -> tuple[int, ...]:
        """Replace an entry's lease, which must be one of `known`, and return the draws left.

        Args:
            account: the entry's account.
            entry: its number.
            plan: scope, cost and details, which must be those that it was reserved with.
            known: leases of the checkpoint.
            told: the draws that the checkpoint leaves, and the new lease.

        Raises:
            LedgerError: the checkpoint is stale, or names another entry.
        """
        scope, cost, details = plan
        told.check()
        with self._database.write() as connection:
            lock(connection, account)
            totals = check_tip(connection, account.number)
            row = entry_of(connection, account.number, entry)
            grants = grants_of(connection, account.number, entry)
            if not grants or not {found.lease for found in map(granted_by, grants) if found} & set(known):
                raise LedgerError(f"{self.name} did not grant the draws of this checkpoint: {WHAT_TO_DO}")
            before = draws_of(row) if row else None
            if row is None or before is None:
                raise LedgerError(f"entry {entry} was changed behind the ledger's back: {VERIFY}")
            left = before.resumed(entry, known, told)
            if row["state"] not in OPEN and (row["state"] != SETTLED or any(left.left)):
                raise LedgerError(f"entry {entry} was {row['state']}: {WHAT_TO_DO}")
            if not reserved_with(grants[0], scope if account.parallel else None, cost, details):
                raise LedgerError(f"entry {entry} was reserved for another plan: {WHAT_TO_DO}")
            state = CHARGED if row["state"] in OPEN else SETTLED
            change_entry(connection, entry, state=state, **columns(left))
            resumed = {**granted(left), "previous": before.lease, "reserve": grants[0]["hash"]}
            event = event_now(RESUME, entry=entry, scope=grants[0]["scope"], details=as_json(resumed))
            record(connection, account.number, event, totals)
        return left.left

    def move(self, account: StoredAccount, entry: int, act: str, lease: str | None = None) -> None:
        """Charge, settle or cancel an entry. Nothing changes if that was done already.

        Args:
            account: the entry's account.
            entry: its number.
            act: one of `MOVES`.
            lease: nothing changes if the entry has another one.

        Raises:
            LedgerError: there is no such entry, or its state does not allow it. Cancelling an entry that may
                have drawn does nothing and raises nothing.
        """
        before, after = MOVES[act]
        with self._database.write() as connection:
            lock(connection, account)
            row = entry_of(connection, account.number, entry)
            state = row["state"] if row else "never made"
            draws = draws_of(row) if row else None
            if draws is not None and lease not in (None, draws.lease):
                return
            if act == CHARGE and draws is not None:
                raise LedgerError(COUNTED)
            if row is not None and state == before:
                totals = totals_of(connection, account.number)
                if act == CANCEL:
                    totals = without_entry(totals, entry, events_of(connection, account.number, entry))
                change_entry(connection, entry, state=after)
                details = as_json(granted(draws) if act == SETTLE else {})
                event = event_now(act, entry=entry, scope=row["scope"], details=details)
                record(connection, account.number, event, totals)
            elif act != CANCEL and state != after:
                raise LedgerError(f"entry {entry} was {state}: it cannot be {after}")
