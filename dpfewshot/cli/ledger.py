"""`dpfewshot ledger`: create and show durable budgets, and check that nobody changed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.account.scopes import scope_text
from dpfewshot.cli.accounts import ledger_option
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, amount_text, counted, on_one_line

if TYPE_CHECKING:
    from dpfewshot.account.account import Account

_LEDGER = ledger_option("url", text="As in sqlite:///budget.db.", required=True)
_DATASET = click.option("--dataset", required=True, help="The account's name.")
_EPSILON = click.option("--epsilon", type=float, required=True)
_DELTA = click.option("--delta", type=float, required=True)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _of_an_account(command: Callable[..., Any]) -> Callable[..., Any]:
    return _LEDGER(_DATASET(_JSON(command)))


@click.group()
def ledger() -> None:
    """Create, show and check durable privacy budgets. Only `create` creates anything.

    \b
    Example:
      dpfewshot ledger create --ledger sqlite:///budget.db --dataset tickets --epsilon 8 --delta 1e-5
    """


@ledger.command()
@_LEDGER
@_DATASET
@_EPSILON
@_DELTA
@click.option(
    "--relation",
    type=click.Choice(["zero-out", "add-remove", "replace-one"]),
    default="zero-out",
    show_default=True,
)
@click.option(
    "--unit",
    default=None,
    metavar="COLUMN",
    help="The column that names whom a record belongs to; a unit is all records with one value in it. "
    "Every plan must use the same column. Default: a unit is one record.",
)
@click.option(
    "--sequential",
    is_flag=True,
    help="Every plan counts for the whole data set, so that tasks with other labels may share the account.",
)
@click.option(
    "--rule",
    type=click.Choice(["sum", "renyi"]),
    default="sum",
    show_default=True,
    help="How plans count. sum: their epsilon and delta add up. renyi: many small plans share the budget "
    "with far less noise; one plan may take a quarter of delta.",
)
@_JSON
def create(
    *,
    url: str,
    dataset: str,
    epsilon: float,
    delta: float,
    relation: str,
    unit: str | None,
    sequential: bool,
    rule: str,
    as_json: bool,
) -> None:
    """Create an account for a data set.

    \b
    Example:
      dpfewshot ledger create --ledger sqlite:///budget.db --dataset tickets --epsilon 8 --delta 1e-5
      dpfewshot ledger create --ledger sqlite:///year.db --dataset year --epsilon 4 --delta 1e-5 --rule renyi
    """
    from dpfewshot.account.ledger import BudgetLedger

    with BudgetLedger.open(url) as opened:
        account = opened.create(
            dataset,
            PrivacyBudget(epsilon, delta),
            relation=relation,
            unit=unit,
            parallel=not sequential,
            rule=rule,
        )
        _print_summary(account, as_json=as_json)


@ledger.command()
@_of_an_account
def show(*, url: str, dataset: str, as_json: bool) -> None:
    """Show an account's budget, what is spent, and its chain tip, the hash of its last event.

    A line for each stratum that has spent follows: its task with the start of its partition's fingerprint,
    its label, what its own plans have spent, what is left of it, and how many more plans like the account's
    last one fit. Together the strata of one partition cost the greatest of what they have spent.

    \b
    Example:
      dpfewshot ledger show --ledger sqlite:///budget.db --dataset tickets --json
    """
    with _account(url, dataset) as account:
        _print_summary(account, as_json=as_json)


@ledger.command()
@_of_an_account
def history(*, url: str, dataset: str, as_json: bool) -> None:
    """List the events of an account: when, who, what.

    On an account with a Rényi rule, renyi is what a plan adds to the sum of divergences. It may exceed the
    plan's epsilon, which leaves aside what happens with probability delta.

    \b
    Example:
      dpfewshot ledger history --ledger sqlite:///budget.db --dataset tickets
    """
    with _account(url, dataset) as account:
        rows = account.history()
    if as_json:
        click.echo(json.dumps({"dataset": dataset, "history": rows}))
        return
    for row in rows:
        click.echo("  ".join(on_one_line(str(word)) for word in _words(row) if word))


@ledger.command()
@click.option("--head", default=None, help="A chain tip noted earlier: the history must contain this hash.")
@_of_an_account
def verify(*, url: str, dataset: str, head: str | None, as_json: bool) -> None:
    """Recompute the chain of hashes and replay the history. Exit status 2 if anything disagrees.

    Anyone who can write to the database can rewrite the whole history. Note the printed chain tip elsewhere
    and pass it later as --head: that finds a rewritten history and a restored copy.

    \b
    Example:
      dpfewshot ledger verify --ledger sqlite:///budget.db --dataset tickets
    """
    with _account(url, dataset) as account:
        found = account.verify(head)
    if as_json:
        document = {"dataset": dataset, "ok": found.ok, "acts": found.events, "head": found.chain_tip}
        click.echo(json.dumps({**document, "problems": list(found.problems)}))
    elif found.ok:
        click.echo(f"{on_one_line(dataset)}: {found.events} events agree, chain tip {found.chain_tip}")
    if not found.ok:
        raise LedgerError(f"the account of {dataset!r} cannot be trusted: {'; '.join(found.problems)}")


@ledger.command()
@_of_an_account
def export(*, url: str, dataset: str, as_json: bool) -> None:  # noqa: ARG001 - JSON is its only form
    """Print the account, its entries and its history as they are stored: one JSON object.

    Amounts are integers, named with their units: epsilon_in_1e-12, delta_in_1e-18. A row's hash covers these
    names.

    \b
    Example:
      dpfewshot ledger export --ledger sqlite:///budget.db --dataset tickets --json > tickets.json
    """
    with _account(url, dataset) as account:
        click.echo(json.dumps(account.export()))


@ledger.command("change-budget")
@_EPSILON
@_DELTA
@_of_an_account
def change_budget(*, url: str, dataset: str, epsilon: float, delta: float, as_json: bool) -> None:
    """Replace an account's budget, which its history records. A larger one weakens the promise.

    \b
    Example:
      dpfewshot ledger change-budget --ledger sqlite:///budget.db --dataset tickets --epsilon 4 --delta 1e-5
    """
    with _account(url, dataset) as account:
        account.change_budget(PrivacyBudget(epsilon, delta))
        budget, spent = account.budget, account.spent
        if spent.epsilon > budget.epsilon or spent.delta > budget.delta:
            click.echo(
                f"warning: the account of {dataset!r} is overdrawn: epsilon={spent.epsilon}, "
                f"delta={spent.delta} is spent of epsilon={budget.epsilon}, delta={budget.delta}; no further "
                "plan fits",
                err=True,
            )
        _print_summary(account, as_json=as_json)


def _words(row: dict[str, Any]) -> Iterator[object]:
    """The columns of an event, some of them empty."""
    from dpfewshot.account.draws import draws_in

    yield from (row["at"], row["actor"], row["act"])
    yield f"entry {row['entry']}" if row["entry"] else ""
    yield scope_text(row["scope"]) if row["scope"] else ""
    if row["epsilon"] is not None:
        yield f"epsilon={amount_text(row['epsilon'])} delta={amount_text(row['delta'])}"
    yield f"renyi={amount_text(row['renyi'])}" if "renyi" in row else ""
    draws = draws_in(row["details"])
    if draws is not None:
        yield f"draws left: {', '.join(map(str, draws.left))}"


@contextmanager
def _account(url: str, dataset: str) -> Iterator[Account]:
    from dpfewshot.account.ledger import BudgetLedger

    with BudgetLedger.open(url) as opened:
        yield opened.account(dataset)


def _print_summary(account: Account, *, as_json: bool) -> None:
    summary: dict[str, Any] = account.summary()
    left = account.plans_left
    if as_json:
        click.echo(json.dumps({**summary, "rule": account.rule, "plans_left": left}))
        return
    click.echo(
        f"{on_one_line(str(account.dataset))}: budget {_in_words(summary['budget'])}, "
        f"spent {_in_words(summary['spent'])}, {counted(summary['entries'], 'entry', 'entries')}, "
        f"relation {account.relation}, each {on_one_line(account.unit or 'record')} is one unit, "
        f"rule {account.rule}, chain tip {account.chain_tip}"
    )
    for stratum in summary["strata"]:
        more = counted(stratum["plans_left"], "more plan")
        click.echo(
            f"  {on_one_line(scope_text(stratum['scope']))}: {_in_words(stratum)} spent, "
            f"{_in_words(stratum['remaining'])} left: {more} like the last one"
        )


def _in_words(amount: dict[str, float]) -> str:
    return f"epsilon={amount['epsilon']} delta={amount['delta']}"
