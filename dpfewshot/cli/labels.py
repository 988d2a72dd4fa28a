"""`dpfewshot labels`: release the labels to generate, if a task's labels are free."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.accounts import least_cost, ledger_option
from dpfewshot.cli.columns import text_option
from dpfewshot.errors import InvalidPlan
from dpfewshot.values import PrivacySpend, delta_text, epsilon_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpfewshot.account.account import Account


@click.command()
@click.option("--records", required=True, help="Private records: .jsonl, .csv (also .gz) or .parquet.")
@text_option
@click.option("--label-column", default="label", show_default=True, help="The column of the label.")
@click.option("--unit", default=None, help="The column that names a record's unit, such as a customer id.")
@click.option("--count", type=int, required=True, help="The number of labels.")
@click.option("--epsilon", type=float, required=True, help="Epsilon of the release.")
@click.option("--delta", type=float, default=0.0, help="Delta of the release; required without --candidates.")
@click.option(
    "--candidates", default=None, help="A file with the public labels to choose from, one per line."
)
@ledger_option("url")
@click.option("--dataset", default=None, help="The ledger account's name. The account must exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def labels(
    *,
    records: str,
    text: str | dict[str, str],
    label_column: str,
    unit: str | None,
    count: int,
    epsilon: float,
    delta: float,
    candidates: str | None,
    url: str | None,
    dataset: str | None,
    as_json: bool,
) -> None:
    """Release the labels that most units have, under (epsilon, delta), one per line.

    Without --candidates, there may be fewer than --count, or none.

    \b
    Example:
      dpfewshot labels --records movies.jsonl --count 5 --epsilon 0.5 --delta 1e-6
    """
    from dpfewshot.records import read_records
    from dpfewshot.releases.labels import release_labels

    listed = None if candidates is None else _lines(candidates)
    with _account(url, dataset) as account:
        if account is not None and epsilon > 0:
            least = least_cost(account, epsilon, delta if listed is None else 0.0)
            account.check([(None, least)])
        release = release_labels(
            read_records(records, text=text, label=label_column, unit=unit),
            count=count,
            epsilon=epsilon,
            delta=delta,
            candidates=listed,
            account=account,
        )
    if as_json:
        click.echo(json.dumps(release.as_dict()))
        return
    for label in release.labels:
        click.echo(" ".join(label.splitlines()))  # one line per label
    click.echo(_in_words(len(release.labels), release.spent, release.relation), err=True)


@contextmanager
def _account(url: str | None, dataset: str | None) -> Iterator[Account | None]:
    """Open the account that pays, if one is named."""
    if url is None and dataset is None:
        yield None
        return
    if url is None or not dataset:
        raise InvalidPlan("--ledger and --dataset must be given together")
    from dpfewshot.account.ledger import BudgetLedger

    with BudgetLedger.open(url) as opened:
        yield opened.account(dataset)


def _lines(path: str) -> list[str]:
    """Return the non-blank lines of a public file."""
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidPlan(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidPlan(f"{path}: is not UTF-8; convert the file") from None
    return [line for line in content.split("\n") if line.strip()]


def _in_words(count: int, spent: PrivacySpend | None, relation: str) -> str:
    cost = spent or PrivacySpend(0.0, 0.0)
    return (
        f"{count} labels for epsilon {epsilon_text(cost.epsilon)}, delta {delta_text(cost.delta)}, "
        f"neighbours {relation}"
    )
