"""The options that name an account of a ledger, and the account before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.backends import Decorator
from dpfewshot.errors import InvalidPlan

if TYPE_CHECKING:
    from dpfewshot.account.account import Account
    from dpfewshot.account.amounts import Amount

LEDGER_VARIABLE = "DPFEWSHOT_LEDGER"
"""Stands for --ledger: a password need not stand in the arguments, which other users can list."""

_DURABLE = "A durable budget, as in sqlite:///budget.db."


def ledger_option(name: str = "ledger", *, text: str = _DURABLE, required: bool = False) -> Decorator:
    """The option `--ledger`.

    Args:
        name: of the command's argument.
        text: of its help.
        required: whether the command needs a ledger.
    """
    return click.option(
        "--ledger", name, required=required, envvar=LEDGER_VARIABLE, show_envvar=True, help=text
    )


def account_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that spends the options that name its account."""
    dataset = click.option("--dataset", default=None, help="The account's name, as in `ledger create`.")
    create = click.option(
        "--create",
        is_flag=True,
        help="Create the account with this run's budget if the ledger has none of that name.",
    )
    return ledger_option()(dataset(create(command)))


@contextmanager
def existing_account(
    ledger: str | None, dataset: str | None, *, relation: str, unit: str | None, create: bool = False
) -> Iterator[Account | None]:
    """The account that a run names, bound to its relation and unit; None without one. Creates nothing.

    Args:
        ledger: the value of --ledger.
        dataset: the value of --dataset.
        relation: the neighbouring relation of the run.
        unit: the column that names whom a record belongs to.
        create: whether the run creates the account if there is none.

    Raises:
        InvalidPlan: there is a ledger without a data set.
        LedgerError: there is no such account, or it holds for another relation or unit.
    """
    if ledger is None:
        yield None
        return
    if not dataset:
        raise InvalidPlan("--ledger needs --dataset, the name of the account")
    from dpfewshot.account.ledger import BudgetLedger
    from dpfewshot.account.names import dataset_name

    with BudgetLedger.open(ledger) as opened:
        if create and not {dataset, dataset_name(dataset)}.intersection(opened.datasets()):
            yield None
            return
        account = opened.account(dataset, relation=relation, unit=unit)
        account.bind(frozenset({relation}), unit)
        yield account


def least_cost(account: Account, epsilon: float, delta: float) -> Amount:
    """What a plan for a budget costs at least, before it is planned.

    By sums that is nearly the whole budget: calibration ends within a thousandth of ε. A Rényi rule may count
    far less, so that only an account with nothing left refuses.
    """
    from dpfewshot.account.amounts import Amount
    from dpfewshot.account.rule import Admission
    from dpfewshot.values import PrivacySpend

    if account.rule == Admission.RENYI:
        return Amount(1, 0)
    return Amount.of_cost(PrivacySpend(0.999 * epsilon, delta))
