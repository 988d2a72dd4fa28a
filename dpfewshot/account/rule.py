"""The rules by which an account admits plans: by sums of (ε, δ), and by sums of Rényi divergences.

An account of ε and δ with a Rényi order α admits a plan if, with everything reserved, one of two holds:

    Σ ε_i ≤ ε   and   Σ δ_i ≤ δ/4
    Σ r_i + Σ' ε_i + max(0, log c - log(δ/2)) / (α-1) ≤ ε   and   Σ' δ_i ≤ δ/4,   c = (α-1)^{α-1} / α^α

r_i bounds the plan's Rényi divergence at α in both directions. Σ' is over the plans without such a bound. A
transcript may satisfy either, so their δ add up: δ/4 + δ/2 + δ/4. Without an order the account admits a plan
if the sums of (ε, δ) fit. Feldman and Zrnic 2021 (Rényi filters); docs/proofs/filter.md.
"""

from __future__ import annotations

import bisect
import decimal
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple

from dpfewshot.account.amounts import (
    DELTA_SCALE,
    EPSILON_SCALE,
    LARGEST,
    NOTHING,
    Amount,
    Cost,
    EventCost,
    in_words,
    left_in_words,
)
from dpfewshot.account.scopes import are_apart, check_partition, stratum_of, total_over_scopes
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.values import amount_text


class Tally(NamedTuple):
    """The cost of one entry, or of several together.

    Attributes:
        cost: the sum of all (ε, δ).
        renyi: the sum of the entries' Rényi divergences at the account's order, in 10⁻¹², rounded up.
        rest: the sum of (ε, δ) of the entries without such a bound.
    """

    cost: Amount
    renyi: int
    rest: Amount

    @classmethod
    def of(cls, cost: Amount, renyi: int | None) -> Tally:
        """One entry; `renyi` is None or 0 if it has no bound."""
        return cls(cost, renyi, NOTHING) if renyi else cls(cost, 0, cost)

    @property
    def stated(self) -> int | None:
        """The bound of one entry; None if it has none."""
        return self.renyi or None

    def plus(self, other: Tally) -> Tally:
        """The sum of each."""
        return Tally(self.cost.plus(other.cost), self.renyi + other.renyi, self.rest.plus(other.rest))

    def minus(self, other: Tally) -> Tally:
        """What remains without the other, at least zero of each."""
        return Tally(
            self.cost.minus(other.cost), max(self.renyi - other.renyi, 0), self.rest.minus(other.rest)
        )

    def times(self, count: int) -> Tally:
        """The cost of `count` such entries."""
        return Tally(
            Amount(count * self.cost.epsilon, count * self.cost.delta),
            count * self.renyi,
            Amount(count * self.rest.epsilon, count * self.rest.delta),
        )

    @classmethod
    def over_scopes(cls, tallies: Mapping[str | None, Tally]) -> Tally:
        """What all scopes cost together: `total_over_scopes` of each sum (docs/proofs/filter.md, 4)."""
        return cls(
            total_over_scopes({scope: tally.cost for scope, tally in tallies.items()}),
            total_over_scopes({scope: Amount(tally.renyi, 0) for scope, tally in tallies.items()}).epsilon,
            total_over_scopes({scope: tally.rest for scope, tally in tallies.items()}),
        )


EMPTY = Tally(NOTHING, 0, NOTHING)

TotalsRow = tuple[str | None, int, int, int, int, int, int]
"""A scope, its ε, δ, Rényi divergence, ε and δ of the entries without a divergence, and its entries."""


