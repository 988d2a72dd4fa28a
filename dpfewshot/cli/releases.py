"""`dpfewshot choose`, `search` and `labels`: release something else than demonstrations from records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.account.rule import Admission
from dpfewshot.cli.models import Model, open_backend
from dpfewshot.cli.options import Setting, takes
from dpfewshot.cli.printing import Decorator, quiet_option, stages
from dpfewshot.cli.project import COLUMNS, AccountName, Budget, Project, check_budget
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.runtime.files import read_text, write_errors
from dpfewshot.values import (
    PrivacyBudget,
    PrivacySpend,
    check_whole,
    on_one_line,
    spend_text,
    unit_of,
)

if TYPE_CHECKING:
    from dpfewshot.backends import LogprobBackend
    from dpfewshot.releases.candidates import Choice
    from dpfewshot.values import Demonstration, Records

CONTEXT_TOKENS: Final = 1024
"""The default of `context_tokens` with llama.cpp: a prompt holds all demonstrations."""

_BLOCK: Final = 30
"""Prompts that are evaluated together."""


def _takes(*further: str) -> Decorator:
    """Give a command the settings of a choice from labelled records, and further ones."""
    settings = takes(
        *("task", "records", *COLUMNS, Model, Budget, "holdout", "record_token_cap", AccountName, "output"),
        *("scored_units", "score", "balanced", "proxy_choice", *further),
        required=("task", "records", "epsilon"),
        files={"demonstrations": "candidates", "chosen": "output"},
        output={"help": "A new .jsonl file for the chosen demonstrations."},
    )
    candidates = click.option(
        "--candidates", cls=Setting, multiple=True, required=True, help="From generate --output. Repeatable."
    )
    return lambda command: settings(candidates(quiet_option(command)))


@click.command()
@_takes("no_demonstrations", "instruction_only")
def choose(*, project: Project, candidates: tuple[str, ...], as_json: bool) -> None:
    """Choose the demonstrations that label the records best, under (epsilon, 0), and print their accuracy.

    \b
    Example:
      dpfewshot choose
      dpfewshot choose --task trec --records trec.jsonl.gz --candidates demos.jsonl \\
        --candidates others.jsonl --epsilon 0.2 --output chosen.jsonl
    """
    from dpfewshot.baselines import instruction_only_demonstrations
    from dpfewshot.releases import choosing
    from dpfewshot.releases.candidates import Candidate, checked_candidates

    task = project.task
    offered = [Candidate()] if project.no_demonstrations else []
    offered += [Candidate(Demonstrations.from_jsonl(path), name=path) for path in candidates]
    checked_candidates(task, offered)
    texts = [text for one in offered for text in one.demonstrations]
    with _choosing(project, texts) as (records, model, settings):
        if project.instruction_only:
            written = instruction_only_demonstrations(task, model)
            offered.append(Candidate(written, name="instruction-only"))
        stages()(f"scoring {len(offered)} prompts: up to an hour with a model of a gigabyte")
        choice = choosing.choose(task, records, model, offered, **settings)
    _publish_choice(project, choice, as_json=as_json)


@click.command()
@_takes("rounds", "most_candidates")
def search(*, project: Project, candidates: tuple[str, ...], as_json: bool) -> None:
    """Search in rounds for the best of the demonstrations to show, at the cost of one choice.

    A round exchanges, leaves out and reorders what the round before chose. With several texts of a label
    (--shots) there is more to try.

    \b
    Example:
      dpfewshot search --set rounds=3
      dpfewshot search --task trec --records trec.jsonl.gz --candidates demos.jsonl --epsilon 0.2 \\
        --output chosen.jsonl
    """
    from dpfewshot.releases import choosing

    shown = [one for path in candidates for one in Demonstrations.from_jsonl(path)]
    rounds, most = project.rounds, project.most_candidates
    with _choosing(project, shown) as (records, model, settings):
        stages()(f"scoring in {rounds} rounds: up to an hour each with a model of a gigabyte")
        proposer = choosing.Variations(shown, most=most)
        choice = choosing.search(project.task, records, model, proposer=proposer, rounds=rounds, **settings)
    _publish_choice(project, choice, as_json=as_json)


def _publish_choice(project: Project, choice: Choice, *, as_json: bool) -> None:
    """Print a choice and write its demonstrations. It is paid for: neither may lose the other."""
    where = "records that were kept for this" if project.holdout else "records"
    told = json.dumps(choice.as_dict())
    if not as_json:
        told = _choice_in_words(choice, project.model.name, where)
    try:
        click.echo(told)
    finally:
        if project.output is not None:
            with write_errors(project.output):
                choice.demonstrations.to_jsonl(project.output)


def _choice_in_words(choice: Choice, model: str, where: str) -> str:
    """What was chosen, of what the shares are, and whether they differ for sure; then the statement."""
    model, found, without = on_one_line(model), choice.accuracy, choice.baseline
    told = f"to publish: {choice.statement}"
    if not choice.ingredients:
        return (
            f"no demonstrations are best for {model}: without any it labels {found} of the {where} rightly. "
            f"How the others did is not released; another --model may need them\n{told}\n"
            "next: ship no examples. Or make better ones, at a further cost: with more records, a larger "
            "epsilon or a made-up `example` in the task, then choose again"
        )
    apart = found.low > without.high or without.low > found.high
    return (
        f"{on_one_line(choice.candidate.name)} is chosen: with it, {model} labels {found} of the {where} "
        f"rightly, without {without}; these 95 % intervals "
        + ("do not overlap" if apart else "overlap, so which is better is not certain")
        + f"\n{told}"
    )


@contextmanager
def _choosing(
    project: Project, texts: Iterable[Demonstration]
) -> Iterator[tuple[Records, LogprobBackend, dict[str, Any]]]:
    """Check what needs no model, then give the records, the model and the other arguments of a choice.

    It is charged after its last step alone (`releases.choosing`): Ctrl-C says so.
    """
    tell, done = stages(), False

    def on_progress(step: int, steps: int) -> None:
        nonlocal done
        done = done or step == steps  # of the first round
        if not sys.stderr.isatty() and 10 * step // steps > 10 * (step - 1) // steps:  # a terminal has a bar
            tell(f"scoring: {100 * step // steps} % done")

    if project.output is not None:  # what is paid for must not find that it cannot be written
        with write_errors(project.output):
            try:
                Path(project.output).open("xb").close()
            except FileExistsError:
                raise click.UsageError(
                    f"--output {project.output} exists: name a new file, or move the earlier one away"
                ) from None
            Path(project.output).unlink()
    try:
        records, settings = _inputs(project, texts)
        model = open_backend(project.model, prompts=_BLOCK, context_tokens=CONTEXT_TOKENS)
        yield records, model, settings | {"on_progress": on_progress}
    except KeyboardInterrupt:
        spent = "`dpfewshot ledger show` says whether it was paid for" if done else "nothing is spent"
        raise click.Abort(f"interrupted: nothing is released, and {spent}") from None


def _inputs(project: Project, texts: Iterable[Demonstration]) -> tuple[Records, dict[str, Any]]:
    """Read the records, check what needs no model, and say what it costs: a choice has no δ.

    The account is not created for texts that it has paid for.
    """
    from dpfewshot.planning.population import relation_of
    from dpfewshot.releases.payment import explained, open_payment

    task = project.task
    paid = any(one.certificate and one.certificate.dataset == project.account.account for one in texts)
    project.account.check_counts("the files that are named", there=paid)
    records, population, holdout = project.data.read(), project.budget.population, project.holdout
    budget = project.budget.of(records)
    if not isinstance(budget, PrivacyBudget):
        raise click.UsageError("--epsilon must be finite: without noise there is no release")
    check_whole("scored_units", project.scored_units)
    cost = PrivacySpend(budget.epsilon, 0.0)
    run = relation_of("poisson", population), unit_of(records)
    account, name = project.account.opened(*run, None), project.account.account
    divided: dict[str, Any] = {"population": population, "holdout": holdout}
    with project.data.lines_named():
        scope = open_payment(task, records, budget=budget, account=account, **divided).scope
    pays = f" of the account {name!r}" if name else " without a ledger that counts it"
    told = f"this may spend {spend_text(cost)}{pays}"
    if account is not None:
        try:
            check_budget(account, [scope], cost, by_stratum=False)
        except BudgetExceeded as refusal:
            raise explained(refusal, scope) from None
        if account.rule == Admission.SUM:
            after, _ = account.check([(scope, cost)])
            spent, then = spend_text(account.spent), spend_text(after)
            told = f"the account {name!r} has spent at most {spent} in all, and then at most {then}, "
            told += "if nothing else spends"
    stages()(f"{told}; interrupted before it is done, it spends nothing")
    return records, {
        "budget": budget,
        **divided,
        "scored_units": project.scored_units,
        "record_token_cap": project.settings.record_token_cap,
        "account": account or project.account.opened(*run, budget),
        "score": project.score,
        "balanced": project.balanced,
        "proxy": project.proxy_choice,
    }


# ---- labels ----------------------------------------------------------------------------------------------


@click.command()
@takes(
    *("records", *COLUMNS, "epsilon", "delta", "ledger", "account"),
    required=("records", "epsilon"),
    own=("epsilon", "delta"),
    delta={"help": "Delta of the release; required without --candidates."},
    account={"help": "The account's name. The account must exist."},
)
@click.option("--count", type=int, required=True, help="The number of labels.")
@click.option("--candidates", help="A file with the public labels to choose from, one per line.")
def labels(*, project: Project, count: int, candidates: str | None, as_json: bool) -> None:
    """Release the labels that most units have, under (epsilon, delta), one per line.

    Without --candidates, there may be fewer than --count, or none.

    \b
    Example:
      dpfewshot labels --records movies.jsonl --count 5 --epsilon 0.5 --delta 1e-6
    """
    from dpfewshot.releases.labels import release_labels

    project.account.check()
    epsilon, delta = project.budget.epsilon, project.budget.delta or 0.0
    listed = None
    if candidates is not None:
        listed = [line for line in read_text(candidates, InvalidPlan).split("\n") if line.strip()]
    account = project.account.opened()
    if account is not None and epsilon > 0:
        cost = PrivacySpend(epsilon, delta if listed is None else 0.0)
        check_budget(account, [None], cost, by_stratum=False)
    release = release_labels(
        project.data.read(), count=count, epsilon=epsilon, delta=delta, candidates=listed, account=account
    )
    if as_json:
        click.echo(json.dumps(release.as_dict()))
        return
    for label in release.labels:
        click.echo(" ".join(label.splitlines()))  # one line per label
    spent = release.spent or PrivacySpend(0.0, 0.0)
    unit = f"each {on_one_line(release.unit or 'record')} is one unit"
    click.echo(
        f"{len(release.labels)} labels for {spend_text(spent)}, neighbours {release.relation}, {unit}",
        err=True,
    )
