"""`dpfewshot ledger` keeps durable budgets; `dpfewshot verify` compares demonstrations with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.account.draws import draws_in
from dpfewshot.account.history import CANCEL, RESERVE, SETTLE
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.scopes import scope_text
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import FAILED, Decorator, aligned, say, warn
from dpfewshot.cli.project import Project
from dpfewshot.errors import DPFewShotError, LedgerError
from dpfewshot.values import PrivacyBudget, amount_text, believed, counted, on_one_line, percent_text

if TYPE_CHECKING:
    from dpfewshot.account.account import Account

_LARGEST: Final = " (labels have different records, so the largest cost counts, not the sum)"

LIMITS: Final = (
    "This does not show that these are all demonstrations that the entries released, nor that a server's "
    "model is what it claims. Whoever can write to a ledger can rewrite it: compare the chain tip with the "
    "one that you noted when the lines were generated."
)


def _takes(*wanted: str, **further: Any) -> Decorator:
    """Give a command an account and further options, of which budgets must be given."""
    required = {"ledger", "account", "epsilon", "delta"}
    return takes("ledger", "account", *wanted, required=required, **further)


_DELTA: Final = {"help": "Delta of the budget."}


@click.group()
def ledger() -> None:
    """Create, show and check durable privacy budgets. Only `create` creates anything.

    \b
    Example:
      dpfewshot ledger create --ledger sqlite:///budget.db --account tickets --epsilon 8 --delta 1e-5
    """


@ledger.command()
@_takes(
    "epsilon",
    "delta",
    "unit",
    from_file=False,
    delta=_DELTA,
    unit={"help": "The column that names whom a record belongs to, in every plan. Default: one record."},
)
@click.option("--relation", type=click.Choice(["zero-out", "add-remove", "replace-one"]), default="zero-out")
@click.option(
    "--sequential", is_flag=True, help="Every plan counts for all records: tasks may share the account."
)
@click.option(
    "--rule",
    type=click.Choice(["sum", "renyi"]),
    default="sum",
    help="How plans count. sum: their epsilon and delta add up. renyi: many small plans share the budget "
    "with far less noise; one plan may take a quarter of delta.",
)
def create(*, project: Project, relation: str, sequential: bool, rule: str, as_json: bool) -> None:
    """Create an account for a data set.

    \b
    Example:
      dpfewshot ledger create --ledger sqlite:///budget.db --account tickets --epsilon 8 --delta 1e-5
      dpfewshot ledger create --ledger sqlite:///year.db --account year --epsilon 4 --delta 1e-5 --rule renyi
    """
    with BudgetLedger.open(str(project.account.ledger)) as opened:
        account = opened.create(
            str(project.account.account),
            _budget(project),
            relation=relation,
            unit=project.data.unit,
            parallel=not sequential,
            rule=rule,
        )
        _print_summary(account, as_json=as_json)


@ledger.command()
@takes("ledger", "account", required=("ledger",))
def show(*, project: Project, as_json: bool) -> None:
    """Show an account's budget, what is spent, and its chain tip, the hash of its last event.

    Without --account it shows all accounts of the ledger (--json: an object a line).

    A line for each stratum that has spent follows: its task with the start of its partition's fingerprint,
    its label, what its own plans have spent, what is left of it, and how many more plans like the account's
    last one fit. Together the strata of one partition cost the greatest of what they have spent.

    \b
    Example:
      dpfewshot ledger show --ledger sqlite:///budget.db --account tickets --json
    """
    with BudgetLedger.open(str(project.account.ledger)) as opened:
        name = project.account.account
        names = opened.datasets() if name is None else [name]
        if not names:
            raise LedgerError("the ledger has no account: compare its path, or see `dpfewshot ledger create`")
        broken: list[str] = []
        for each in names:
            try:
                _print_summary(opened.account(each), as_json=as_json)
            except DPFewShotError as error:
                if name is not None:
                    raise
                broken.append(f"{on_one_line(each)!r}: {error}")
        if broken:
            raise LedgerError("; ".join(broken))


@ledger.command()
@_takes()
def history(*, project: Project, as_json: bool) -> None:
    """List the events of an account: when, who, what.

    On an account with a Rényi rule, renyi is what a plan adds to the sum of divergences. It may exceed the
    plan's epsilon, which leaves aside what happens with probability delta.

    \b
    Example:
      dpfewshot ledger history --ledger sqlite:///budget.db --account tickets
    """
    with _account(project) as account:
        rows = account.history()
    if as_json:
        click.echo(json.dumps({"dataset": project.account.account, "history": rows}))
        return
    for row in rows:
        click.echo("  ".join(on_one_line(str(word)) for word in _words(row) if word))


def _words(row: dict[str, Any]) -> Iterator[object]:
    """The columns of an event, some of them empty."""
    yield from (row["at"], row["actor"], row["act"])
    yield f"entry {row['entry']}" if row["entry"] else ""
    yield scope_text(row["scope"]) if row["scope"] else ""
    if row["epsilon"] is not None:
        yield _exactly(row)
    yield f"renyi={amount_text(row['renyi'])}" if "renyi" in row else ""
    with suppress(ValueError):  # most events grant none
        yield f"draws left: {draws_in(row['details']).left}"


@ledger.command("verify")
@_takes()
@click.option("--head", help="A chain tip noted earlier: the history must contain this hash.")
def verify_account(*, project: Project, head: str | None, as_json: bool) -> None:
    """Recompute the chain of hashes and replay the history. Exit status 2 if anything disagrees.

    Anyone who can write to the database can rewrite the whole history. Note the printed chain tip elsewhere
    and pass it later as --head: that finds a rewritten history and a restored copy.

    \b
    Example:
      dpfewshot ledger verify --ledger sqlite:///budget.db --account tickets
    """
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise click.UsageError("--head must be a whole chain tip: 64 characters of 0-9 and a-f")
    with _account(project) as account:
        found = account.verify(head)
    dataset = str(project.account.account)
    if as_json:
        document = {"dataset": dataset, "ok": found.ok, "acts": found.events, "head": found.chain_tip}
        click.echo(json.dumps({**document, "problems": list(found.problems)}))
    elif found.ok:
        contains = "" if head is None else f", the history contains {head}"
        say(f"{on_one_line(dataset)}: {found.events} events agree, chain tip {found.chain_tip}{contains}")
    if not found.ok:
        raise LedgerError(f"the account of {dataset!r} cannot be trusted: {'; '.join(found.problems)}")


@ledger.command()
@_takes()
def export(*, project: Project, as_json: bool) -> None:  # noqa: ARG001 - JSON is its only form
    """Print the account, its entries and its history as they are stored: one JSON object.

    Amounts are integers, named with their units: epsilon_in_1e-12, delta_in_1e-18. A row's hash covers these
    names.

    \b
    Example:
      dpfewshot ledger export --ledger sqlite:///budget.db --account tickets --json > tickets.json
    """
    with _account(project) as account:
        click.echo(json.dumps(account.export()))


@ledger.command("change-budget")
@_takes("epsilon", "delta", own=("epsilon", "delta"), delta=_DELTA)
def change_budget(*, project: Project, as_json: bool) -> None:
    """Replace an account's budget, which its history records. A larger one weakens the promise.

    \b
    Example:
      dpfewshot ledger change-budget --ledger sqlite:///budget.db --account tickets --epsilon 4 --delta 1e-5
    """
    with _account(project) as account:
        before = account.budget.epsilon
        account.change_budget(_budget(project))
        budget, spent = account.budget, account.spent
        if budget.epsilon > before:
            warn(
                f"the promise is weaker than at epsilon {amount_text(before)}: 50 % sure becomes at most "
                f"{percent_text(believed(0.5, budget.epsilon))} sure, by all texts of the account together"
            )
        if spent.epsilon > budget.epsilon or spent.delta > budget.delta:
            warn(
                f"the account of {account.dataset!r} is overdrawn: {_exactly(asdict(spent))} is spent of "
                f"{_exactly(asdict(budget))}; no further plan fits"
            )
        _print_summary(account, as_json=as_json)


def _budget(project: Project) -> PrivacyBudget:
    return PrivacyBudget(project.budget.epsilon, project.budget.delta or 0.0)


@contextmanager
def _account(project: Project) -> Iterator[Account]:
    with BudgetLedger.open(str(project.account.ledger)) as opened:
        yield opened.account(str(project.account.account))


def _print_summary(account: Account, *, as_json: bool) -> None:
    summary: dict[str, Any] = account.summary()
    if as_json:
        further = {"rule": account.rule, "plans_left": account.plans_left, "chain_tip": account.chain_tip}
        click.echo(json.dumps({**summary, **further}))
        return
    say(
        f"{on_one_line(str(account.dataset))}: budget {_exactly(summary['budget'])}, "
        f"spent {_exactly(summary['spent'])}, {counted(summary['entries'], 'entry')}, "
        f"{_holds_for(account)}, rule {account.rule}, chain tip {account.chain_tip}"
    )
    strata = summary["strata"]
    if not strata:
        return
    columns = ("stratum", "epsilon spent", "left", "delta spent", "left", "more plans like the last one")
    rows = [
        (
            scope_text(one["scope"]),
            *(f"{each[name]}" for name in ("epsilon", "delta") for each in (one, one["remaining"])),
            f"{one['plans_left']}",
        )
        for one in strata
    ]
    click.echo("\n".join(f"  {line}" for line in aligned([columns, *rows])))
    if account.parallel and len(strata) > 1 and None not in [one["scope"] for one in strata]:
        say("  each stratum has other records: the account counts the largest of them, not the sum")
    unfinished = sorted({on_one_line(scope_text(row["scope"])) for row in unfinished_runs(account)})
    if unfinished:
        say(
            f"  unfinished, or still running: {'; '.join(unfinished)}; generate --resume continues, and pays "
            "for labels that have not begun; a run that is left costs nothing more"
        )


def unfinished_runs(account: Account) -> list[dict[str, Any]]:
    """The events that reserved runs of demonstrations which have not ended, oldest first."""
    begun: dict[object, dict[str, Any]] = {}
    history: list[dict[str, Any]] = account.history()
    for row in history:
        if row["act"] == RESERVE and "tokens_per_step" in row["details"]:  # else it writes no text
            begun[row["entry"]] = row
        elif row["act"] in (SETTLE, CANCEL):
            begun.pop(row["entry"], None)
    return list(begun.values())


def _holds_for(account: Account) -> str:
    return f"relation {account.relation}, each {on_one_line(account.unit or 'record')} is one unit"


def _exactly(amount: Mapping[str, float]) -> str:
    return f"epsilon={amount_text(amount['epsilon'])} delta={amount_text(amount['delta'])}"


# ---- demonstrations --------------------------------------------------------------------------------------


@click.command()
@click.argument("file")
@takes("ledger", required=("ledger",), files={"demonstrations": "file"})
@click.option("--details", is_flag=True, help="Show each entry that paid, and what wrote its lines.")
def verify(*, file: str, project: Project, details: bool, as_json: bool) -> None:
    """Check that a ledger paid for the demonstrations of a file, and that each line is as it was released.

    A line is verified if the ledger has the entry that its certificate names; if the entry released exactly
    this line (the history has the SHA-256 of each), at least as often as the file has it; if the entry was
    paid and has the line's epsilon, delta, relation, unit, mechanism and plan; and if its draws suffice for
    the tokens that all its lines state. The history of the account must agree with itself.

    With --details it also prints what wrote the lines: hashes of the model, its tokenizer and the public
    prompt. Exit status: 0 verified, 1 not verified, 2 the file or the ledger cannot be read. It only reads: a
    read-only copy of the ledger will do.

    \b
    Example:
      dpfewshot generate ... --output demos.jsonl --ledger sqlite:///budget.db --account tickets
      dpfewshot verify demos.jsonl --ledger sqlite:///budget.db
    """
    from dpfewshot.audit.certified import check_certificates
    from dpfewshot.demonstrations import numbered_lines

    lines = dict(numbered_lines(file))
    with BudgetLedger.open(str(project.account.ledger)) as opened:
        checked = check_certificates(lines.values(), opened, lines)
        document: dict[str, Any] = {"file": file, "verified": checked.verified, **asdict(checked)}
        for account in document["accounts"]:
            account["holds_for"] = _holds_for(opened.account(account["dataset"]))
    if as_json:
        click.echo(json.dumps({**document, "does_not_show": LIMITS}))
    else:
        say("\n".join(_verdict(document, details=details)))
    if not checked.verified:
        raise click.exceptions.Exit(FAILED)


def _verdict(found: Mapping[str, Any], *, details: bool) -> Iterator[str]:
    """The document of `verify --json` in lines, the verdict first; without `details`, only what disagrees."""
    yield (
        f"{on_one_line(found['file'])}: {'verified' if found['verified'] else 'NOT VERIFIED'}, "
        f"{counted(found['demonstrations'], 'demonstration')}"
    )
    for account in found["accounts"]:
        spent, dataset = account["together"], account["dataset"]
        costs = [one["cost"] for one in found["entries"] if one["dataset"] == dataset and one["cost"]]
        largest = spent["epsilon"] < sum(one["epsilon"] for one in costs)
        yield (
            f"  account {on_one_line(dataset)}: together they cost {_exactly(spent)}"
            f"{_LARGEST if largest else ''}; {account['holds_for']}; chain tip {account['chain_tip']}"
        )
        yield from (f"    {on_one_line(problem)}" for problem in account["problems"])
    shown = None  # what wrote one entry's lines mostly wrote the next one's
    for entry in found["entries"]:
        if not (details or entry["problems"]):
            continue
        lines, dataset = counted(entry["demonstrations"], "demonstration"), on_one_line(entry["dataset"])
        of_labels = ", ".join(map(on_one_line, entry["labels"]))
        if entry["cost"] is None:
            named = on_one_line(f"reservation {entry['reservation']} of {dataset}")
            yield f"  {named}: {lines} of {of_labels}, not in the ledger"
        else:
            yield (
                f"  entry {entry['entry']} of {dataset}: {lines} of {of_labels}, {entry['state']}, "
                f"{_exactly(entry['cost'])}{', disagrees' if entry['problems'] else ''}"
            )
            if details and entry["provenance"] != shown:
                shown = entry["provenance"]
                for name, told in shown.items():
                    yield f"    {name}: {on_one_line(told or 'unknown')}"
        yield from (f"    {on_one_line(problem)}" for problem in entry["problems"])
    if found["without_certificate"]:
        free = "one at ε = 0 has none, and nothing here shows that it is one"
        yield f"  {found['without_certificate']} without a certificate: {free}"
    if found["without_ledger"]:
        yield f"  {found['without_ledger']} generated without a ledger: nobody counted what they cost"
    yield LIMITS
