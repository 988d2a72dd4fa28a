"""The protocol of an account: a budget, what is spent of it, and what its plans hold for."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.draws import DrawCounts
from dpfewshot.errors import LedgerError
from dpfewshot.values import UNNAMED_UNIT, PrivacyBudget, PrivacySpend, amount_text

Details = Mapping[str, str | int | float]
"""Public facts about a plan, for the history: mechanism, σ, q, steps."""

Cost = Amount | PrivacySpend
"""What a plan reserves. Runs of this package pass the exact `Amount`; a caller may pass floats."""


class Account(Protocol):
    """A budget and what is spent of it. An entry is reserved, charged and settled, or reserved and cancelled.

    Call `bound` before spending: ε over records and ε over customers, or over two kinds of neighbours, cannot
    be combined. A wrapper needs every member below; an object that lacks one is refused.
    """

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

    @property
    def relation(self) -> str | None:
        """The neighbouring relation of every plan on this account; None while several are possible."""
        ...

    @property
    def unit(self) -> str | None:
        """The column that names whom a record belongs to; None where each record is a unit of its own."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether plans over different strata of the recorded partition compose in parallel."""
        ...

    @property
    def partition(self) -> str | None:
        """The one partition whose strata compose in parallel; None before a plan over a stratum."""
        ...

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """State what the costs to come hold for.

        Args:
            relations: the neighbouring relations that they hold for, at least one.
            unit: the name of the unit column; None where each record is a unit of its own.

        Raises:
            LedgerError: the account is for another relation or unit.
        """
        ...

    def reserve(
        self, scope: str | None, cost: Cost, details: Details, draws: DrawCounts | None = None
    ) -> int:
        """Reserve a plan's whole cost and return the entry's number.

        Args:
            scope: the stratum of the account's partition that the plan draws from; None for the whole data
                set. Scopes that name no partition ("refund", without "task#…: ") count as strata of one: the
                caller answers for it that they have no unit in common.
            cost: the plan's certified (ε, δ). A run passes an `Amount`, which counts ε in 10⁻¹² and δ in
                10⁻¹⁸ and is kept as it is; an `EventCost` is one that also says what it was computed for. A
                `PrivacySpend` is accepted and rounded up. `Amount.of_cost` converts all: a wrapper that reads
                the cost calls it. One that forwards the cost need not, and keeps its event.
            details: public facts for the history.
            draws: the draws that the cost pays for, which `draw` counts; None for an entry that is charged
                as a whole.

        Raises:
            BudgetExceeded: it does not fit, or sums of (ε, δ) would exceed what a ledger can store; nothing
                is changed.
            LedgerError: the scope belongs to another partition than the account's.
        """
        ...

    @property
    def durable(self) -> bool:
        """Whether all processes see the same entries, so that a lease exposes a copied checkpoint."""
        ...

    def charge(self, entry: int) -> None:
        """Charge the whole entry, before the plan draws. From now on nothing of it comes back."""
        ...

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Charge one draw from one of the entry's disjoint parts, before it is made.

        Raises:
            BudgetExceeded: the part has no draw left.
            LedgerError: another run holds the lease, or the charge could not be recorded.
        """
        ...

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
        """Replace an entry's lease, so that only this run makes the draws that are left.

        Args:
            entry: its number.
            scope: as it was reserved.
            cost: as it was reserved.
            details: as it was reserved.
            known: leases of the checkpoint, one of which the entry must have.
            draws: the draws that the checkpoint leaves, and the new lease; one of `known` changes nothing.

        Returns:
            The entry's number, which an account in memory may change, and the draws left in each disjoint
            part.

        Raises:
            LedgerError: the checkpoint is stale, or names another entry.
            BudgetExceeded: an account in memory has no room for it.
        """
        ...

    def settle(self, entry: int, lease: str | None = None) -> None:
        """Close an entry that drew: all of it stays spent, and it draws no more.

        Nothing changes if the entry has another lease: another run resumed it.
        """
        ...

    def cancel(self, entry: int) -> None:
        """Give back the whole cost of a plan that never drew."""
        ...


@runtime_checkable
class DrawsAhead(Protocol):
    """What an account may offer beside `Account`: several draws in one commit.

    A reservation of an account without it charges each draw by itself.
    """

    def draw_ahead(self, entry: int, lease: str, part: int, count: int) -> int:
        """Charge draws from one of the entry's disjoint parts, before the first of them is made.

        Args:
            entry: its number.
            lease: of the run.
            part: of the disjoint parts.
            count: how many, at least 1.

        Returns:
            How many were charged: at least 1, and fewer than `count` if the part has no more.

        Raises:
            BudgetExceeded: the part has no draw left.
            LedgerError: another run holds the lease, or the charge could not be recorded.
        """
        ...

    def give_back(self, entry: int, lease: str, part: int, count: int) -> None:
        """Give back draws that were charged ahead and will not be made.

        Nothing changes if the entry has another lease: the draws stay charged.

        Raises:
            LedgerError: the entry draws no more, more would come back than the lease charged, or it could not
                be recorded. The draws may stay charged.
        """
        ...


def draws_ahead(account: object) -> DrawsAhead | None:
    """The account if it charges several draws in one commit."""
    return account if isinstance(account, DrawsAhead) else None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an entry is recorded.

    Attributes:
        unit: the account's unit column; None where each record is a unit of its own.
        dataset: the account's name in its ledger; None for an account that keeps no history.
        reservation: the random identifier of the entry; None as for `dataset`.
    """

    unit: str | None
    dataset: str | None = None
    reservation: str | None = None


