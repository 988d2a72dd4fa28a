"""Prints and writes findings, for people or as JSON, and always says who may see them."""

from __future__ import annotations

import json
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING

import click

from dpfewshot.exact.rounding import to_digits
from dpfewshot.runtime.files import write_errors, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dpfewshot.audit import AuditFinding, Figure

FAILED = 1
"""The exit status of a failed audit; 2 is bad input, 3 the budget."""

CONFIDENTIAL = (
    "CONFIDENTIAL: computed from private records, outside every budget. Keep it on the trusted side."
)


def finding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every audit."""
    output = click.option("--output", default=None, help="Write the JSON to this file, new or replaced.")
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    return output(as_json(command))


def conclude(findings: list[AuditFinding], output: str | None, *, as_json: bool) -> None:
    """Write and print the findings; exit with 1 if one failed."""
    from dpfewshot.audit import as_document

    document = json.dumps(as_document(findings))
    if output is not None:
        with write_errors(output):
            write_whole(output, document + "\n")
    click.echo(document if as_json else "\n\n".join("\n".join(_in_words(each)) for each in findings))
    if any(finding.verdict == "failed" for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _in_words(finding: AuditFinding) -> Iterator[str]:
    if finding.confidential:
        yield CONFIDENTIAL
    yield f"{finding.title}: {finding.verdict}"
    yield f"  {finding.statement}"
    width = max((len(figure.name) for figure in finding.figures), default=0)
    for figure in finding.figures:
        yield f"  {figure.name:<{width}}  {_number(figure)}"


def _number(figure: Figure) -> str:
    interval = (
        "" if figure.low is None or figure.high is None else f" ({figure.low:.4g} to {figure.high:.4g})"
    )
    # Rounded up, so that a printed upper bound, such as an ε, is still one.
    reference = "" if figure.reference is None else f", reference {_up(figure.reference)}"
    return f"{figure.value:.4g}{interval}{reference}"


def _up(number: float) -> str:
    return f"{float(to_digits(Decimal(repr(float(number))), 4, ROUND_CEILING)):.4g}"
