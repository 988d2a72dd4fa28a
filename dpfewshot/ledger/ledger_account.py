"""One data set's budget in a ledger."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from dpfewshot.budget.account import Cost, Details, other_kind
from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.draws import DrawCounts
from dpfewshot.errors import LedgerError
from dpfewshot.ledger.counting import details_of
from dpfewshot.ledger.history import CANCEL, CHARGE, SETTLE, as_json, as_shown
from dpfewshot.ledger.verification import Verification, check
from dpfewshot.runtime.redaction import redacts_errors_of_methods
from dpfewshot.values import UNNAMED_UNIT, PrivacyBudget, PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.ledger.store import Store
    from dpfewshot.ledger.stored_account import StoredAccount

_LARGEST: Final = 2**63 - 1


@redacts_errors_of_methods(LedgerError, "the ledger")
class LedgerAccount:
    """One data set's budget in a ledger; an `Account` (dpfewshot.budget.account).

    Threads, processes and forked children may use it at once. Every method raises `LedgerError`
    where the database fails, and then nothing may be drawn.
    """

    def __init__(self, store: Store, stored: StoredAccount) -> None:
        self._store = store
        self._stored = stored

    def __repr__(self) -> str:
        return f"LedgerAccount({self.dataset!r})"

    @property
    def dataset(self) -> str:
        """The data set whose budget this is."""
        return self._stored.dataset

    @property
    def relation(self) -> str:
        """The neighbouring relation of every plan on this account: "zero-out" or "add-remove"."""
        return self._stored.relation

    @property
    def unit(self) -> str | None:
        """The column that names whom a record belongs to; None where each stands for itself."""
        return self._stored.unit

    @property
    def parallel(self) -> bool:
        """Whether plans over different parts of the recorded partition run side by side."""
        return self._stored.parallel

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._store.standing(self._stored).limit.as_budget()

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged, by every process."""
        return self._store.standing(self._stored).spent.as_spend()

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        standing = self._store.standing(self._stored)
        return standing.limit.minus(standing.spent).as_remainder()

    @property
    def entries(self) -> int:
        """How many entries make up what is spent; cancelled ones do not count."""
        return self._store.standing(self._stored).entries

    @property
    def partition(self) -> str | None:
        """The one partition whose parts run side by side, as "task#fingerprint of its labels".

        None until a plan over a part is reserved.
        """
        return self._store.standing(self._stored).partition

    @property
    def head(self) -> str:
        """The hash of the last act. Noted elsewhere, it lets `verify` find a copy or a new history."""
        return self._store.standing(self._stored).head

    def summary(self) -> dict[str, object]:
        """Budget, spend and entries at one moment, as `dpfewshot ledger show --json` prints them."""
        standing = self._store.standing(self._stored)
        budget, spent = standing.limit.as_budget(), standing.spent.as_spend()
        return {
            "dataset": self.dataset,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
            "entries": standing.entries,
        }

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """Say what the costs to come hold for. See `Account.bind`."""
        if self.relation not in relations or self.unit != unit or unit == UNNAMED_UNIT:
            name = f"the account of the data set {self.dataset!r}"
            raise LedgerError(other_kind(name, [self.relation], self.unit, relations, unit))

    @property
    def durable(self) -> bool:
        """True: every process sees the same entries and their draws."""
        return True

    def reserve(
        self, scope: str | None, cost: Cost, details: Details, draws: DrawCounts | None = None
    ) -> int:
        """Set a plan's whole cost aside, on disk, and return the entry's number.

        What is reserved counts as spent until it is cancelled, also if this process dies.

        Raises:
            BudgetExceeded: it does not fit; nothing is changed.
            InvalidPlan: the cost is negative or no finite number.
            LedgerError: the scope is a part of another partition than the account's, or the account does
                not agree with its history.
        """
        kept = details_of(details, draws)
        return self._store.reserve(self._stored, scope, Amount.of_cost(cost), kept, draws)

    def charge(self, entry: int) -> None:
        """The plan is about to draw; on disk when this returns. A second time changes nothing.

        Raises:
            LedgerError: the entry is not of this account, was settled or cancelled, or it could not be
                recorded; nothing may be drawn.
        """
        self._store.move(self._stored, entry, CHARGE)

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Charge one block; on disk when this returns. The first one is the entry's charge in the history.

        Raises:
            BudgetExceeded: the part has no block left.
            LedgerError: another run resumed the entry, it draws no more, or the charge could not be
                recorded; nothing may be drawn.
        """
        self._store.draw(self._stored, entry, lease, part)

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
        """Replace an entry's lease, which the history records; whoever holds an older one draws no more.

        Raises:
            LedgerError: the checkpoint is stale, or the entry was reserved by another act, for another plan,
                or by a version that counted no draws.
        """
        if draws.lease in known:
            return entry, draws.left
        words = scope, Amount.of_cost(cost), as_json(details)
        return entry, self._store.resume(self._stored, entry, words, known, draws)

    def settle(self, entry: int, lease: str | None = None) -> None:
        """A plan that drew is over: all of it stays spent, and it draws no more. Twice changes nothing.

        With a lease that is not the entry's, nothing changes: another run resumed it.

        Raises:
            LedgerError: the entry is not of this account or was never charged.
        """
        self._store.move(self._stored, entry, SETTLE, lease)

    def cancel(self, entry: int) -> None:
        """Give everything back for a plan that never drew; one that did stays charged."""
        self._store.move(self._stored, entry, CANCEL)

    def change_budget(self, budget: PrivacyBudget) -> None:
        """Replace the budget, which the history records. More of it is a weaker promise than was given.

        Args:
            budget: what may be spent in all, with what is spent already. It may be less than that:
                then nothing more fits.

        Raises:
            LedgerError: it cannot be kept.
        """
        self._store.change_budget(self._stored, limit_of(budget))

    def name_unit(self, unit: str) -> None:
        """Record the name of the unit column, where the account is from before names were recorded.

        Ledgers then kept "unit" whatever the column: whoever calls this knows which one it was. The history
        records it. The same name again changes nothing.

        Raises:
            LedgerError: the account has no units, or their column has another name.
        """
        check_unit(unit)
        self._stored = self._store.name_unit(self._stored, unit)

    def history(self) -> list[dict[str, object]]:
        """Every act since the account was made: when, who, what. Numbers, scopes and settings alone."""
        return [as_shown(row) for row in self._store.book(self._stored).history]

    def verify(self, head: str | None = None) -> Verification:
        """Recompute the chain of hashes and compare the account and its entries with the history.

        Args:
            head: the hash of an act that was noted elsewhere. The history must contain it: a copy that was
                made before that act, or a history that was written anew, does not.
        """
        return check(self._store.book(self._stored), head)

    def export(self) -> dict[str, object]:
        """The account, its entries and its history as they are stored, for archives and other programs."""
        return self._store.book(self._stored).as_dict()


def limit_of(budget: PrivacyBudget) -> Amount:
    """A budget in whole units.

    Raises:
        LedgerError: it is outside of what the columns hold.
    """
    limit = Amount.of_budget(budget)
    if min(limit) < 1 or max(limit) > _LARGEST:
        raise LedgerError(f"a ledger keeps epsilon from 1e-12 to 9e6 and delta from 1e-18, not {budget}")
    return limit


def check_unit(unit: str | None) -> None:
    """Refuse a unit column without a name, or with the one that stood for every column.

    Raises:
        LedgerError: it has none, or that one.
    """
    if unit is not None and not unit.strip():
        raise LedgerError("unit must be the name of a column, or None where a unit is one record")
    if unit == UNNAMED_UNIT:
        raise LedgerError(
            f"{unit!r} is what older versions recorded for every unit column: give the column another name"
        )
