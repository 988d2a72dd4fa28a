"""Where a budget is kept: what an account must do, and the one that lives in memory.

Sums are integers, so that ten times 0.1 can be spent from 1.0 and never a hair more: ε in units of
10⁻¹², δ in units of 10⁻¹⁸. A cost is rounded up to a unit, a budget down.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import NamedTuple, Protocol, runtime_checkable

from dpfewshot.accounting.draws import CountsDraws, Draws
from dpfewshot.accounting.memory_entries import Entry, MemoryEntries
from dpfewshot.errors import BudgetExceeded, InvalidPlan, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend

EPSILON_UNIT = Decimal("1e-12")
DELTA_UNIT = Decimal("1e-18")

Details = Mapping[str, str | int | float]
"""What a plan is, for the history: mechanism, σ, q, steps. Public numbers only."""


class Units(NamedTuple):
    """(ε, δ) in whole units: sums of these are exact."""

    epsilon: int
    delta: int

    @classmethod
    def of_budget(cls, budget: PrivacyBudget) -> Units:
        """A budget, rounded down to a unit."""
        return cls(*_scaled(budget.epsilon, budget.delta, ROUND_FLOOR))

    @classmethod
    def of_cost(cls, cost: PrivacySpend) -> Units:
        """A cost, rounded up to a unit.

        Raises:
            InvalidPlan: a cost that is negative or not finite, which would give budget back.
        """
        if not (0 <= cost.epsilon < math.inf and 0 <= cost.delta < math.inf):
            raise InvalidPlan("a cost must be finite and not negative")
        return cls(*_scaled(cost.epsilon, cost.delta, ROUND_CEILING))

    def as_spend(self) -> PrivacySpend:
        """Back to floating point, for display."""
        return PrivacySpend(float(self.epsilon * EPSILON_UNIT), float(self.delta * DELTA_UNIT))

    def plus(self, other: Units) -> Units:
        """The sum of each."""
        return Units(self.epsilon + other.epsilon, self.delta + other.delta)

    def at_least(self, other: Units) -> Units:
        """The greater of each."""
        return Units(max(self.epsilon, other.epsilon), max(self.delta, other.delta))

    def minus(self, other: Units) -> Units:
        """What is left of this after the other, at least zero."""
        return Units(max(self.epsilon - other.epsilon, 0), max(self.delta - other.delta, 0))

    def fits(self, limit: Units) -> bool:
        """Whether neither part is above the limit's."""
        return self.epsilon <= limit.epsilon and self.delta <= limit.delta


def _scaled(epsilon: float, delta: float, rounding: str) -> tuple[int, int]:
    # repr is the shortest decimal that names the float: 0.1, as the user wrote, not 0.1000000000000000055
    return (
        int((Decimal(repr(epsilon)) / EPSILON_UNIT).to_integral_value(rounding)),
        int((Decimal(repr(delta)) / DELTA_UNIT).to_integral_value(rounding)),
    )


def in_whole_units(budget: PrivacyBudget) -> PrivacyBudget:
    """The largest budget whose cost, rounded up, still fits the budget, rounded down.

    A plan that is calibrated to it can be reserved whole: δ = 1/896 has more digits than a unit.
    """
    limit = Units.of_budget(budget)
    epsilon, delta = budget.epsilon, budget.delta
    while Units.of_cost(PrivacySpend(epsilon, 0.0)).epsilon > limit.epsilon:
        epsilon = min(float(limit.epsilon * EPSILON_UNIT), math.nextafter(epsilon, 0.0))
    while Units.of_cost(PrivacySpend(0.0, delta)).delta > limit.delta:
        delta = min(float(limit.delta * DELTA_UNIT), math.nextafter(delta, 0.0))
    return PrivacyBudget(epsilon, delta)


def scope_name(partition: str, part: str) -> str:
    """The scope of a plan that draws from one part of a partition alone, as in "trec: Location".

    Args:
        partition: the name of the rule that puts every unit in exactly one part: the task's name.
        part: the part: a label.
    """
    return f"{partition.replace(':', ' ')}: {part}"


def partition_of(scope: str) -> str:
    """The partition that a scope (`scope_name`) is a part of; "" for a scope that names none."""
    partition, colon, _ = scope.partition(": ")
    return partition if colon else ""


def check_partition(kept: str | None, scope: str) -> None:
    """Whether a scope belongs to the account's one partition; the first scoped plan records it.

    Raises:
        LedgerError: it cuts the data set in another way.
    """
    new = partition_of(scope)
    if kept not in (None, new):
        raise LedgerError(
            f"the account's plans run side by side over the parts of {kept!r}; {new!r} cuts the data set in "
            "another way: give it an account of its own with a share of the budget, or keep both in an "
            "account where every plan counts for the whole data set (dpfewshot ledger create --sequential)"
        )


def total_over_scopes(costs: Mapping[str | None, Units]) -> Units:
    """What is spent in all (docs/proofs/composition.md).

    A unit is in exactly one part of a partition, so the parts of one partition compose in parallel:
    the greatest sum counts. It is in a part of every partition and in the whole data set, so those add.

    Args:
        costs: the sum for each scope (`scope_name`); the key None is the whole data set.
    """
    greatest: dict[str, Units] = {}
    for scope, units in costs.items():
        if scope is not None:
            partition = partition_of(scope)
            greatest[partition] = greatest.get(partition, Units(0, 0)).at_least(units)
    total = costs.get(None, Units(0, 0))
    for units in greatest.values():
        total = total.plus(units)
    return total


