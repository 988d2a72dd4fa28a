"""Ledgers: accounts that outlive their process and are shared by many processes.

Importing this needs no database library; opening a ledger does (the extra `ledger`).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Self

from dpfewshot.account.account import Account, storable
from dpfewshot.account.memory import AccountSettings
from dpfewshot.account.names import dataset_name, similar
from dpfewshot.account.rule import Admission, Rule
from dpfewshot.errors import LedgerError, MissingExtra
from dpfewshot.runtime.redaction import redacts_errors, redacts_errors_of_methods
from dpfewshot.values import PrivacyBudget, Relation

if TYPE_CHECKING:
    from dpfewshot.account.sql import SqlLedger


@redacts_errors_of_methods(LedgerError, "the ledger")
class BudgetLedger:
    """The accounts of one database. Create it with `BudgetLedger.open`."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a ledger, which reads. `create` creates missing tables; only they and what spends write.

        Args:
            url: "sqlite:///budget.db" for the processes of one host, or
                "postgresql+psycopg://user:password@host/database" for several.

        Raises:
            LedgerError: the database cannot be reached or used, or another version of this package created
                its tables. No message contains the password.
            MissingExtra: SQLAlchemy, or for PostgreSQL psycopg, is not installed.
        """
        try:
            from dpfewshot.account.sql import SqlLedger
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sqlalchemy":
                raise
            raise MissingExtra("the durable ledger", "ledger") from None
        return cls(SqlLedger(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further calls, of its accounts too. Nothing is lost: every finished call is on disk."""
        self._ledger.database.close()

    def datasets(self) -> list[str]:
        """The data sets that have an account, sorted."""
        return self._ledger.datasets()

    def account(self, dataset: str, *, relation: str = Relation.ZERO_OUT, unit: str | None = None) -> Account:
        """The account of a data set, of any relation and unit.

        Args:
            relation, unit: of the run, for the command that the message suggests if there is no account.

        Raises:
            LedgerError: the account does not exist. Names accounts with similar names.
        """
        name = dataset_name(dataset)
        stored = self._ledger.find(name)
        if stored is None:
            options = "" if relation == Relation.ZERO_OUT else f" --relation {relation}"
            options += f" --unit {shlex.quote(unit)}" if unit else ""
            raise LedgerError(
                f"{self._unknown(name)}: compare the ledger's path and the name, since a new account is a "
                "new budget; only if none was ever made (with create = true, generate makes it): dpfewshot "
                f"ledger create --ledger URL --account NAME --epsilon E --delta D{options}"
            )
        return Account(stored)

    def _unknown(self, name: str) -> str:
        if not self._ledger.is_there:
            return f"{self._ledger.name} does not exist, so it has no account {name!r}"
        close = ", ".join(ascii(each) for each in similar(name, self.datasets()))
        meant = f" (did you mean {close}?)" if close else ""
        return f"{self._ledger.name} has no account {name!r}{meant}"

    def create(
        self,
        dataset: str,
        budget: PrivacyBudget,
        *,
        relation: str = Relation.ZERO_OUT,
        unit: str | None = None,
        parallel: bool = True,
        rule: str = Admission.SUM,
    ) -> Account:
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
        account = self.account_or_create(
            dataset, budget, relation=relation, unit=unit, parallel=parallel, rule=rule
        )
        if (account.parallel, account.rule) != (parallel, rule):
            raise LedgerError(
                f"the account {dataset!r} is there already, with parallel={account.parallel} and "
                f"rule={str(account.rule)!r}"
            )
        there = account.budget
        if there != storable(budget).as_budget():
            raise LedgerError(
                f"the account {dataset!r} is there already, with the budget epsilon={there.epsilon}, "
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
        parallel: bool = True,
        rule: str = Admission.SUM,
    ) -> Account:
        """The account of a data set, created as by `create` if it does not exist; else with its own budget.

        Errors are those of `create`; of an existing account only the relation and the unit must match.
        """
        name = dataset_name(dataset)
        stored = self._ledger.find(name)
        if stored is None:
            if relation not in tuple(Relation):
                raise LedgerError(f"the relation must be one of {', '.join(Relation)}, not {relation!r}")
            if unit is not None and not unit.strip():
                raise LedgerError("unit must be the name of a column, or None where a unit is one record")
            limit = storable(budget)
            settings = AccountSettings(Rule.of(rule, limit), parallel, str(relation), unit, name)
            stored = self._ledger.find_or_add(limit, settings)
        account = Account(stored)
        account.bind(frozenset({relation}), unit)
        return account


@redacts_errors(LedgerError, "opening an account")
def open_account(
    url: str,
    dataset: str,
    *,
    create: PrivacyBudget | None = None,
    relation: str = Relation.ZERO_OUT,
    unit: str | None = None,
) -> Account:
    """The account of a data set in a ledger.

    Args:
        url: of the ledger, as in `BudgetLedger.open`.
        dataset: the account's name.
        create: the budget to create the account with if the ledger has none of that name; an existing one
            keeps its own. None: it must exist.
        relation, unit: as in `BudgetLedger.create`.

    Raises:
        LedgerError: there is no such account, it was to be created and holds for another relation or unit, or
            the ledger cannot be used.
        MissingExtra: SQLAlchemy, or for PostgreSQL psycopg, is not installed.
    """
    ledger = BudgetLedger.open(url)
    if create is None:
        return ledger.account(dataset, relation=relation, unit=unit)
    return ledger.account_or_create(dataset, create, relation=relation, unit=unit)
