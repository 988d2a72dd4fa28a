"""What the commands share that release something from labelled records: `choose` and `calibrate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.accounts import account_options, existing_account, least_cost
from dpfewshot.cli.backends import LLAMA_CPP, Decorator, open_backend
from dpfewshot.cli.options import HOLDOUT, budget_of, delta_option, population_of
from dpfewshot.cli.stages import quiet_option, stages
from dpfewshot.errors import BudgetExceeded
from dpfewshot.runtime.files import write_errors
from dpfewshot.values import PrivacyBudget, check_whole, unit_of

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend
    from dpfewshot.tasks import Task
    from dpfewshot.values import Records

CONTEXT_TOKENS = 1024
"""The default of --context-tokens with llama.cpp: a prompt holds all demonstrations."""

_BLOCK = 30

_OPTIONS: tuple[Decorator, ...] = (
    click.option("--epsilon", type=float, required=True, help="Epsilon of the release."),
    delta_option,
    click.option(
        "--holdout",
        type=float,
        default=HOLDOUT,
        show_default=True,
        help="The fraction of units to read, as given to generate; 0 reads all.",
    ),
    click.option(
        "--scored-units", type=int, default=1000, show_default=True, help="Units to score, on average."
    ),
    click.option(
        "--population",
        multiple=True,
        metavar="LABEL=N",
        help="Public number of units of a label (N if labels are free).",
    ),
    click.option("--record-token-cap", type=int, default=100, show_default=True),
    account_options,
)


def release_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a release from labelled records, beside `data_options`."""
    for option in reversed((*_OPTIONS, quiet_option)):
        command = option(command)
    return command


def read_inputs(task: Task, options: dict[str, Any], *, pure: bool = False) -> tuple[Records, dict[str, Any]]:
    """Read the records, check what needs no model, and return them with the release's keyword arguments.

    Args:
        task: of the records.
        options: of `data_options` and `release_options`.
        pure: whether the release costs ε alone, and no δ.

    Raises:
        BudgetExceeded: the account does not allow the release.
        LedgerError: there is no such account.
        InvalidRecords: a record cannot be used.
        InvalidPlan: an option is outside its range.
        UsageError: an account lacks its ledger, or epsilon is infinite.
    """
    from dpfewshot.planning.population import relation_of
    from dpfewshot.records import read_records
    from dpfewshot.releases.payment import explained, open_payment, scope_of_release
    from dpfewshot.sampling import Holdout, partition_of_units

    if options["dataset"] is not None and options["ledger"] is None:
        raise click.UsageError("--dataset needs --ledger: without one, the budget ends with this run")
    population = population_of(options["population"])
    records = read_records(
        options["records"], text=options["text"], label=options["label_column"], unit=options["unit"]
    )
    budget = budget_of(options["epsilon"], options["delta"], population, records)
    if not isinstance(budget, PrivacyBudget):
        raise click.UsageError("--epsilon must be finite: without noise there is no release")
    check_whole("scored_units", options["scored_units"])
    division = Holdout(options["holdout"])
    open_payment(task, records, budget=None, population=population, holdout=options["holdout"])
    with existing_account(
        options["ledger"],
        options["dataset"],
        relation=relation_of("poisson", population),
        unit=unit_of(records),
        create=options["create"],
    ) as account:
        if account is not None:
            scope = scope_of_release(account, partition_of_units(task, records, division))
            least = least_cost(account, budget.epsilon, 0.0 if pure else budget.delta)
            try:
                account.check([(scope, least)])
            except BudgetExceeded as refusal:
                raise explained(refusal, scope) from None
    same = ("ledger", "dataset", "create", "holdout", "scored_units", "record_token_cap")
    return records, {"budget": budget, "population": population, **{name: options[name] for name in same}}


def publish(text: str, path: str | None, write: Callable[[str], object]) -> None:
    """Print a release and write it to a file, if one is named. It is paid for: neither may lose the other.

    Raises:
        DPFewShotError: the file cannot be written.
        OSError: the text cannot be printed.
    """
    try:
        click.echo(text)
    finally:
        if path is not None:
            with write_errors(path):
                write(path)


def open_model(options: dict[str, Any]) -> LogprobBackend:
    """Open the model that labels records."""
    if options["backend"] == LLAMA_CPP and options["context_tokens"] is None:
        options["context_tokens"] = CONTEXT_TOKENS
    return open_backend(options, prompts=_BLOCK, tell=stages())
