"""`dpfewshot plan`: everything about a generation, before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.options import describe, generation_options, open_session
from dpfewshot.values import epsilon_text

if TYPE_CHECKING:
    from dpfewshot.accounting.reference.cross_check import CrossCheck
    from dpfewshot.planning.compare import Compared
    from dpfewshot.planning.plan import GenerationPlan, StratumPlan


@click.command()
@generation_options
@click.option(
    "--probe-seconds", type=float, default=2.0, show_default=True, help="How long to measure the backend."
)
@click.option(
    "--cross-check", is_flag=True, help="Compute epsilon with two other accountants too; takes seconds."
)
@click.option(
    "--compare", is_flag=True, help="Every mechanism and setting side by side for these records and budget."
)
@click.option(
    "--target-noise",
    type=float,
    default=0.01,
    show_default=True,
    help="With --compare: the greatest noise on a mean probability.",
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
    """
    if cross_check:
        from dpfewshot.accounting.reference.cross_check import require

        require()  # before the model is loaded
    session = open_session(options)
    measured = session.synthesizer.probe(probe_seconds)
    checks = _cross_checks(measured) if cross_check else []
    compared = session.synthesizer.compare(target_noise=target_noise) if compare else []
    if as_json:
        found: dict[str, object] = {}
        if cross_check:
            found["cross_check"] = [_check_as_dict(*check) for check in checks]
        if compare:
            found["comparison"] = [_row_as_dict(row) for row in compared]
        click.echo(json.dumps(measured.as_dict() | found))
    else:
        lines = [describe(measured), *(_check_in_words(*check) for check in checks)]
        click.echo("\n".join([*lines, *(_comparison(compared, target_noise) if compare else ())]))


def _row_as_dict(row: Compared) -> dict[str, object]:
    plan = row.plan
    return {
        "mechanism": plan.mechanism,
        "prompts_per_token": plan.settings.prompts_per_token,
        "resample_every": plan.settings.resample_every,
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
    """A line for each mechanism and setting; * marks the cheapest that meets the target."""
    yield f"\nequal epsilon and delta; * is the cheapest with noise on the mean of at most {target_noise:g}:"
    yield (
        f"  {'mechanism':<20}{'M':>5}{'R':>4}{'sigma':>10}{'noise on mean':>15}{'tokens':>10}{'seconds':>9}"
    )
    for row in rows:
        plan = row.plan
        noise = "-" if plan.noise_on_mean is None else f"{plan.noise_on_mean:.4f}"
        seconds = "-" if plan.estimated_seconds is None else f"{plan.estimated_seconds:.0f}"
        yield (
            f"{'* ' if row.cheapest else '  '}{plan.mechanism:<20}{plan.settings.prompts_per_token:>5}"
            f"{plan.settings.resample_every:>4}{plan.noise_multiplier:>10.4f}{noise:>15}"
            f"{plan.prompt_tokens:>10,}{seconds:>9}"
        )
    yield "tokens: of the language model for one demonstration, at most; seconds: for all of them"


def _cross_checks(plan: GenerationPlan) -> list[tuple[StratumPlan, CrossCheck]]:
    from dpfewshot.accounting.reference.cross_check import cross_check

    return [
        (part, cross_check(part.event, part.spend.delta, part.spend.epsilon))
        for part in plan.strata
        if part.event is not None and part.spend is not None
    ]


def _check_as_dict(part: StratumPlan, check: CrossCheck) -> dict[str, object]:
    certified = part.spend.epsilon if part.spend else None
    return {"scope": part.scope, "certified": certified, **check.as_dict()}


def _check_in_words(part: StratumPlan, check: CrossCheck) -> str:
    certified = epsilon_text(part.spend.epsilon) if part.spend else "none"
    prv = "does not say"
    if check.prv_estimate is not None:
        prv = f"{check.prv_estimate:.4f} [{check.prv_lower:.4f}, {check.prv_upper:.4f}]"
    other = "does not say" if check.dp_accounting is None else f"{check.dp_accounting:.4f}"
    return (
        f"cross-check {part.scope or 'whole data set'}: epsilon {certified} certified here, "
        f"prv-accountant {prv}, dp-accounting {other}"
    )