@runtime_checkable
class Receipts(Protocol):
    """What an account may offer beside `Account`: a history, which records what an entry released."""

    def receipt(self, entry: int) -> Receipt:
        """Where an entry is recorded.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        ...

    def record_release(self, entry: int, lease: str, digest: str, times: int) -> None:
        """Record that an entry released a demonstration; recorded when this returns.

        Args:
            entry: its number.
            lease: of the run.
            digest: `line_hash` of the demonstration.
            times: how often this entry released it, this time included. Nothing changes if the history has
                it as often, so a call whose answer was lost may be repeated.

        Raises:
            LedgerError: another run holds the lease, the entry never drew, or it could not be recorded.
        """
        ...


def receipts(account: object) -> Receipts | None:
    """The account if it keeps a history."""
    return account if isinstance(account, Receipts) else None


def bound(account: Account, relations: frozenset[str], unit: str | None) -> str | None:
    """Bind an account to what the costs to come hold for, and return its relation; None while it is open.

    The account's own statement is compared too: a wrapper's `bind` may accept anything.

    Raises:
        LedgerError: the account is for another relation or unit, or it is durable and the unit is unnamed.
    """
    if unit == UNNAMED_UNIT and account.durable:
        raise LedgerError(
            f"unit={unit!r} names no column: records made by hand have units of a column that nobody named, "
            "which a durable account cannot compare. Name it with unit= (and rename a column that is called "
            f"{unit!r})"
        )
    account.bind(relations, unit)
    relation, kept = account.relation, account.unit
    if kept != unit or (relation is not None and relation not in relations):
        raise LedgerError(other_kind("the account", [relation or "any"], kept, relations, unit))
    return relation


def other_kind(
    account: str, relations: Iterable[str], unit: str | None, others: Iterable[str], other_unit: str | None
) -> str:
    """The refusal of a plan for another relation or unit than the account's, with what to do about it."""
    kept, asked = frozenset(relations), frozenset(others)
    return (
        f"{account} holds for relation={_listed(kept)}, unit={unit!r} and cannot be used with "
        f"relation={_listed(asked)}, unit={other_unit!r}"
        + _unit_advice(unit, other_unit)
        + ("" if kept & asked or not kept else _RELATION_ADVICE)
    )


_RELATION_ADVICE = (
    "; the population decides the relation: with population= it is add-remove, without it "
    "zero-out, and draws of fixed size have replace-one"
)


def _unit_advice(unit: str | None, other: str | None) -> str:
    if None not in (unit, other) and UNNAMED_UNIT in (unit, other):
        return f"; {UNNAMED_UNIT!r} stands for a unit column that nobody named: name it with unit="
    if unit == other:
        return ""
    if unit is None:
        return (
            "; each record is a unit of this account: to protect whole units, create an account of another "
            f"name with dpfewshot ledger create ... --unit {shlex.quote(str(other))}; records read without "
            "unit= fit this one, but protect single records only"
        )
    return f"; name the account's unit column when you read the records: unit={unit!r}"


def _listed(relations: Iterable[str]) -> str:
    return " or ".join(repr(relation) for relation in sorted(relations))


def in_words(spend: PrivacySpend) -> str:
    """An (ε, δ) as a message shows it."""
    return f"epsilon={amount_text(spend.epsilon)}, delta={amount_text(spend.delta)}"
