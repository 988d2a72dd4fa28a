"""The account that a run spends from: its own in memory, one of a ledger, or one that is shared."""

from __future__ import annotations

from typing import cast

from dpfewshot.budget.account import Account, bound
from dpfewshot.budget.memory import MemoryAccount
from dpfewshot.errors import InvalidPlan
from dpfewshot.ledger import BudgetLedger
from dpfewshot.values import PrivacyBudget


def open_account(
    budget: PrivacyBudget | None,
    ledger: object,
    dataset: str | None,
    *,
    relation: str,
    unit: str | None,
    create: bool = False,
) -> Account | None:
    """The account that `ledger` names, bound to the run's relation and unit.

    Args:
        budget: of the run; None for a run without a guarantee, which has no account.
        ledger: None, the URL of a ledger, a BudgetLedger, or an Account.
        dataset: the account's name in a ledger.
        relation: the neighbouring relation of the run.
        unit: the column that names whom a record belongs to.
        create: create the account with the run's budget if the ledger has none of that name.

    Raises:
        InvalidPlan: a run without a guarantee names a ledger, a ledger comes without a data set, a data set
            or `create` without a ledger, an account with another data set, or `ledger` is something else.
        LedgerError: there is no such account, it holds for another relation or unit, or the ledger cannot be
            used.
    """
    if ledger is None and dataset is not None:
        raise InvalidPlan(
            "dataset= names an account of a ledger, but ledger= is None: give its URL, or leave dataset= out "
            "for a budget that lives as long as this process"
        )
    if budget is None:
        if ledger is not None:
            raise InvalidPlan("a run without a guarantee (certified=False) is refused a ledger account")
        return None
    account = MemoryAccount(budget) if ledger is None else _as_account(ledger)
    if account is None:
        account = _in_ledger(ledger, dataset, budget, relation=relation, unit=unit, create=create)
    elif create:
        raise InvalidPlan("create=True creates an account in a ledger: give ledger= its URL, and dataset=")
    elif dataset is not None and dataset != getattr(account, "dataset", None):
        raise InvalidPlan(f"ledger= is an account already, and not that of the data set {dataset!r}")
    bound(account, frozenset({relation}), unit)
    return account


def _as_account(ledger: object) -> Account | None:
    """The object if it has every member of an Account; None for a URL or a BudgetLedger.

    Raises:
        InvalidPlan: it is something else.
    """
    if isinstance(ledger, (str, BudgetLedger)):
        return None
    # not isinstance: a wrapper may forward to another account's members
    lacking = [name for name in vars(Account) if not name.startswith("_") and not hasattr(ledger, name)]
    if lacking:
        raise InvalidPlan(
            f"ledger= takes the URL of a ledger, a BudgetLedger or an Account; {type(ledger).__name__} is "
            f"none: for an Account it lacks {', '.join(lacking)}"
        )
    return cast("Account", ledger)


def _in_ledger(
    ledger: object,
    dataset: str | None,
    budget: PrivacyBudget,
    *,
    relation: str,
    unit: str | None,
    create: bool,
) -> Account:
    if not dataset:
        raise InvalidPlan("ledger= needs dataset=, the name of the account")
    opened = ledger if isinstance(ledger, BudgetLedger) else BudgetLedger.open(str(ledger))
    if create:
        return opened.account_or_create(dataset, budget, relation=relation, unit=unit)
    return opened.account(dataset, relation=relation, unit=unit)
