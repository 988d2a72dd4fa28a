"""Accounts that outlive their process and are shared by many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dpfewshot.accounting.account import Details, other_kind
from dpfewshot.accounting.amounts import Units
from dpfewshot.accounting.draws import Draws
from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.ledger.counting import details_of
from dpfewshot.ledger.history import CANCEL, CHARGE, SETTLE, as_json, as_shown
from dpfewshot.ledger.names import dataset_name, same_spelling, similar
from dpfewshot.ledger.verification import Verification, check
from dpfewshot.redaction import redacts_errors_of_methods
from dpfewshot.values import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, PrivacyBudget, PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.ledger.store import Store, StoredAccount

_RELATIONS: Final = (ADD_REMOVE, ZERO_OUT, REPLACE_ONE)
_LARGEST_UNITS: Final = 2**63 - 1
_CREATE: Final = "dpfewshot ledger create --ledger URL --dataset NAME --epsilon E --delta D"


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
        """The one partition whose parts run side by side, as "task#fingerprint of its labels".

        None until a plan over a part is reserved.
        """
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

    def bind(self, relations: frozenset[str], unit: str | None) -> None:
        """Say what the costs to come hold for. See `Account.bind`."""
        if self.relation not in relations or self.unit != unit:
            name = f"the account of the data set {self.dataset!r}"
            raise LedgerError(other_kind(name, [self.relation], self.unit, relations, unit))

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

    def name_unit(self, unit: str) -> None:
        """Record the name of the unit column, where the account is from before names were recorded.

        Ledgers then kept "unit" whatever the column: whoever calls this knows which one it was. The history
        records it. The same name again changes nothing.

        Raises:
            LedgerError: the account has no units, or their column has another name.
        """
        _check_unit(unit)
        self._store.name_unit(self._stored.number, unit)
        self._stored = replace(self._stored, unit=unit)

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
        """Open a ledger, and migrate the tables of an older version. `create` makes what is missing.

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
            LedgerError: there is none. Names the accounts that `dataset` may have been meant to be.
        """
        stored = self._find(dataset)
        if stored is None:
            raise LedgerError(f"{self._unknown(dataset_name(dataset))}: make one with {_CREATE}")
        return LedgerAccount(self._store, stored)

    def _find(self, dataset: str) -> StoredAccount | None:
        # as it is written first: accounts from before names were normalised may have any
        return self._store.find(dataset if dataset in self.datasets() else dataset_name(dataset))

    def _unknown(self, name: str) -> str:
        if not self._store.is_there:
            return f"{self._store.name} does not exist, so it has no account for the data set {name!r}"
        close = ", ".join(ascii(each) for each in similar(name, self.datasets()))
        meant = f" (did you mean {close}?)" if close else ""
        return f"{self._store.name} has no account for the data set {name!r}{meant}"

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
            dataset: its name, of letters of one script, digits, spaces and ASCII punctuation. It is
                normalised: NFKC, stripped.
            budget: what may be spent in all, by every plan there will ever be.
            relation: "zero-out", "add-remove" or "replace-one"; every plan must have the same.
            unit: the column that names whom a record belongs to, as `read_records(unit=...)` names it; every
                plan must have the same. None: a unit is one record.
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
        stored = self._find(dataset)
        if stored is None:
            return self._find_or_add(dataset, budget, relation, unit)
        return _bound(LedgerAccount(self._store, stored), relation, unit)

    def _find_or_add(
        self, dataset: str, budget: PrivacyBudget, relation: str, unit: str | None, *, parallel: bool = True
    ) -> LedgerAccount:
        name = dataset_name(dataset)
        for other in self.datasets():
            if other != name and same_spelling(other, name):
                raise LedgerError(
                    f"the account {other!a} is another spelling of {name!r}: name it exactly so"
                )
        if relation not in _RELATIONS:
            raise LedgerError(f"the relation must be one of {', '.join(_RELATIONS)}, not {relation!r}")
        _check_unit(unit)
        stored = self._store.find_or_add(name, _limit(budget), relation, unit, parallel=parallel)
        return _bound(LedgerAccount(self._store, stored), relation, unit)


def _bound(account: LedgerAccount, relation: str, unit: str | None) -> LedgerAccount:
    account.bind(frozenset({relation}), unit)
    return account


def _check_unit(unit: str | None) -> None:
    if unit is not None and not unit.strip():
        raise LedgerError("unit must be the name of a column, or None where a unit is one record")


def _limit(budget: PrivacyBudget) -> Units:
    limit = Units.of_budget(budget)
    if min(limit) < 1 or max(limit) > _LARGEST_UNITS:
        raise LedgerError(f"a ledger keeps epsilon from 1e-12 to 9e6 and delta from 1e-18, not {budget}")
    return limit


def _as_budget(limit: Units) -> PrivacyBudget:
    amounts = limit.as_spend()
    return PrivacyBudget(amounts.epsilon, amounts.delta)