@dataclass
class Totals:
    """What counts now; entries that were cancelled do not.

    Attributes:
        sums: of each scope that has an entry.
        entries: the number of each scope's entries.
    """

    sums: dict[str | None, Tally] = field(default_factory=dict)
    entries: Counter[str | None] = field(default_factory=Counter)

    def add(self, scope: str | None, tally: Tally, entries: int = 1) -> None:
        """Count one entry, or several that cost this together."""
        self.sums[scope] = self.sums.get(scope, EMPTY).plus(tally)
        self.entries[scope] += entries

    def remove(self, scope: str | None, tally: Tally) -> None:
        """Count an entry no more."""
        self.sums[scope] = self.sums.get(scope, EMPTY).minus(tally)
        self.entries[scope] -= 1
        if not self.entries[scope]:
            del self.sums[scope], self.entries[scope]

    @property
    def count(self) -> int:
        """The number of entries."""
        return sum(self.entries.values())

    @property
    def total(self) -> Tally:
        """What all scopes cost together."""
        return Tally.over_scopes(self.sums)

    def rows(self) -> list[TotalsRow]:
        """One row for each scope, the whole data set first."""
        ordered = sorted(self.sums.items(), key=lambda item: (item[0] is not None, item[0] or ""))
        return [(scope, *one.cost, one.renyi, *one.rest, self.entries[scope]) for scope, one in ordered]

    @classmethod
    def of_rows(cls, rows: Iterable[TotalsRow]) -> Totals:
        """The totals that gave these rows."""
        totals = cls()
        for scope, epsilon, delta, renyi, rest_epsilon, rest_delta, count in rows:
            totals.add(scope, Tally(Amount(epsilon, delta), renyi, Amount(rest_epsilon, rest_delta)), count)
        return totals


class Admission(StrEnum):
    """How an account counts its plans."""

    SUM = "sum"
    """By sums of (ε, δ)."""

    RENYI = "renyi"
    """By sums of Rényi divergences, or by sums of (ε, δ) where these are smaller."""


_SHARE: Final = 4  # the part of δ for sums of δ_i, once by each rule; the other half pays for the conversion
_ORDERS: Final = range(2, 2**15 + 1)
_EXACT: Final = decimal.Context(prec=50)  # its logarithms are correctly rounded, on every machine alike
_ABOVE: Final = decimal.Decimal(10) ** -30  # more than the error of the logarithms
_NEVER: Final = 2**63  # above the ε of any budget
_MOST_PLANS: Final = 10**6
_SHOWN: Final = 8  # strata of a message that cost alike
_FEW: Final = 5  # orders, of which each is tried


