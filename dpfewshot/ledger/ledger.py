"""Accounts that outlive their process and are shared by many."""

from __future__ import annotations

import math
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dpfewshot.accounting.account import Details, Units
from dpfewshot.accounting.draws import Draws
from dpfewshot.errors import InvalidPlan, LedgerError, MissingExtra
from dpfewshot.ledger.counting import details_of
from dpfewshot.ledger.history import CANCEL, CHARGE, SETTLE, as_json, as_shown
from dpfewshot.ledger.verification import Verification, check
from dpfewshot.redaction import redacts_errors_of_methods
from dpfewshot.values import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, PrivacyBudget, PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.ledger.store import Store, StoredAccount

_RELATIONS: Final = (ADD_REMOVE, ZERO_OUT, REPLACE_ONE)
_LARGEST_UNITS: Final = 2**63 - 1


@redacts_errors_of_methods(LedgerError, "the ledger")
class LedgerAccount:
    """One data set's budget in a ledger; an `Account` (dpfewshot.accounting.account).

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
        return _as_budget(self._store.standing(self._stored.number).limit)

    @property
    def spent(self) -> PrivacySpend:
        """What is reserved or charged, by every process."""
        return self._store.standing(self._stored.number).spent.as_spend()

    @property
    def remaining(self) -> PrivacySpend:
        """What a plan over the whole data set may still reserve."""
        standing = self._store.standing(self._stored.number)
        return standing.limit.minus(standing.spent).as_spend()

    @property
    def entries(self) -> int:
        """How many entries make up what is spent; cancelled ones do not count."""
        return self._store.standing(self._stored.number).entries

    @property
    def partition(self) -> str | None:
        """The one partition whose parts run side by side; None until a plan over a part is reserved."""
        return self._store.standing(self._stored.number).partition

    @property
    def head(self) -> str:
        """The hash of the last act. Noted elsewhere, it lets `verify` find a copy or a new history."""
        return self._store.standing(self._stored.number).head

    def summary(self) -> dict[str, object]:
        """Budget, spend and entries at one moment, as `dpfewshot ledger show --json` prints them."""
        standing = self._store.standing(self._stored.number)
        budget, spent = _as_budget(standing.limit), standing.spent.as_spend()
        return {
            "dataset": self.dataset,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
            "entries": standing.entries,
        }

    @property
    def durable(self) -> bool:
        """True: every process sees the same entries and their draws."""
        return True

    def reserve(
        self, scope: str | None, cost: PrivacySpend, details: Details, draws: Draws | None = None
    ) -> int:
        """Set a plan's whole cost aside, on disk, and return the entry's number.

        What is reserved counts as spent until it is cancelled, also if this process dies.

        Raises:
            BudgetExceeded: it does not fit; nothing is changed.
            InvalidPlan: the cost is negative or no finite number.
            LedgerError: the scope is a part of another partition than the account's, or the account does
                not agree with its history.
        """
        if not all(math.isfinite(part) and part >= 0 for part in (cost.epsilon, cost.delta)):
            raise InvalidPlan(f"a cost must be finite and at least 0, not ({cost.epsilon}, {cost.delta})")
        return self._store.reserve(self._stored, scope, cost, details_of(details, draws), draws)

    def charge(self, entry: int) -> None:
        """The plan is about to draw; on disk when this returns. A second time changes nothing.

        Raises:
            LedgerError: the entry is not of this account, was settled or cancelled, or it could not be
                recorded; nothing may be drawn.
        """
        self._store.move(self._stored.number, entry, CHARGE)

    def draw(self, entry: int, lease: str, part: int) -> None:
        """Charge one block; on disk when this returns. The first one is the entry's charge in the history.

        Raises:
            BudgetExceeded: the part has no block left.
            LedgerError: another run resumed the entry, it draws no more, or the charge could not be
                recorded; nothing may be drawn.
        """
        self._store.draw(self._stored.number, entry, lease, part)

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
        """Replace an entry's lease, which the history records; whoever holds an older one draws no more.

        Raises:
            LedgerError: the checkpoint is stale, or the entry was reserved by another act, for another plan,
                or by a version that counted no draws.
        """
        if not any(draws.blocks):
            return entry, draws.blocks
        words = scope, cost, as_json(details)
        return entry, self._store.resume(self._stored, entry, words, known, draws)

    def settle(self, entry: int, lease: str | None = None) -> None:
        """A plan that drew is over: all of it stays spent, and it draws no more. Twice changes nothing.

        With a lease that is not the entry's, nothing changes: another run resumed it.

        Raises:
            LedgerError: the entry is not of this account or was never charged.
        """
        self._store.move(self._stored.number, entry, SETTLE, lease)

    def cancel(self, entry: int) -> None:
        """Give everything back for a plan that never drew; one that did stays charged."""
        self._store.move(self._stored.number, entry, CANCEL)

    def change_budget(self, budget: PrivacyBudget) -> None:
        """Replace the budget, which the history records. More of it is a weaker promise than was given.

        Args:
            budget: what may be spent in all, with what is spent already. It may be less than that:
                then nothing more fits.

        Raises:
            LedgerError: it cannot be kept.
        """
        self._store.change_budget(self._stored.number, _limit(budget))

    def history(self) -> list[dict[str, object]]:
        """Every act since the account was made: when, who, what. Numbers, scopes and settings alone."""
        return [as_shown(row) for row in self._store.book(self._stored.number).history]

    def verify(self, head: str | None = None) -> Verification:
        """Recompute the chain of hashes and compare the account and its entries with the history.

        Args:
            head: the hash of an act that was noted elsewhere. The history must contain it: a copy that was
                made before that act, or a history that was written anew, does not.
        """
        return check(self._store.book(self._stored.number), head)

    def export(self) -> dict[str, object]:
        """The account, its entries and its history as they are stored, for archives and other programs."""
        return self._store.book(self._stored.number).as_dict()


@redacts_errors_of_methods(LedgerError, "the ledger")
class BudgetLedger:
    """The accounts of one database. Make it with `BudgetLedger.open`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a ledger, make its tables where there are none, and migrate those of an older version.

        Args:
            url: "sqlite:///budget.db" for the processes of one host, or
                "postgresql+psycopg://user:password@host/database" for several.

        Raises:
            LedgerError: the database cannot be reached or used, or a newer version of this package made
                its tables. No message holds the password.
            MissingExtra: SQLAlchemy, Alembic, or for PostgreSQL psycopg, is not installed.
        """
        try:
            from dpfewshot.ledger.store import Store
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sqlalchemy":
                raise
            raise MissingExtra("the durable ledger", "ledger") from None
        return cls(Store(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further calls, of the accounts too. Nothing is lost: every call was on disk."""
        self._store.close()

    def datasets(self) -> list[str]:
        """The data sets that have an account, sorted."""
        return self._store.datasets()

    def account(self, dataset: str) -> LedgerAccount:
        """The account of a data set.

        Raises:
            LedgerError: there is none.
        """
        stored = self._store.find(dataset)
        if stored is None:
            raise LedgerError(
                f"{self._store.name} has no account for the data set {dataset!r}: make one with "
                "dpfewshot ledger create --ledger URL --dataset NAME --epsilon E --delta D"
            )
        return LedgerAccount(self._store, stored)

    def create(
        self,
        dataset: str,
        budget: PrivacyBudget,
        *,
        relation: str = ZERO_OUT,
        unit: str | None = None,
        parallel: bool = True,
    ) -> LedgerAccount:
        """Make an account, or find the one that was made with the same words.

        Args:
            dataset: its name.
            budget: what may be spent in all, by every plan there will ever be.
            relation: "zero-out", "add-remove" or "replace-one"; every plan must have the same.
            unit: the column that names whom a record belongs to; every plan must have the same.
            parallel: plans over different labels of one task run side by side: of their costs the greatest
                counts, and a second task that cuts the data set by other labels is refused. False: every
                plan counts for the whole data set, whatever its task.

        Raises:
            LedgerError: it exists with other words, or these cannot be kept.
        """
        account = self._find_or_add(dataset, budget, relation, unit, parallel=parallel)
        if account.parallel != parallel:
            raise LedgerError(
                f"the data set {dataset!r} has an account already, with parallel={account.parallel}"
            )
        if account.budget != _as_budget(_limit(budget)):
            raise LedgerError(
                f"the data set {dataset!r} has an account already, with {account.budget}, not {budget}"
            )
        return account

    def account_or_create(
        self, dataset: str, budget: PrivacyBudget, *, relation: str = ZERO_OUT, unit: str | None = None
    ) -> LedgerAccount:
        """The account of a data set, made if there is none. An existing one keeps its own budget.

        Raises:
            LedgerError: it exists with another relation or unit, or these cannot be kept.
        """
        stored = self._store.find(dataset)
        if stored is None:
            return self._find_or_add(dataset, budget, relation, unit)
        return _same_kind(LedgerAccount(self._store, stored), relation, unit)

    def _find_or_add(
        self, dataset: str, budget: PrivacyBudget, relation: str, unit: str | None, *, parallel: bool = True
    ) -> LedgerAccount:
        if not dataset:
            raise LedgerError("an account needs the name of its data set")
        if relation not in _RELATIONS:
            raise LedgerError(f"the relation must be one of {', '.join(_RELATIONS)}, not {relation!r}")
        stored = self._store.find_or_add(dataset, _limit(budget), relation, unit, parallel=parallel)
        return _same_kind(LedgerAccount(self._store, stored), relation, unit)


def _same_kind(account: LedgerAccount, relation: str, unit: str | None) -> LedgerAccount:
    # ε over records and ε over customers, or over two kinds of neighbours, do not add up to anything
    if (account.relation, account.unit) != (relation, unit):
        raise LedgerError(
            f"the account of the data set {account.dataset!r} holds for relation={account.relation!r}, "
            f"unit={account.unit!r} and cannot be used with relation={relation!r}, unit={unit!r}: "
            "make an account of another name"
        )
    return account


def _limit(budget: PrivacyBudget) -> Units:
    limit = Units.of_budget(budget)
    if min(limit) < 1 or max(limit) > _LARGEST_UNITS:
        raise LedgerError(f"a ledger keeps epsilon from 1e-12 to 9e6 and delta from 1e-18, not {budget}")
    return limit


def _as_budget(limit: Units) -> PrivacyBudget:
    amounts = limit.as_spend()
    return PrivacyBudget(amounts.epsilon, amounts.delta)
