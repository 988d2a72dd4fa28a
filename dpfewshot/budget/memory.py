"""The account in memory, which lives as long as its process."""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn, SupportsIndex

from dpfewshot.budget.account import Cost, Details, other_kind
from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.draws import COUNTED, NOT_COUNTED, WHAT_TO_DO, DrawCounts
from dpfewshot.budget.rule import Admission, Rule
from dpfewshot.budget.scopes import check_partition, partition_after
from dpfewshot.budget.tally import EMPTY, Tally
from dpfewshot.errors import LedgerError
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.values import PrivacyBudget, PrivacySpend


@dataclass
class _Entry:
    scope: str | None
    tally: Tally
    draws: DrawCounts | None = None
    charged: bool = False
    settled: bool = False


class MemoryAccount:
    """An account that lives as long as its process: for notebooks, and for several releases that share it.

    A forked child holds a copy that its parent cannot see, so in a child every call raises `LedgerError`.

    Args:
        budget: what may be spent in all.
        parallel: whether plans over different strata of the recorded partition compose in parallel, so that
            the greatest counts. False: every plan counts for the whole data set, and any partition may spend.
        rule: "sum" or "renyi", as in `BudgetLedger.create`.

    Raises:
        InvalidPlan: an unknown rule, or a budget too small for it.
    """

    def __init__(self, budget: PrivacyBudget, *, parallel: bool = True, rule: str = Admission.SUM) -> None:
        self._budget = budget
        self._parallel = parallel
        self._partition: str | None = None
        self._relations: frozenset[str] | None = None
        self._unit: str | None = None
        self._limit = Amount.of_budget(budget)
        self._rule = Rule.of(rule, self._limit)
        self._entries: dict[int, _Entry] = {}
        # unique across accounts: a checkpoint may name the entry of a process that has ended
        self._numbers = itertools.count(int.from_bytes(os.urandom(6), "big"))
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._is_a_copy = False
        start_afresh_in_children(self)

    def __repr__(self) -> str:
        return f"MemoryAccount({self._budget!r})"

    def after_fork(self) -> None:
        """Refuse every call in a child. The process number alone would not do: every container has a 1."""
        self._is_a_copy = True

    @property
    def _lock(self) -> threading.Lock:
        """The lock that every call takes first; refused in a child, where nobody may ever release it."""
        if self._is_a_copy or os.getpid() != self._process:
            raise LedgerError(
                "this budget lives in the memory of the process that made it, and each forked child would "
                'spend it again: give the synthesizer a ledger="sqlite:///budget.db" and a dataset=NAME'
            )
        return self._mutex

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: each copy would spend the budget again."""
        raise LedgerError(
            "this budget lives in one object, and a copy would spend it again: share the object, or give "
            'the synthesizer a ledger="sqlite:///budget.db" and a dataset=NAME'
        )

    @property
    def rule(self) -> str:
        """How plans count: "sum" or "renyi"."""
        return self._rule.admission

    @property
    def durable(self) -> bool:
        """False: other processes cannot see it."""
        return False

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._budget

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged."""
        with self._lock:
            return self._rule.spent(self._total(), self._limit).as_spend()

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        with self._lock:
            return self._rule.left(self._sums(), self._limit).as_remainder()

    @property
    def relation(self) -> str | None:
        """The one neighbouring relation that all sharers hold for; None while several are possible."""
        relations = tuple(self._relations or ())
        return relations[0] if len(relations) == 1 else None

    @property
    def unit(self) -> str | None:
        """The unit column of all sharers; None where each record is a unit, and until one is bound."""
        return self._unit

    @property
    def parallel(self) -> bool:
        """Whether plans over different strata of the recorded partition compose in parallel."""
        return self._parallel

    @property
    def partition(self) -> str | None:
        """The partition of the first plan over a stratum; None before."""
        with self._lock:
            return self._partition

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """State what the costs to come hold for. See `Account.bind`."""
        with self._lock:
            common = relations if self._relations is None else relations & self._relations
            if not common or (self._relations is not None and unit != self._unit):
                raise LedgerError(
                    other_kind("the account", self._relations or (), self._unit, relations, unit)
                )
            self._relations, self._unit = common, unit

    def reserve(
        self, scope: str | None, cost: Cost, details: Details, draws: DrawCounts | None = None
    ) -> int:
        """Reserve a plan's cost. `details` is for durable accounts; this one keeps no history."""
        del details
        tally = self._rule.tally(cost)
        with self._lock:
            scope = scope if self._parallel else None
            if scope is not None:
                check_partition(self._partition, scope)
            tally = self._rule.admitted(self._sums(), scope, tally, self._limit)
            number = next(self._numbers)
            self._entries[number] = _Entry(scope, tally, draws)
            if scope is not None:
                self._partition = partition_after(self._partition, scope)
            return number

    def charge(self, entry: int) -> None:
        """Charge an entry as a whole."""
        with self._lock:
            found = self._open(entry, counted=False)
            found.charged = True

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Charge one draw from one of an entry's disjoint parts."""
        with self._lock:
            found = self._open(entry, counted=True)
            assert found.draws is not None  # noqa: S101 - `_open` looked
            found.draws = found.draws.after(entry, lease, part)
            found.charged = True

    def resume(
        self,
        entry: int,
        scope: str | None,
        cost: Cost,
        details: Details,
        *,
        known: Collection[str],
        draws: DrawCounts,
    ) -> tuple[int, tuple[int, ...]]:
        """Replace an entry's lease. An entry of a process that has ended is reserved anew, whole."""
        with self._lock:
            unknown = entry not in self._entries
        if unknown:
            entry, known = self.reserve(scope, cost, details, draws), (draws.lease,)
        elif draws.lease in known:
            return entry, draws.left
        with self._lock:
            found = self._entries[entry]
            resumed = None if found.draws is None else found.draws.resumed(entry, known, draws)
            if resumed is None or (found.settled and any(resumed.left)):
                raise LedgerError(f"entry {entry} draws no more: {WHAT_TO_DO}")
            found.draws, found.charged = resumed, True
            return entry, resumed.left

    def settle(self, entry: int, lease: str | None = None) -> None:
        """Close an entry that drew, unless another run resumed it."""
        with self._lock:
            found = self._entries.get(entry)
            if found is None or not found.charged:
                raise LedgerError("this reservation was never charged: it cannot be settled")
            if lease is None or (found.draws is not None and found.draws.lease == lease):
                found.settled = True

    def cancel(self, entry: int) -> None:
        """Give back an entry that never drew; one that drew stays."""
        with self._lock:
            if entry in self._entries and not self._entries[entry].charged:
                del self._entries[entry]

    def _open(self, entry: int, *, counted: bool) -> _Entry:
        found = self._entries.get(entry)
        if found is None or found.settled:
            state = "cancelled" if found is None else "settled"
            raise LedgerError(f"this reservation was {state}: it cannot be charged")
        if (found.draws is not None) != counted:
            raise LedgerError(NOT_COUNTED if counted else COUNTED)
        return found

    def _total(self) -> Tally:
        return Tally.over_scopes(self._sums())

    def _sums(self) -> defaultdict[str | None, Tally]:
        sums: defaultdict[str | None, Tally] = defaultdict(lambda: EMPTY)
        for entry in self._entries.values():
            sums[entry.scope] = sums[entry.scope].plus(entry.tally)
        return sums