@dataclass(frozen=True)
class Rule:
    """How an account counts, fixed when it is created.

    Attributes:
        order: α ≥ 2 of the Rényi divergences; None where the account counts by sums of (ε, δ) alone.
    """

    order: int | None = None

    @classmethod
    def of(cls, admission: str, limit: Amount) -> Rule:
        """The rule for an account with this budget: of all orders, that which admits the largest zCDP ρ.

        Raises:
            InvalidPlan: an unknown name, or a budget too small for any order.
        """
        if admission not in tuple(Admission):
            raise InvalidPlan(f"the rule must be one of {', '.join(Admission)}, not {admission!r}")
        if admission == Admission.SUM:
            return cls()
        if limit.delta < _SHARE:
            raise InvalidPlan(f"a Rényi rule needs a delta of at least {_SHARE}e-18")
        order = _best_order(limit)
        if _conversion(order, limit.delta // 2) >= limit.epsilon:
            raise InvalidPlan("the budget's epsilon is too small for a Rényi rule: use the rule 'sum'")
        return cls(order)

    @property
    def admission(self) -> Admission:
        """Its name."""
        return Admission.SUM if self.order is None else Admission.RENYI

    def tally(self, cost: Cost) -> Tally:
        """What a plan costs in each way in which this rule counts. A divergence is rounded up."""
        amount = Amount.of_cost(cost)
        if self.order is None or not isinstance(cost, EventCost):
            return Tally.of(amount, None)
        from dpfewshot.accounting.renyi import renyi_divergence  # loads SciPy: only where it is needed

        found = renyi_divergence(cost.event, self.order)
        return Tally.of(amount, math.ceil(Fraction(found) * EPSILON_SCALE) if math.isfinite(found) else None)

    def fits(self, tally: Tally, limit: Amount) -> bool:
        """Whether one of the two holds."""
        return any(way.fits(self.room(limit)) for way in self.ways(tally, limit))

    def spent(self, tally: Tally, limit: Amount) -> Amount:
        """What the rule certifies of a tally: the smaller ε, by sums at their δ, else at the account's."""
        by_sum, *by_renyi = self.ways(tally, limit)
        better = [way for way in by_renyi if way.delta <= self.room(limit).delta]
        if better and not (by_sum.epsilon <= better[0].epsilon and by_sum.delta <= self.room(limit).delta):
            return Amount(better[0].epsilon, limit.delta)
        return by_sum

    def room(self, limit: Amount) -> Amount:
        """The largest ε, and the largest sum of δ_i, that either rule admits."""
        return limit if self.order is None else Amount(limit.epsilon, limit.delta // _SHARE)

    def ways(self, tally: Tally, limit: Amount) -> list[Amount]:
        """By sums, and by divergences: ε in all, and the sum of the δ_i that count."""
        if self.order is None:
            return [tally.cost]
        converted = tally.renyi + tally.rest.epsilon + _conversion(self.order, limit.delta // 2)
        return [tally.cost, Amount(converted, tally.rest.delta)]


@functools.cache
def _conversion(order: int, delta: int) -> int:
    """max(0, log c - log δ) / (α-1) in 10⁻¹², rounded up: turns D_α into ε at δ, in 10⁻¹⁸ (zcdp.md, 3)."""
    if delta < 1:
        return _NEVER
    ln = [_EXACT.ln(decimal.Decimal(number)) for number in (order - 1, order, delta, DELTA_SCALE)]
    log_c = _EXACT.subtract(_EXACT.multiply(order - 1, ln[0]), _EXACT.multiply(order, ln[1]))
    total = _EXACT.add(log_c, _EXACT.subtract(ln[3], ln[2]))
    return max(0, math.ceil((Fraction(total) + Fraction(_ABOVE)) * EPSILON_SCALE / (order - 1)))


def _best_order(limit: Amount) -> int:
    """The order that admits the largest ρ: (ε - conversion) / α, which rises and then falls."""

    def room(order: int) -> float:
        return (limit.epsilon - _conversion(order, limit.delta // 2)) / order

    orders = _ORDERS
    while len(orders) > _FEW:
        third = len(orders) // 3
        orders = orders[:-third] if room(orders[third]) >= room(orders[-1 - third]) else orders[third:]
    return max(orders, key=room)


@dataclass
class Standing:
    """An account at one moment: what counts, and so what still fits.

    Attributes:
        last: the scope and the cost of its newest entry; None before the first, and in a change of the store.
        chain_tip: of its history; "" in memory, and in a change of the store.
    """

    rule: Rule
    limit: Amount
    totals: Totals
    partition: str | None
    last: tuple[str | None, Tally] | None = None
    chain_tip: str = ""

    @property
    def spent(self) -> Amount:
        """What counts as spent."""
        return self.rule.spent(self.totals.total, self.limit)

    @property
    def spent_by_scope(self) -> dict[str | None, Amount]:
        """What the plans of each scope have spent by themselves, the whole data set first."""
        sums = self.totals.sums
        ordered = sorted(sums, key=lambda scope: scope or "")
        return {scope: self.rule.spent(sums[scope], self.limit) for scope in ordered}

    def admit(self, scope: str | None, entry: Tally) -> Tally:
        """Count a new entry, and return it as it counts from now on: without a divergence that does not fit.

        Raises:
            BudgetExceeded: it does not fit.
            LedgerError: its scope belongs to another partition than the account's.
        """
        check_partition(self.partition, scope)
        before = self._sum(scope)
        if before.renyi + entry.renyi > self.limit.epsilon:  # no sum of divergences exceeds a budget
            entry = Tally.of(entry.cost, None)
        after = before.plus(entry)
        if not self._fits_with(scope, after):
            raise self._refusal(scope, entry)
        if max(after.cost) > LARGEST:  # sums of (ε, δ) have no limit where divergences fit
            raise BudgetExceeded("with this plan the sums of (ε, δ) exceed what an account can store")
        self.totals.add(scope, entry)
        return entry

    def left(self, scope: str | None = None) -> Amount:
        """An (ε, δ) that a plan without a Rényi bound may still cost.

        Args:
            scope: that the plan draws from; None for the whole data set. The other strata of its partition do
                not count, unless they exceed the budget by themselves.
        """
        room, total = self.rule.room(self.limit), self.totals.total
        beside = {other: each for other, each in self.totals.sums.items() if not are_apart(scope, other)}
        # Divergences add to the greatest of the partition, whose stratum may be another one.
        alone = Tally.over_scopes(beside)._replace(renyi=total.renyi)
        ways = zip(self.rule.ways(total, self.limit), self.rule.ways(alone, self.limit), strict=True)
        rooms = (
            room.minus(way if whole.fits(room) else whole) for whole, way in ways if whole.delta <= room.delta
        )
        return max(rooms, key=lambda each: each.epsilon, default=NOTHING)

    def plans_left(self, scope: str | None) -> int | None:
        """How many more plans over one scope that cost what the last one did fit; None before the first.

        Counted up to a million.
        """
        if self.last is None:
            return None
        _, entry = self.last

        def fit(count: int) -> bool:
            more = self._sum(scope).plus(entry.times(count))
            return max(more.cost) <= LARGEST and self._fits_with(scope, more)

        return bisect.bisect_left(range(1, _MOST_PLANS + 1), True, key=lambda count: not fit(count))

    def _sum(self, scope: str | None) -> Tally:
        return self.totals.sums.get(scope, EMPTY)

    def _fits_with(self, scope: str | None, tally: Tally) -> bool:
        """Whether everything fits if the plans of one scope cost this together."""
        return self.rule.fits(Tally.over_scopes({**self.totals.sums, scope: tally}), self.limit)

    def _refusal(self, scope: str | None, entry: Tally) -> BudgetExceeded:
        """Why a plan does not fit. All of its numbers are public."""
        asked, left = entry.cost.as_spend(), self.left(scope).as_remainder()
        by_scope = {each: self.left(each).as_remainder() for each in {None: EMPTY, **self.totals.sums}}
        refusal = BudgetExceeded(
            f"the plan needs {in_words(asked)}, and does not fit: {in_words(self.spent.as_spend())} of the "
            f"budget {in_words(self.limit.as_remainder())} is spent, which leaves a plan over "
            f"{stratum_of(scope)} {left_in_words(left)}{self._renyi_refusal(entry)}{self._by_stratum(entry)}"
        )
        refusal.asked, refusal.remaining = (asked.epsilon, asked.delta), (left.epsilon, left.delta)
        refusal.remaining_by_scope = {each: (one.epsilon, one.delta) for each, one in by_scope.items()}
        return refusal

    def _by_stratum(self, entry: Tally) -> str:
        """Which strata are exhausted for a plan and which are not, with what is left of them."""
        scopes = sorted(each for each in self.totals.sums if each is not None)
        told: dict[bool, dict[Amount, list[str]]] = {False: {}, True: {}}
        for scope in scopes:
            alike = told[self._fits_with(scope, self._sum(scope).plus(entry))]
            alike.setdefault(self.left(scope), []).append(stratum_of(scope))
        text = ""
        for fits, word in ((False, "Exhausted for this plan"), (True, "Not exhausted")):
            groups = [
                f"{_some(names)} ({left_in_words(left.as_remainder())} left)"
                for left, names in told[fits].items()
            ]
            text += f". {word}: {'; '.join(groups)}" if groups else ""
        return text

    def _renyi_refusal(self, entry: Tally) -> str:
        rule, before = self.rule, self.totals.total
        if rule.order is None:
            return ""
        share = rule.room(self.limit)
        if before.rest.plus(entry.rest).delta > share.delta:
            return (
                "; plans without a Rényi divergence may take a quarter of delta, "
                f"{amount_text(share.as_remainder().delta)}, in all"
            )
        if entry.renyi == 0:
            return "; it has no Rényi divergence that fits the budget"
        needed = Amount(entry.renyi, 0).as_spend().epsilon
        left = self.limit.minus(rule.ways(before, self.limit)[-1]).as_remainder().epsilon
        return f"; by its Rényi divergence of order {rule.order} the plan needs {needed}, and {left} is left"


def _some(names: list[str]) -> str:
    """The first names of a list, and how many follow."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
