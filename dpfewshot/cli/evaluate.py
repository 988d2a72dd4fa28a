"""`dpfewshot evaluate`: the accuracy that demonstrations give, beside the papers' baselines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import click

from dpfewshot.cli.models import LLAMA_CPP, Model, open_backend
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import aligned, quiet_option, stages
from dpfewshot.cli.project import COLUMNS, MECHANISM_NAMES, Project, finite_or_inf
from dpfewshot.errors import InvalidPlan
from dpfewshot.runtime import progress_bar
from dpfewshot.values import PrivacyBudget

if TYPE_CHECKING:
    from dpfewshot.evaluation import Experiment, Summary, Trial
    from dpfewshot.mechanisms import Mechanism

REPETITIONS: Final = 3
"""Each with new demonstrations."""


@click.command()
@takes(
    *("task", "records", *COLUMNS, Model, "prompts_per_draw", "max_tokens"),
    *("user_model", "public_data", "output"),
    required=("task", "records"),
    output={"help": "A .jsonl file for results; a later run resumes from it."},
)
@click.option("--test", required=True, help="Labelled test items, in the format of --records.")
@click.option(
    "--epsilon",
    "epsilons",
    type=finite_or_inf,
    multiple=True,
    default=(1.0, 4.0),
    help="Epsilon of all demonstrations of a prompt together, or inf for no privacy; may be repeated.",
)
@click.option(
    "--shots",
    "counts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(4,),
    help="Demonstrations in the prompt; may be repeated. Zero-shot is measured anyway.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(MECHANISM_NAMES),
    multiple=True,
    help="May be repeated. Default: the planner decides.",
)
@quiet_option
def evaluate(
    *,
    project: Project,
    test: str,
    epsilons: tuple[float, ...],
    counts: tuple[int, ...],
    mechanisms: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the accuracy that demonstrations give on labelled test items, with 95 % intervals.

    Results on private data are confidential: they are for the operator alone.

    \b
    Example:
      dpfewshot evaluate --task trec --records trec.jsonl.gz --test trec-test.jsonl.gz \\
        --epsilon 1 --epsilon 4 --max-tokens 15 --output results.jsonl
    """
    from dpfewshot.evaluation import Results, summarise
    from dpfewshot.evaluation import evaluate as carry_out

    confidential = not project.public_data
    if project.user_model is not None and project.model.backend != LLAMA_CPP:
        raise InvalidPlan("user_model needs --backend llama-cpp")
    for epsilon in epsilons:
        PrivacyBudget(1.0 if math.isinf(epsilon) else epsilon, 0.5)  # checks the range
    tell, results = stages(), Results(project.output)
    experiment = _experiment(project, test, most_shots=max(counts), confidential=confidential)
    planned = list(_trials(project, epsilons, counts, mechanisms))
    with progress_bar(total=len(planned), desc="evaluating", unit="trial") as bar:
        for number, trial in enumerate(planned, start=1):
            if bar.disable:  # there is no terminal
                tell(f"trial {number} of {len(planned)}")
            carry_out(experiment, [trial], results)
            bar.update()
    wanted = {experiment.key(trial) for trial in planned}
    summaries = summarise(cell for cell in results.cells if cell.key in wanted)
    if as_json:
        document = {"confidential": confidential, "summaries": list(map(asdict, summaries))}
        click.echo(json.dumps(document))
        return
    click.echo(_table(summaries))
    if confidential:
        click.echo(
            "confidential: measured on private records, outside every budget; do not publish", err=True
        )


def _experiment(project: Project, test: str, *, most_shots: int, confidential: bool) -> Experiment:
    from dpfewshot.evaluation import Experiment
    from dpfewshot.planning.population import default_delta
    from dpfewshot.records import read_records

    data, model = project.data, project.model
    records = data.read()
    items = read_records(test, text=data.text, label=data.label_column)
    context = 256 * (2 + most_shots // 2)  # for few-shot prompts, which are longer than those that generate
    writer = open_backend(model, prompts=project.settings.prompts_per_draw, context_tokens=context)
    user, user_name = None, None
    if project.user_model is not None:
        other = replace(model, model=project.user_model, kept_prompts=30)
        user, user_name = open_backend(other, context_tokens=context), other.name
    return Experiment(
        task=project.task,
        records=records,
        test=items,
        writer=writer,
        writer_name=model.name,
        delta=default_delta(None, records),
        user=user,
        user_name=user_name,
        confidential=confidential,
    )


def _trials(
    project: Project, epsilons: Sequence[float], shots: Sequence[int], mechanisms: Sequence[str]
) -> Iterator[Trial]:
    from dpfewshot.evaluation import InstructionOnly, NonPrivateSample, Synthetic, Trial, ZeroShot
    from dpfewshot.mechanisms import by_name

    prompts, tokens = project.settings.prompts_per_draw, project.settings.max_tokens
    kinds: dict[str, Mechanism | None] = {name: by_name(name) for name in mechanisms}
    conditions = [
        Synthetic(name, kind, prompts_per_draw=prompts, max_tokens=tokens)
        for name, kind in (kinds or {"default": None}).items()
    ]
    budgets = dict.fromkeys([*(None if math.isinf(each) else each for each in epsilons), None])
    yield Trial(ZeroShot(), 0.0, shots=0)
    for count in shots:
        for repetition in range(REPETITIONS):
            yield Trial(InstructionOnly(tokens), 0.0, count, repetition)
            yield Trial(NonPrivateSample(), None, count, repetition)
            for epsilon in budgets:
                for condition in conditions:
                    yield Trial(condition, epsilon, count, repetition)


def _table(summaries: Sequence[Summary]) -> str:
    """Return a table for people."""
    columns = ("condition", "epsilon", "shots", "accuracy", "95 % interval", "runs", "items")
    rows = [
        (
            one.condition,
            "none" if one.epsilon is None else f"{one.epsilon:g}",
            str(one.shots),
            f"{one.accuracy:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            str(one.repetitions),
            str(one.items),
        )
        for one in summaries
    ]
    return "\n".join(aligned([columns, *rows]))
