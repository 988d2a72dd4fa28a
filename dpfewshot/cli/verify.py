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
    "This does not show that these are all demonstrations that the entries released, nor that a server's "
    "model is what it claims. Whoever can write to a ledger can rewrite it: compare the chain tip."
)


@click.command()
@click.argument("file")
@ledger_option(text="The ledger that paid, as in sqlite:///budget.db.", required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(*, file: str, ledger: str, as_json: bool) -> None:
    """Check that a ledger paid for the demonstrations of a file, and that each line is as it was released.

    A line is verified if the ledger has the entry that its certificate names; if the entry released exactly
    this line (the history has the SHA-256 of each), at least as often as the file has it; if the entry was
    paid and has the line's epsilon, delta, relation, unit, mechanism and plan; and if its draws suffice for
    the tokens that all its lines state. The history of the account must agree with itself.

    It also prints what wrote the lines: hashes of the model, of its tokenizer and of the public prompt. Exit
    status: 0 verified, 1 not verified, 2 the file or the ledger cannot be read. It only reads: a read-only
    copy of the ledger will do.

    \b
    Example:
      dpfewshot generate ... --output demos.jsonl --ledger sqlite:///budget.db --dataset tickets
      dpfewshot verify demos.jsonl --ledger sqlite:///budget.db
    """
    from dpfewshot.account.ledger import BudgetLedger
    from dpfewshot.audit.certified import check_certificates
    from dpfewshot.demonstrations.collection import numbered_lines

    lines = dict(numbered_lines(file))
    with BudgetLedger.open(ledger) as opened:
        checked = check_certificates(lines.values(), opened, lines)
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
        for name, told in asdict(entry.provenance).items() if entry.cost else ():
            yield f"    {name}: {on_one_line(told or 'unknown')}"
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
        yield f"  {checked.without_certificate} without a certificate: from a baseline, or removed"
    if checked.without_ledger:
        yield f"  {checked.without_ledger} generated without a ledger: nobody counted what they cost"
    yield LIMITS


def _entry_in_words(entry: CheckedEntry) -> str:
    lines = counted(entry.demonstrations, "demonstration")
    if entry.cost is None:
        named = on_one_line(f"reservation {entry.reservation} of {entry.dataset}")
        return f"{named}: {lines}, not in the ledger"
    named = f"entry {entry.entry} of {on_one_line(entry.dataset)}"
    cost = f"epsilon={amount_text(entry.cost.epsilon)} delta={amount_text(entry.cost.delta)}"
    return f"{named}: {lines}, {entry.state}, {cost}{', disagrees' if entry.problems else ''}"
