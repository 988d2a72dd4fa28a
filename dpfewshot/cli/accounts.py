"""The options that name an account of a ledger."""

from __future__ import annotations

from collections.abc import Callable

import click

from dpfewshot.cli.backends import Decorator

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
        "--ledger", name, default=None, required=required, envvar=LEDGER_VARIABLE, show_envvar=True, help=text
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
