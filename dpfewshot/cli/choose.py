"""`dpfewshot choose`: chooses the demonstrations to use, and says how accurate they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.backends import LLAMA_CPP, open_backend
from dpfewshot.cli.options import budget_of, data_options, population_of
from dpfewshot.runtime.files import write_errors
from dpfewshot.tasks import by_name
from dpfewshot.values import PrivacyBudget

if TYPE_CHECKING:
    from dpfewshot.releases.candidates import Candidate

CONTEXT_TOKENS = 1024
"""The default of --context-tokens with llama.cpp: a prompt holds all demonstrations of a candidate."""

SCORES = ("accuracy", "likelihood")
_BLOCK = 30


@click.command()
@data_options
@click.option(
    "--candidates",
    "files",
    multiple=True,
    required=True,
    help="A .jsonl file of demonstrations from generate --output; repeat it for several candidates.",
)
@click.option(
    "--without/--no-without",
    default=True,
    show_default=True,
    help="Whether no demonstrations at all are a candidate too. Their accuracy is measured anyway.",
)
@click.option("--epsilon", type=float, required=True, help="Epsilon of the choice.")
@click.option(
    "--delta",
    type=float,
    default=None,
    help="Delta of an account that --create creates; a choice spends none. Default: as in generate.",
)
@click.option(
    "--score",
    type=click.Choice(SCORES),
    default=SCORES[0],
    show_default=True,
    help="Choose by right or wrong, or by the probability of the label.",
)
@click.option("--balanced", is_flag=True, help="Count every label alike, whatever its number of units.")
@click.option(
    "--holdout",
    type=float,
    default=0.2,
    show_default=True,
    help="The fraction of units that choose, as given to generate; 0 reads all.",
)
@click.option("--scored-units", type=int, default=1000, show_default=True, help="Units to score, on average.")
@click.option(
    "--population",
    multiple=True,
    metavar="LABEL=N",
    help="Public number of units of a label (N if labels are free).",
)
@click.option("--record-token-cap", type=int, default=100, show_default=True)
@click.option("--proxy-choice", is_flag=True, help="Say that another model will use the demonstrations.")
@click.option("--output", default=None, help="A new .jsonl file for the chosen demonstrations.")
@click.option("--ledger", default=None, help="A durable budget, as in sqlite:///budget.db.")
@click.option("--dataset", default=None, help="The account's name, as in `ledger create`.")
@click.option(
    "--create",
    is_flag=True,
    help="Create the account with this run's budget if the ledger has none of that name.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def choose(
    *,
    files: tuple[str, ...],
    without: bool,
    output: str | None,
    dataset: str | None,
    ledger: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the demonstrations that label the records best, under (epsilon, 0), and print their accuracy.

    \b
    Example:
      dpfewshot choose --task trec --records trec.jsonl.gz --candidates demos.jsonl \\
        --candidates others.jsonl --epsilon 0.2 --output chosen.jsonl
    """
    from dpfewshot.records import read_records
    from dpfewshot.releases.choosing import choose as choose_among

    if dataset is not None and ledger is None:
        raise click.UsageError("--dataset needs --ledger: without one, the budget ends with this run")
    if output is not None and Path(output).exists():
        raise click.UsageError(f"--output {output} exists: name a new file")
    task, population = by_name(options["task"]), population_of(options["population"])
    candidates = _candidates(files, without=without)
    records = read_records(
        options["records"], text=options["text"], label=options["label_column"], unit=options["unit"]
    )
    budget = budget_of(options["epsilon"], options["delta"], population, records)
    if not isinstance(budget, PrivacyBudget):
        raise click.UsageError("--epsilon must be finite: a choice without noise is no release")
    if options["backend"] == LLAMA_CPP and options["context_tokens"] is None:
        options["context_tokens"] = CONTEXT_TOKENS
    choice = choose_among(
        task,
        records,
        open_backend(options, prompts=_BLOCK),
        candidates,
        budget=budget,
        ledger=ledger,
        dataset=dataset,
        create=options["create"],
        population=population,
        holdout=options["holdout"],
        scored_units=options["scored_units"],
        score=options["score"],
        balanced=options["balanced"],
        proxy=options["proxy_choice"],
        record_token_cap=options["record_token_cap"],
    )
    # printed first: a choice that cannot be written was paid for all the same
    click.echo(json.dumps(choice.as_dict()) if as_json else f"{choice.candidate.name}: {choice.statement}")
    if output is not None:
        with write_errors(output):
            choice.demonstrations.to_jsonl(output)


def _candidates(files: tuple[str, ...], *, without: bool) -> list[Candidate]:
    """The candidates of the files, after the one without demonstrations."""
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.releases.candidates import Candidate

    named = [Candidate(Demonstrations.from_jsonl(path), name=path) for path in files]
    return [Candidate(), *named] if without else named
