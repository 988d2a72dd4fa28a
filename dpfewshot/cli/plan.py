"""`dpfewshot plan`: shows everything about a generation before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.models import Model
from dpfewshot.cli.printing import aligned, in_options, json_option, quiet_option, stages
from dpfewshot.cli.project import Budget, Data, PlanOptions, Probe, Project, takes
from dpfewshot.cli.project_file import from_project_file
from dpfewshot.values import counted, delta_text, epsilon_text, on_one_line

if TYPE_CHECKING:
    from dpfewshot.planning.compare import Compared
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan


@click.command()
@from_project_file()
@takes(Data, Model, Budget, PlanOptions, Probe, required=("task", "records", "epsilon"))
@click.option("--compare", is_flag=True, help="Show every mechanism and setting side by side.")
@quiet_option
@json_option
def plan(*, project: Project, compare: bool, as_json: bool) -> None:
    """Show sigma, q, steps, epsilon, delta, noise, tokens and time before anything is spent.

    \b
    Example:
      dpfewshot plan --task trec --records trec.jsonl.gz --label Location --epsilon 4 --max-tokens 15
      dpfewshot plan ... --compare --set target_noise=0.05
      dpfewshot plan ... --set preset=tang
    """
    cross_check, target_noise = project.plan.cross_check, project.plan.target_noise
    if cross_check:
        from dpfewshot.accounting.cross_check import require

        require()  # before the model is loaded
    synthesizer, tell = project.synthesizer(), stages()
    tell("measuring the model's speed")
    measured = synthesizer.probe(project.plan.probe_seconds)
    checks: list[tuple[str | None, float, float | None]] = []
    if cross_check:
        tell("computing epsilon with other accountants")
        checks = list(_cross_checks(measured))
    compared: list[Compared] = []
    if compare:
        tell("comparing mechanisms")
        compared = synthesizer.compare(target_noise=target_noise)
    if as_json:
        document = measured.as_dict()
        if cross_check:
            names = ("scope", "certified", "dp_accounting")
            document["cross_check"] = [dict(zip(names, check, strict=True)) for check in checks]
        if compare:
            document["comparison"] = [_as_dict(row) for row in compared]
        click.echo(json.dumps(document))
        return
    click.echo(describe(measured, project.data.unit))
    for scope, certified, other in checks:
        told = "does not say" if other is None else f"{other:.4f}"
        click.echo(
            f"cross-check {scope or 'whole data set'}: epsilon {epsilon_text(certified)} certified here, "
            f"dp-accounting {told}"
        )
    if compare:
        click.echo("\n".join(comparison(compared, target_noise)))


def _cross_checks(plan: GenerationPlan) -> Iterator[tuple[str | None, float, float | None]]:
    """Each stratum's scope, its certified ε, and what the other accountant says."""
    from dpfewshot.accounting.cross_check import cross_check

    for stratum in plan.strata:
        if stratum.event is not None and stratum.spend is not None:
            spend = stratum.spend
            yield stratum.scope, spend.epsilon, cross_check(stratum.event, spend.delta, spend.epsilon)


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
            "no row is marked *, since none has so little noise: raise target_noise or --epsilon, or use "
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
            "budget; the others are drawn more often, which takes more noise. --set holdout=0 uses all"
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
