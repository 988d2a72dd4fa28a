"""`dpfewshot ledger`: create durable budgets, look at them, and check that nobody changed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, on_one_line

if TYPE_CHECKING:
    from dpfewshot.ledger import LedgerAccount

_LEDGER = click.option("--ledger", "url", required=True, help="As in sqlite:///budget.db.")
_DATASET = click.option("--dataset", required=True, help="The account's name.")
_EPSILON = click.option("--epsilon", type=float, required=True)
_DELTA = click.option("--delta", type=float, required=True)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _of_an_account(command: Callable[..., Any]) -> Callable[..., Any]:
    return _LEDGER(_DATASET(_JSON(command)))


@click.group()
def ledger() -> None:
    """Create, look at and check durable privacy budgets. Only `create` makes anything.

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
    help="The column that names whom a record belongs to: a unit is all records of one value of it. "
    "Every plan must name the same. Default: a unit is one record.",
)
@click.option(
    "--sequential",
    is_flag=True,
    help="Every plan counts for the whole data set, so that tasks with other labels may share the account.",
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
    as_json: bool,
) -> None:
    """Open an account for a data set.

    \b
    Example:
      dpfewshot ledger create --ledger sqlite:///budget.db --dataset tickets --epsilon 8 --delta 1e-5
    """
    from dpfewshot.ledger import BudgetLedger

    with BudgetLedger.open(url) as opened:
        account = opened.create(
            dataset,
            PrivacyBudget(epsilon, delta),
            relation=relation,
            unit=unit,
            parallel=not sequential,
        )
        _print_summary(account, as_json=as_json)


@ledger.command()
@_of_an_account
def show(*, url: str, dataset: str, as_json: bool) -> None:
    """Show an account's budget, what is spent of it, and the hash of its last act.

    \b
    Example:
      dpfewshot ledger show --ledger sqlite:///budget.db --dataset tickets --json
    """
    with _account(url, dataset) as account:
        _print_summary(account, as_json=as_json)


@ledger.command()
@_of_an_account
def history(*, url: str, dataset: str, as_json: bool) -> None:
    """List what happened to an account: when, who, what.

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
@click.option("--head", default=None, help="The hash of an act, noted before, that the history must contain.")
@_of_an_account
def verify(*, url: str, dataset: str, head: str | None, as_json: bool) -> None:
    """Recompute the chain of hashes and replay the history. Exit status 2 if anything disagrees.

    Whoever can write to the database can also write a whole new history. Note the printed head elsewhere
    and give it later: --head finds that, and a copy that was restored.

    \b
    Example:
      dpfewshot ledger verify --ledger sqlite:///budget.db --dataset tickets
    """
    with _account(url, dataset) as account:
        found = account.verify(head)
    if as_json:
        document = {"dataset": dataset, "ok": found.ok, "acts": found.acts, "head": found.head}
        click.echo(json.dumps({**document, "problems": list(found.problems)}))
    elif found.ok:
        click.echo(f"{on_one_line(dataset)}: {found.acts} acts agree, head {found.head}")
    if not found.ok:
        raise LedgerError(f"the account of {dataset!r} cannot be trusted: {'; '.join(found.problems)}")


@ledger.command()
@_of_an_account
def export(*, url: str, dataset: str, as_json: bool) -> None:  # noqa: ARG001 - it has no other form
    """Print the account, its entries and its history as they are stored: one JSON object.

    Amounts are whole units: 1e-12 of epsilon, 1e-18 of delta.

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
    """Replace an account's budget, which its history records. More of it weakens the promise.

    \b
    Example:
      dpfewshot ledger change-budget --ledger sqlite:///budget.db --dataset tickets --epsilon 4 --delta 1e-5
    """
    with _account(url, dataset) as account:
        account.change_budget(PrivacyBudget(epsilon, delta))
        _print_summary(account, as_json=as_json)


@ledger.command("name-unit")
@click.option(
    "--unit", required=True, metavar="COLUMN", help="The unit column that its plans were made with."
)
@_of_an_account
def name_unit(*, url: str, dataset: str, unit: str, as_json: bool) -> None:
    """Record the unit column's name in an account of an older version, which kept "unit" for any column.

    \b
    Example:
      dpfewshot ledger name-unit --ledger sqlite:///budget.db --dataset tickets --unit customer
    """
    with _account(url, dataset) as account:
        account.name_unit(unit)
        _print_summary(account, as_json=as_json)


def _words(row: dict[str, Any]) -> Iterator[object]:
    """The columns of an act, some of them empty."""
    from dpfewshot.ledger.counting import draws_in

    yield from (row["at"], row["actor"], row["act"])
    yield f"entry {row['entry']}" if row["entry"] else ""
    yield row["scope"]
    if row["epsilon"] is not None:
        yield f"epsilon={row['epsilon']:.6g} delta={row['delta']:.3g}"
    draws = draws_in(row["details"])
    if draws is not None:
        yield f"blocks left: {', '.join(map(str, draws.left))}"


@contextmanager
def _account(url: str, dataset: str) -> Iterator[LedgerAccount]:
    from dpfewshot.ledger import BudgetLedger

    with BudgetLedger.open(url) as opened:
        yield opened.account(dataset)


def _print_summary(account: LedgerAccount, *, as_json: bool) -> None:
    summary = account.summary()
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"{on_one_line(account.dataset)}: budget {summary['budget']}, spent {summary['spent']}, "
        f"{summary['entries']} entries, relation {account.relation}, "
        f"unit {on_one_line(str(account.unit))}, head {account.head}"
    )
