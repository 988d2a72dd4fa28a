"""`dpfewshot plan`: shows everything about a generation before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.options import describe, generation_options, open_session
from dpfewshot.cli.stages import stages
from dpfewshot.cli.tables import aligned
from dpfewshot.values import epsilon_text

if TYPE_CHECKING:
    from dpfewshot.planning.compare import Compared
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan


@click.command()
@generation_options
@click.option(
    "--probe-seconds",
    type=float,
    default=2.0,
    show_default=True,
    help="How long to measure the backend, in seconds.",
)
@click.option("--cross-check", is_flag=True, help="Compute epsilon with dp-accounting too; takes seconds.")
@click.option(
    "--compare",
    is_flag=True,
    help="Show every mechanism and setting side by side for these records and this budget.",
)
@click.option(
    "--target-noise",
    type=float,
    default=0.01,
    show_default=True,
    help="With --compare: the largest standard deviation of the noise on a mean probability.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    *,
    probe_seconds: float,
    cross_check: bool,
    compare: bool,
    target_noise: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Show sigma, q, steps, epsilon, delta, noise, tokens and time before anything is spent.

    \b
    Example:
      dpfewshot plan --task trec --records trec.jsonl.gz --label Location --epsilon 4 --max-tokens 15
      dpfewshot plan ... --compare --target-noise 0.01
      dpfewshot plan ... --preset tang
    """
    if cross_check:
        from dpfewshot.accounting.cross_check import require

        require()  # before the model is loaded
    session, tell = open_session(options), stages()
    tell("measuring the model's speed")
    measured = session.synthesizer.probe(probe_seconds)
    if cross_check:
        tell("computing epsilon with other accountants")
    checks = _cross_checks(measured) if cross_check else []
    if compare:
        tell("comparing mechanisms")
    compared = session.synthesizer.compare(target_noise=target_noise) if compare else []
    if as_json:
        found: dict[str, object] = {}
        if cross_check:
            found["cross_check"] = [_check_as_dict(*check) for check in checks]
        if compare:
            found["comparison"] = [_row_as_dict(row) for row in compared]
        click.echo(json.dumps(measured.as_dict() | found))
    else:
        lines = [describe(measured, options["unit"]), *(_check_in_words(*check) for check in checks)]
        click.echo("\n".join([*lines, *(_comparison(compared, target_noise) if compare else ())]))


def _row_as_dict(row: Compared) -> dict[str, object]:
    plan = row.plan
    return {
        "mechanism": plan.mechanism,
        "prompts_per_draw": plan.settings.prompts_per_draw,
        "tokens_per_draw": plan.settings.tokens_per_draw,
        "noise_multiplier": plan.noise_multiplier,
        "noise_on_mean": plan.noise_on_mean,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "prompt_tokens": plan.prompt_tokens,
        "estimated_seconds": plan.estimated_seconds,
        "meets_target": row.meets_target,
        "cheapest": row.cheapest,
    }


def _comparison(rows: list[Compared], target_noise: float) -> Iterator[str]:
    """One line for each mechanism and setting; * marks the cheapest that meets the target."""
    yield f"\nequal epsilon and delta; * is the cheapest with noise on the mean of at most {target_noise:g}:"
    columns = ("mechanism", "M", "R", "sigma", "noise on mean", "tokens", "seconds")
    marks = [False, *(row.cheapest for row in rows)]
    for marked, line in zip(marks, aligned([columns, *map(_cells, rows)]), strict=True):
        yield f"{'* ' if marked else '  '}{line}"
    yield "tokens: the most that the language model reads for one demonstration; seconds: for all of them"
    if not any(row.cheapest for row in rows):
        yield (
            "no row is marked *, since none has so little noise: raise --target-noise or --epsilon, or use "
            "more records"
        )


def _cells(row: Compared) -> tuple[str, ...]:
    plan = row.plan
    return (
        plan.mechanism,
        str(plan.settings.prompts_per_draw),
        str(plan.settings.tokens_per_draw),
        f"{plan.noise_multiplier:.4f}",
        "-" if plan.noise_on_mean is None else f"{plan.noise_on_mean:.4f}",
        f"{plan.prompt_tokens:,}",
        "-" if plan.estimated_seconds is None else f"{plan.estimated_seconds:.0f}",
    )


def _cross_checks(plan: GenerationPlan) -> list[tuple[StratumPlan, float | None]]:
    from dpfewshot.accounting.cross_check import cross_check

    return [
        (stratum, cross_check(stratum.event, stratum.spend.delta, stratum.spend.epsilon))
        for stratum in plan.strata
        if stratum.event is not None and stratum.spend is not None
    ]


def _check_as_dict(stratum: StratumPlan, check: float | None) -> dict[str, object]:
    certified = stratum.spend.epsilon if stratum.spend else None
    return {"scope": stratum.scope, "certified": certified, "dp_accounting": check}


def _check_in_words(stratum: StratumPlan, check: float | None) -> str:
    certified = epsilon_text(stratum.spend.epsilon) if stratum.spend else "none"
    other = "does not say" if check is None else f"{check:.4f}"
    return (
        f"cross-check {stratum.scope or 'whole data set'}: epsilon {certified} certified here, "
        f"dp-accounting {other}"
    )
