"""What a store keeps of an account, and the store in memory, which ends with its process.

Its methods are those of `sql.SqlStore` and `sql.SqlTransaction`, which say what they do.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, SupportsIndex

from dpfewshot.account.amounts import Amount
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.history import CANCELLED, RESERVE, RESERVED
from dpfewshot.account.rule import Rule, Standing, Tally, Totals
from dpfewshot.account.scopes import partition_of
from dpfewshot.errors import LedgerError
from dpfewshot.runtime.forking import Home

ELSEWHERE: Final = 'open one of a ledger, dpfewshot.open_account("sqlite:///budget.db", NAME)'


@dataclass(frozen=True)
class AccountSettings:
    """What an account is created with and keeps.

    Attributes:
        rule: how its plans count.
        parallel: whether plans over different strata of the recorded partition compose in parallel, so that
            the greatest counts. False: every plan counts for the whole data set.
        relation: of every plan; None for an account in memory, which learns it from `bind`.
        unit: the column that names whom a record belongs to; None as above, or where a record is a unit.
        dataset: its name in its ledger; None for an account in memory.
        number: in its ledger.
    """

    rule: Rule
    parallel: bool = True
    relation: str | None = None
    unit: str | None = None
    dataset: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Entry:
    """A reserved plan as a store keeps it.

    Attributes:
        scope: the stratum that it draws from; None for the whole data set.
        state: "reserved", "charged", "settled" or "cancelled".
    """

    number: int
    scope: str | None
    tally: Tally
    state: str
    draws: DrawCounts


class MemoryStore:
    """An account in the memory of one process: itself the transaction, since threads take turns.

    A forked child holds a copy that its parent cannot see, so in a child every call raises `LedgerError`.
    """

    durable = False

    def __init__(self, limit: Amount, settings: AccountSettings) -> None:
        self.settings = settings
        self._limit = limit
        self._partition: str | None = None
        self._entries: dict[int, Entry] = {}
        self._events: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._home = Home()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: each copy would spend the budget again."""
        raise LedgerError(
            "this budget lives in one object, and a copy would spend it again: share the object, or "
            + ELSEWHERE
        )

    @contextmanager
    def change(self) -> Iterator[MemoryStore]:
        """Hold the account. Whoever changes it changes nothing before the last thing that may fail."""
        if not self._home.is_here:  # nobody may ever release a child's lock
            raise LedgerError(
                "this budget lives in the memory of the process that made it, and each forked child would "
                "spend it again: " + ELSEWHERE
            )
        with self._lock:
            yield self

    def entry_of(self, lease: str) -> int | None:
        """See `SqlStore`."""
        with self.change():
            having = (one.number for one in self._entries.values() if one.draws.lease == lease)
            return next(having, None)

    def run_of(self, plan: str, run: str | None, stratum: int | None) -> NoReturn:  # noqa: ARG002 - whichever
        """No other process sees these runs."""
        raise LedgerError("a run in memory ends with its process: to resume it, " + ELSEWHERE)

    def newest_plan(self, scope: str) -> Mapping[str, Any]:  # noqa: ARG002 - whichever
        """Nothing: whoever has the account has its records, too."""
        return {}

    def standing(self) -> Standing:
        """See `SqlStore`."""
        with self.change():
            counted = [(one.scope, one.tally) for one in self._entries.values() if one.state != CANCELLED]
            return replace(self.checked(), last=counted[-1] if counted else None)

    def snapshot(self) -> NoReturn:
        """An account in memory keeps no history for others to read."""
        raise LedgerError("an account in memory has no history to read: " + ELSEWHERE)

    def checked(self) -> Standing:
        """See `SqlTransaction`. Nobody else can have changed it."""
        return Standing(self.settings.rule, self._limit, self.totals, self._partition)

    def entry(self, number: int) -> Entry | None:
        """See `SqlTransaction`."""
        return self._entries.get(number)

    @property
    def totals(self) -> Totals:
        """See `SqlTransaction`. Added up each time: an interrupt leaves no entry half counted."""
        totals = Totals()
        for entry in self._entries.values():
            if entry.state != CANCELLED:
                totals.add(entry.scope, entry.tally)
        return totals

    def events(self, entry: int) -> list[Mapping[str, Any]]:
        """See `SqlTransaction`."""
        return self._events[entry]

    def add(self, scope: str | None, tally: Tally, draws: DrawCounts) -> Entry:
        """See `SqlTransaction`."""
        return Entry(next(self._numbers), scope, tally, RESERVED, draws)

    def replace(self, entry: Entry) -> None:
        """See `SqlTransaction`."""
        self._entries[entry.number] = entry

    def record(
        self,
        act: str,
        entry: Entry | None = None,
        details: str = "{}",
        *,
        totals: Totals | None = None,
        limit: Amount | None = None,
    ) -> None:
        """See `SqlTransaction`. Keeps what later changes of an entry ask for."""
        del totals
        if limit is not None:
            self._limit = limit
        if entry is None:
            return
        (epsilon, delta), renyi = entry.tally.cost, entry.tally.stated
        row = {"act": act, "scope": entry.scope, "epsilon": epsilon, "delta": delta, "renyi": renyi}
        self._events[entry.number].append({**row, "details": details, "hash": ""})
        if act == RESERVE:
            if entry.scope is not None and self._partition is None:
                self._partition = partition_of(entry.scope)
            self._entries[entry.number] = entry  # last: what an interrupt leaves before it counts nothing