@runtime_checkable
class Account(CountsDraws, Protocol):
    """A budget and what was spent of it. Entries go reserved → charged → settled, or reserved → cancelled."""

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        ...

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged, over all scopes."""
        ...

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        ...

    def reserve(
        self, scope: str | None, cost: PrivacySpend, details: Details, draws: Draws | None = None
    ) -> int:
        """Set a plan's whole cost aside and return the entry's number.

        Args:
            scope: the part of the account's partition that the plan draws from; None for all of it.
            cost: the plan's certified (ε, δ).
            details: public facts for the history.
            draws: the draws that the cost pays for, which `draw` counts; None for an entry that is charged
                as a whole.

        Raises:
            BudgetExceeded: it does not fit; nothing is changed.
            LedgerError: the scope is a part of another partition than the account's.
        """
        ...

    def charge(self, entry: int) -> None:
        """The plan is about to draw: from now on nothing of it comes back."""
        ...

    def settle(self, entry: int, lease: str | None = None) -> None:
        """A plan that drew is over: all of it stays spent, and it draws no more.

        With a lease that is not the entry's, nothing changes: another run goes on with it.
        """
        ...

    def cancel(self, entry: int) -> None:
        """A plan that never drew gives everything back."""
        ...


class MemoryAccount(MemoryEntries):
    """An account that lives as long as its process: for notebooks, and for several releases that share it.

    Who shares it calls `bind` first: ε over records and ε over customers, or over two kinds of neighbours,
    do not add up to anything.

    A forked child has a copy, of which its parent and its siblings know nothing: there every call raises
    `LedgerError`.

    Args:
        budget: what may be spent in all.
        parallel: whether plans over different parts of the recorded partition run side by side, so that
            the greatest counts. False: every plan counts for the whole data set, and any partition may spend.
    """

    def __init__(self, budget: PrivacyBudget, *, parallel: bool = True) -> None:
        super().__init__()
        self._budget = budget
        self._parallel = parallel
        self._partition: str | None = None
        self._relations: frozenset[str] | None = None
        self._unit: str | None = None
        self._limit = Units.of_budget(budget)
        # numbers that no other account has: a checkpoint may name those of a process that is gone
        self._numbers = itertools.count(int.from_bytes(os.urandom(6), "big"))
        self._mutex = threading.Lock()
        self._process = os.getpid()

    @property
    def _lock(self) -> threading.Lock:
        """What every call takes first; refused in a child, where another thread may hold it for ever."""
        if os.getpid() != self._process:
            raise LedgerError(
                "this budget lives in the memory of the process that made it, and each forked child would "
                'spend it again: give the synthesizer a ledger="sqlite:///budget.db" and a dataset=NAME'
            )
        return self._mutex

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._budget

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged."""
        with self._lock:
            return self._total().as_spend()

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        with self._lock:
            return self._limit.minus(self._total()).as_spend()

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """Say what the costs to come hold for; all that share the account must have a relation in common.

        Args:
            relations: the neighbouring relations, at least one.
            unit: "unit" where a unit is all of its records, None where each record is one.

        Raises:
            LedgerError: others share it for another relation or unit.
        """
        with self._lock:
            common = relations if self._relations is None else relations & self._relations
            if not common or (self._relations is not None and unit != self._unit):
                raise LedgerError(
                    f"the account is shared for relation={'|'.join(sorted(self._relations or ()))}, "
                    f"unit={self._unit!r}, and cannot be used with relation={'|'.join(sorted(relations))}, "
                    f"unit={unit!r}"
                )
            self._relations, self._unit = common, unit

    def reserve(
        self, scope: str | None, cost: PrivacySpend, details: Details, draws: Draws | None = None
    ) -> int:
        """Set a plan's cost aside. `details` is for durable accounts; this one keeps no history."""
        del details
        with self._lock:
            scope = scope if self._parallel else None
            if scope is not None:
                check_partition(self._partition, scope)
            number = next(self._numbers)
            self._entries[number] = Entry(scope, Units.of_cost(cost), draws)
            total = self._total()
            if not total.fits(self._limit):
                del self._entries[number]
                raise BudgetExceeded(exceeded_message(cost, self._limit, self._total()))
            if scope is not None:
                self._partition = partition_of(scope)
            return number

    def _total(self) -> Units:
        sums: dict[str | None, Units] = defaultdict(lambda: Units(0, 0))
        for entry in self._entries.values():
            sums[entry.scope] = sums[entry.scope].plus(entry.cost)
        return total_over_scopes(sums)


def exceeded_message(cost: PrivacySpend, limit: Units, spent: Units) -> str:
    """The one sentence of a refusal. All of its numbers are public."""
    budget, used = limit.as_spend(), spent.as_spend()
    return (
        f"the plan needs epsilon={cost.epsilon:.6g}, delta={cost.delta:.3g}, but of the budget "
        f"epsilon={budget.epsilon:.6g}, delta={budget.delta:.3g} already "
        f"epsilon={used.epsilon:.6g}, delta={used.delta:.3g} is spent"
    )
