"""Where a budget is kept: what an account must do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from dpfewshot.budget.amounts import Units
from dpfewshot.budget.draws import Draws
from dpfewshot.errors import LedgerError
from dpfewshot.values import UNNAMED_UNIT, PrivacyBudget, PrivacySpend

Details = Mapping[str, str | int | float]
"""What a plan is, for the history: mechanism, σ, q, steps. Public numbers only."""


class Account(Protocol):
    """A budget and what was spent of it. Entries go reserved → charged → settled, or reserved → cancelled.

    Whoever spends from an account calls `bound` first: ε over records and ε over customers, or over two kinds
    of neighbours, cannot be combined. A wrapper must have every member below; an object that lacks one is
    refused.
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
        """The neighbouring relation of every plan on this account; None while more than one is possible."""
        ...

    @property
    def unit(self) -> str | None:
        """The column that names whom a record belongs to; None where each record stands for itself."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether plans over different parts of the recorded partition run side by side."""
        ...

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """Say what the costs to come hold for.

        Args:
            relations: the neighbouring relations that they hold for, at least one.
            unit: the name of the unit column; None where each record stands for itself.

        Raises:
            LedgerError: the account is for another relation or unit.
        """
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

    @property
    def durable(self) -> bool:
        """Whether every process sees the same entries, so that a copied checkpoint is found by its lease."""
        ...

    def charge(self, entry: int) -> None:
        """The plan is about to draw: from now on nothing of it comes back."""
        ...

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Charge one block of one of the entry's disjoint parts, before it is drawn.

        Raises:
            BudgetExceeded: the part has no block left.
            LedgerError: another run holds the lease, or the charge could not be recorded.
        """
        ...

    def resume(
        self,
        entry: int,
        scope: str | None,
        cost: PrivacySpend,
        details: Details,
        *,
        known: Collection[str],
        draws: Draws,
    ) -> tuple[int, tuple[int, ...]]:
        """Replace an entry's lease, so that this run alone may draw what is left, if anything is.

        Args:
            entry: its number.
            scope: as it was reserved.
            cost: as it was reserved.
            details: as it was reserved.
            known: leases of the checkpoint, one of which the entry must have.
            draws: the blocks that the checkpoint leaves, and the new lease; one of `known` changes nothing.

        Returns:
            The entry's number, which an account in memory may change, and the blocks left in each part.

        Raises:
            LedgerError: the checkpoint is stale, or the entry is not the one that it names.
            BudgetExceeded: an account in memory has not the room for it.
        """
        ...

    def settle(self, entry: int, lease: str | None = None) -> None:
        """A plan that drew is over: all of it stays spent, and it draws no more.

        With a lease that is not the entry's, nothing changes: another run goes on with it.
        """
        ...

    def cancel(self, entry: int) -> None:
        """A plan that never drew gives everything back."""
        ...


def bound(account: Account, relations: frozenset[str], unit: str | None) -> str | None:
    """Bind an account to what the costs to come hold for, and return its relation; None while it is open.

    What the account says of itself is compared too: a wrapper may accept anything.

    Raises:
        LedgerError: the account is for another relation or unit, or it is durable and the unit has no name.
    """
    if unit == UNNAMED_UNIT and account.durable:
        raise LedgerError(
            f"unit={unit!r} names no column: records that were made by hand have units of a column that "
            "nobody named, which a durable account cannot compare. Name it with unit= (and rename a column "
            f"that is called {unit!r})"
        )
    account.bind(relations, unit)
    relation, kept = account.relation, account.unit
    if kept != unit or (relation is not None and relation not in relations):
        raise LedgerError(other_kind("the account", [relation or "any"], kept, relations, unit))
    return relation


def other_kind(
    account: str, relations: Iterable[str], unit: str | None, others: Iterable[str], other_unit: str | None
) -> str:
    """The one sentence that refuses a plan of another relation or unit than the account's."""
    advice = ""
    if None not in (unit, other_unit) and UNNAMED_UNIT in (unit, other_unit):
        advice = (
            f"; {UNNAMED_UNIT!r} is a unit column whose name was not recorded: name a plan's with unit=, and "
            "an old account's with dpfewshot ledger name-unit"
        )
    return (
        f"{account} holds for relation={_listed(relations)}, unit={unit!r} and cannot be used with "
        f"relation={_listed(others)}, unit={other_unit!r}{advice}"
    )


def _listed(relations: Iterable[str]) -> str:
    return " or ".join(repr(relation) for relation in sorted(relations))


def exceeded_message(cost: PrivacySpend, limit: Units, spent: Units) -> str:
    """The one sentence of a refusal. All of its numbers are public."""
    budget, used = limit.as_spend(), spent.as_spend()
    return (
        f"the plan needs epsilon={float(cost.epsilon):.6g}, delta={float(cost.delta):.3g}, but of the budget "
        f"epsilon={budget.epsilon:.6g}, delta={budget.delta:.3g} already "
        f"epsilon={used.epsilon:.6g}, delta={used.delta:.3g} is spent"
    )
