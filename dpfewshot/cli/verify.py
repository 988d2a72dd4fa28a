"""`dpfewshot verify`: compares a file of demonstrations with the ledger that paid for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.accounts import ledger_option
from dpfewshot.cli.findings import FAILED
from dpfewshot.values import amount_text, counted, on_one_line

if TYPE_CHECKING:
    from dpfewshot.audit.certified import CheckedDemonstrations, CheckedEntry

LIMITS = (
    "A ledger stores no texts: this does not show that a text is the one that its plan released, that it has "
    "the label, the version or the number of tokens that its line states, nor that these are all that it "
    "released."
)


@click.command()
@click.argument("file")
@ledger_option(text="The ledger that paid, as in sqlite:///budget.db.", required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(*, file: str, ledger: str, as_json: bool) -> None:
    """Check that a ledger has paid for the demonstrations of a file, as each line of it states.

    A line is verified if the ledger has the entry that its certificate names, reserved by the same event; if
    the entry was paid and has the line's epsilon, delta, relation, unit, mechanism and plan; and if its draws
    suffice for the tokens that all its lines state. The history of the account must agree with itself.

    A ledger stores no texts, so a text, its label, its version and its number of tokens are what the
    line states. Exit status: 0 verified, 1 not verified, 2 the file or the ledger cannot be read.

    \b
    Example:
      dpfewshot generate ... --output demos.jsonl --ledger sqlite:///budget.db --dataset tickets
      dpfewshot verify demos.jsonl --ledger sqlite:///budget.db
    """
    from dpfewshot.audit.certified import check_certificates
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.ledger import BudgetLedger

    demonstrations = Demonstrations.from_jsonl(file)
    with BudgetLedger.open(ledger) as opened:
        checked = check_certificates(demonstrations, opened)
    if as_json:
        document = {"file": file, "verified": checked.verified, **asdict(checked)}
        click.echo(json.dumps({**document, "does_not_show": LIMITS}))
    else:
        click.echo("\n".join(_in_words(file, checked)))
    if not checked.verified:
        raise click.exceptions.Exit(FAILED)


def _in_words(file: str, checked: CheckedDemonstrations) -> Iterator[str]:
    yield (
        f"{on_one_line(file)}: {'verified' if checked.verified else 'NOT VERIFIED'}, "
        f"{counted(checked.demonstrations, 'demonstration')}"
    )
    for entry in checked.entries:
        yield f"  {_entry_in_words(entry)}"
        for problem in entry.problems:
            yield f"    {on_one_line(problem)}"
    for account in checked.accounts:
        name, spent = on_one_line(account.dataset), account.together
        yield (
            f"  account {name}: these entries together cost epsilon={amount_text(spent.epsilon)} "
            f"delta={amount_text(spent.delta)}, chain tip {account.chain_tip}"
        )
        for problem in account.problems:
            yield f"    {on_one_line(problem)}"
    if checked.without_certificate:
        yield f"  {checked.without_certificate} without a certificate: of an older version, or a baseline"
    if checked.without_ledger:
        yield f"  {checked.without_ledger} generated without a ledger: nobody counted what they cost"
    yield LIMITS


def _entry_in_words(entry: CheckedEntry) -> str:
    named = f"entry {entry.entry} of {on_one_line(entry.dataset)}"
    lines = counted(entry.demonstrations, "demonstration")
    if entry.cost is None:
        return f"{named}: {lines}, not in the ledger"
    cost = f"epsilon={amount_text(entry.cost.epsilon)} delta={amount_text(entry.cost.delta)}"
    return f"{named}: {lines}, {entry.state}, {cost}{', disagrees' if entry.problems else ''}"
