"""`dpfewshot plan`: shows everything about a generation before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.models import Model
from dpfewshot.cli.printing import aligned, in_options, json_option, quiet_option, stages
from dpfewshot.cli.project import Budget, Data, PlanOptions, Project, takes
from dpfewshot.cli.project_file import from_project_file
from dpfewshot.values import counted, delta_text, epsilon_text, on_one_line

if TYPE_CHECKING:
    from dpfewshot.planning.compare import Compared
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan


@click.command()
@from_project_file()
@takes(Data, Model, Budget, PlanOptions, required=("task", "records", "epsilon"))
@click.option("--probe-seconds", default=2.0, help="How long to measure the backend, in seconds.")
@click.option("--compare", is_flag=True, help="Show every mechanism and setting side by side.")
@click.option(
    "--target-noise", default=0.01, help="With --compare: the most noise on a mean probability, one sigma."
)
@quiet_option
@json_option
def plan(
    *,
    project: Project,
    probe_seconds: float,
    compare: bool,
    target_noise: float,
    as_json: bool,
) -> None:
    """Show sigma, q, steps, epsilon, delta, noise, tokens and time before anything is spent.

    \b
    Example:
      dpfewshot plan --task trec --records trec.jsonl.gz --label Location --epsilon 4 --max-tokens 15
      dpfewshot plan ... --compare --target-noise 0.01
      dpfewshot plan ... --preset tang
    """
    synthesizer, tell = project.synthesizer(), stages()
    tell("measuring the model's speed")
    measured = synthesizer.probe(probe_seconds)
    compared: list[Compared] = []
    if compare:
        tell("comparing mechanisms")
        compared = synthesizer.compare(target_noise=target_noise)
    if as_json:
        document = measured.as_dict()
        if compare:
            document["comparison"] = [_as_dict(row) for row in compared]
        click.echo(json.dumps(document))
        return
    click.echo(describe(measured, project.data.unit))
    if compare:
        click.echo("\n".join(comparison(compared, target_noise)))


def _as_dict(row: Compared) -> dict[str, object]:
    told = row.plan.as_dict() | {"noise_on_mean": row.plan.noise_on_mean}
    names = (
        "mechanism",
        "prompts_per_draw",
        "tokens_per_draw",
        "noise_multiplier",
        "noise_on_mean",
        "epsilon",
        "delta",
        "prompt_tokens",
        "estimated_seconds",
    )
    return {name: told[name] for name in names} | {"meets_target": row.meets_target, "cheapest": row.cheapest}


def comparison(rows: list[Compared], target_noise: float) -> Iterator[str]:
    """One line for each mechanism and setting; * marks the cheapest that meets the target."""
    yield f"\nequal epsilon and delta; * is the cheapest with noise on the mean of at most {target_noise:g}:"
    columns = ("mechanism", "M", "R", "sigma", "noise on mean", "tokens", "seconds")
    cells = [
        (
            plan.mechanism,
            str(plan.settings.prompts_per_draw),
            str(plan.settings.tokens_per_draw),
            f"{plan.noise_multiplier:.4f}",
            "-" if plan.noise_on_mean is None else f"{plan.noise_on_mean:.4f}",
            f"{plan.prompt_tokens:,}",
            "-" if plan.estimated_seconds is None else f"{plan.estimated_seconds:.0f}",
        )
        for plan in (row.plan for row in rows)
    ]
    marks = [False, *(row.cheapest for row in rows)]
    for marked, line in zip(marks, aligned([columns, *cells]), strict=True):
        yield f"{'* ' if marked else '  '}{line}"
    yield "tokens: the most that the language model reads for one demonstration; seconds: for all of them"
    if not any(row.cheapest for row in rows):
        yield (
            "no row is marked *, since none has so little noise: raise --target-noise or --epsilon, or use "
            "more records"
        )


def describe(plan: GenerationPlan, unit: str | None = None) -> str:
    """The plan in a few lines, for people; `unit` names the column of whom a record belongs to, if any."""
    settings = plan.settings
    sizes = (
        f"M={settings.prompts_per_draw} N={settings.records_per_prompt} T={settings.max_tokens} "
        f"R={settings.tokens_per_draw}; at most {plan.prompt_tokens:,} tokens a demonstration"
    )
    if plan.estimated_seconds is not None:
        all_of_them = counted(plan.demonstrations, "demonstration")
        sizes += f"; at most about {_duration(plan.estimated_seconds)} for {all_of_them}"
    columns = ("stratum", "n", "q", "steps", "sigma", "noise on mean", "epsilon", "delta")
    lines = [
        (
            f"{counted(plan.demonstrations, 'demonstration')} by {plan.mechanism}, "
            f"neighbours {plan.relation}, each {on_one_line(unit or 'record')} is one unit"
        ),
        sizes,
        *aligned([columns, *map(_cells, plan.strata)]),
        *(on_one_line(in_options(sentence)) for sentence in (*plan.reasons, *plan.notes)),
    ]
    if settings.holdout:
        lines.append(
            f"{100 * settings.holdout:g} % of the units are kept for `choose`, which then costs no further "
            "budget; the others are drawn more often, which takes more noise. --holdout 0 uses all"
        )
    return "\n".join(f"{'      ' if place else 'plan: '}{line}" for place, line in enumerate(lines))


def _cells(stratum: StratumPlan) -> tuple[str, ...]:
    spent = stratum.spend
    return (
        stratum.scope or "whole data set",
        str(stratum.population),
        f"{float(stratum.sampling_rate):.4f}",
        str(stratum.steps),
        f"{stratum.noise_multiplier:.4f}",
        "none" if stratum.noise_on_mean is None else f"{stratum.noise_on_mean:.4f}",
        *(("none", "none") if spent is None else (epsilon_text(spent.epsilon), delta_text(spent.delta))),
    )


def _duration(seconds: float) -> str:
    """In seconds up to two minutes, at least one, in minutes up to two hours, else in hours."""
    for size, name in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{max(1.0, seconds):.0f} s"
