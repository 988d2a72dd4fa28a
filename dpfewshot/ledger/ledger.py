"""Accounts that outlive their process and are shared by many processes."""

from __future__ import annotations

import shlex
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dpfewshot.budget.rule import Admission, Rule
from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.ledger.ledger_account import LedgerAccount, check_unit, limit_of
from dpfewshot.ledger.names import dataset_name, same_spelling, similar
from dpfewshot.runtime.redaction import redacts_errors_of_methods
from dpfewshot.values import UNNAMED_UNIT, PrivacyBudget, Relation

if TYPE_CHECKING:
    from dpfewshot.ledger.store import Store
    from dpfewshot.ledger.stored_account import StoredAccount

_CREATE: Final = "dpfewshot ledger create --ledger URL --dataset NAME --epsilon E --delta D"


@redacts_errors_of_methods(LedgerError, "the ledger")
class BudgetLedger:
    """The accounts of one database. Create it with `BudgetLedger.open`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a ledger, which reads. `create` creates missing tables; only they and what spends write.

        Args:
            url: "sqlite:///budget.db" for the processes of one host, or
                "postgresql+psycopg://user:password@host/database" for several.

        Raises:
            LedgerError: the database cannot be reached or used, or another version of this package created
                its tables. No message contains the password.
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
        """Refuse further calls, of its accounts too. Nothing is lost: every finished call is on disk."""
        self._store.close()

    def datasets(self) -> list[str]:
        """The data sets that have an account, sorted."""
        return self._store.datasets()

    def account(
        self, dataset: str, *, relation: str = Relation.ZERO_OUT, unit: str | None = None
    ) -> LedgerAccount:
        """The account of a data set, of any relation and unit.

        Args:
            dataset: its name.
            relation: of the run, for the command that the message suggests if there is no account.
            unit: of the run, likewise.

        Raises:
            LedgerError: the account does not exist. Names accounts with similar names.
        """
        stored = self._find(dataset)
        if stored is None:
            raise LedgerError(
                f"{self._unknown(dataset_name(dataset))}: compare the ledger's path and the name, since a "
                f"new account is a new budget; only if none was ever made: {_create(relation, unit)}"
            )
        return LedgerAccount(self._store, stored)

    def _find(self, dataset: str) -> StoredAccount | None:
        # the exact spelling first: accounts older than normalised names may have any
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
        relation: str = Relation.ZERO_OUT,
        unit: str | None = None,
        parallel: bool = True,
        rule: str = Admission.SUM,
    ) -> LedgerAccount:
        """Create an account, or return the existing one if its settings match.

        Args:
            dataset: its name, of letters of one script, digits, spaces and ASCII punctuation. It is
                normalised: NFKC, stripped.
            budget: what may be spent in all, by every plan that will ever run.
            relation: "zero-out", "add-remove" or "replace-one"; every plan must have the same.
            unit: the column that names whom a record belongs to, as in `read_records(unit=...)`; every plan
                must have the same. None: a unit is one record.
            parallel: plans over different labels of one task compose in parallel: the greatest of their costs
                counts, and a second task that divides the data set by other labels is refused. False: every
                plan counts for the whole data set, whatever its task.
            rule: "sum": the ε and the δ of plans add up. "renyi": the account also adds up Rényi divergences
                at one order, chosen for this budget, and admits what fits either way. Many small plans then
                share the budget with far less noise; a single plan may take at most a quarter of δ
                (docs/proofs/filter.md).

        Raises:
            InvalidPlan: an unknown rule, or a budget too small for it.
            LedgerError: it exists with other settings, or the ledger cannot store these.
        """
        account = self._find_or_add(
            dataset, budget, relation, unit, parallel=parallel, rule=Rule.of(rule, limit_of(budget))
        )
        if (account.parallel, account.rule) != (parallel, rule):
            raise LedgerError(
                f"the data set {dataset!r} has an account already, with parallel={account.parallel} and "
                f"rule={str(account.rule)!r}"
            )
        there = account.budget
        if there != limit_of(budget).as_budget():
            raise LedgerError(
                f"the data set {dataset!r} has an account already, with the budget epsilon={there.epsilon}, "
                f"delta={there.delta}, not epsilon={budget.epsilon}, delta={budget.delta}: dpfewshot ledger "
                "change-budget replaces it"
            )
        return account

    def account_or_create(
        self,
        dataset: str,
        budget: PrivacyBudget,
        *,
        relation: str = Relation.ZERO_OUT,
        unit: str | None = None,
    ) -> LedgerAccount:
        """The account of a data set, created if it does not exist. An existing one keeps its own budget.

        Raises:
            LedgerError: it exists with another relation or unit, or the ledger cannot store these.
        """
        stored = self._find(dataset)
        if stored is None:
            return self._find_or_add(dataset, budget, relation, unit)
        return _bound(LedgerAccount(self._store, stored), relation, unit)

    def _find_or_add(
        self,
        dataset: str,
        budget: PrivacyBudget,
        relation: str,
        unit: str | None,
        *,
        parallel: bool = True,
        rule: Rule = Rule(),  # noqa: B008 - a frozen value
    ) -> LedgerAccount:
        name = dataset_name(dataset)
        for other in self.datasets():
            if other != name and same_spelling(other, name):
                raise LedgerError(
                    f"the account {other!a} is another spelling of {name!r}: name it exactly so"
                )
        if relation not in tuple(Relation):
            raise LedgerError(f"the relation must be one of {', '.join(Relation)}, not {relation!r}")
        check_unit(unit)
        stored = self._store.find_or_add(
            name, limit_of(budget), str(relation), unit, parallel=parallel, rule=rule
        )
        return _bound(LedgerAccount(self._store, stored), relation, unit)


def _create(relation: str, unit: str | None) -> str:
    """The command that creates an account for a run."""
    options = "" if relation == Relation.ZERO_OUT else f" --relation {relation}"
    named = "" if unit in (None, UNNAMED_UNIT) else f" --unit {shlex.quote(str(unit))}"
    return f"{_CREATE}{options}{named}"


def _bound(account: LedgerAccount, relation: str, unit: str | None) -> LedgerAccount:
    account.bind(frozenset({relation}), unit)
    return account
