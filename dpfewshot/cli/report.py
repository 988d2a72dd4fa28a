"""`dpfewshot report`: one HTML file for managers and privacy reviewers."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dpfewshot.cli.accounts import LEDGER_VARIABLE, ledger_option
from dpfewshot.runtime.files import write_errors, write_whole
from dpfewshot.values import counted, delta_text, epsilon_text

if TYPE_CHECKING:
    from dpfewshot.report import Contents, Sources


@click.command()
@click.option("--demonstrations", default=None, help="A .jsonl file from generate --output.")
@ledger_option(text="A budget ledger, such as sqlite:///budget.db.")
@click.option("--dataset", default=None, help="The ledger account's name.")
@click.option("--choice", default=None, help="A file with the output of choose --json.")
@click.option("--plan", default=None, help="A file with the output of plan --json or generate --json.")
@click.option("--evaluation", default=None, help="A .jsonl file from evaluate --output.")
@click.option(
    "--audit", "audits", multiple=True, help="A file with the output of audit --json; may be repeated."
)
@click.option("--title", default="Privacy report", show_default=True)
@click.option(
    "--output", default="report.html", show_default=True, help="The file to write, new or replaced."
)
@click.option(
    "--private",
    is_flag=True,
    help="Also show what is for the trusted side alone: accuracy and audits on private data, demonstrations "
    "without a guarantee, dates.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with a summary of the report.")
def report(
    *,
    title: str,
    output: str,
    private: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write one HTML file that reports what was promised, spent, released, measured and audited.

    \b
    Example:
      dpfewshot report --demonstrations demos.jsonl --ledger sqlite:///budget.db --dataset tickets
      dpfewshot report ... --evaluation results.jsonl --audit findings.json --private
    """
    from dpfewshot.report import page, select

    if options["dataset"] is None and options["ledger"] == os.environ.get(LEDGER_VARIABLE):
        options["ledger"] = None  # a report need not be of an account
    if (options["ledger"] is None) != (options["dataset"] is None):
        raise click.UsageError("--ledger and --dataset must be given together")
    if not any(options.values()):
        raise click.UsageError(
            "there is nothing to report: give --demonstrations, --choice, --ledger, --plan, --evaluation "
            "or --audit"
        )
    contents = select(_sources(options), confidential=private)
    with write_errors(output):
        write_whole(output, page(contents, title=title, made=datetime.now(UTC).date()))
    click.echo(json.dumps(_document(contents, output)) if as_json else _in_words(contents, output))


def _sources(options: dict[str, Any]) -> Sources:
    from dpfewshot.account.ledger import BudgetLedger
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.evaluation import read_cells
    from dpfewshot.report import (
        Sources,
        read_choice,
        read_findings,
        read_plan,
    )

    snapshot = None
    if options["ledger"] is not None:
        with BudgetLedger.open(options["ledger"]) as opened:
            snapshot = opened.account(options["dataset"]).snapshot()
    lines, choice, plan, results = (
        options[name] for name in ("demonstrations", "choice", "plan", "evaluation")
    )
    return Sources(
        demonstrations=None if lines is None else Demonstrations.from_jsonl(lines),
        snapshot=snapshot,
        choice=None if choice is None else read_choice(choice),
        plan=None if plan is None else read_plan(plan),
        cells=() if results is None else read_cells(results),
        findings=[finding for path in options["audits"] for finding in read_findings(path)],
    )


def _document(contents: Contents, output: str) -> dict[str, object]:
    promise = contents.promise
    return {
        "output": output,
        "confidential": contents.confidential,
        "epsilon": promise.epsilon if promise else None,
        "delta": promise.delta if promise else None,
        "relation": promise.relation if promise else None,
        "choice": contents.choice.statement if contents.choice else None,
        "demonstrations": len(contents.demonstrations),
        "findings": len(contents.findings),
        "left_out": contents.left_out._asdict(),
    }


def _in_words(contents: Contents, output: str) -> str:
    promise, left_out = contents.promise, contents.left_out
    bound = "no bound on epsilon"
    if promise is not None:
        bound = (
            f"epsilon at most {epsilon_text(promise.epsilon)} at delta={delta_text(promise.delta)}, "
            f"neighbours {promise.relation}"
        )
    lines = [f"{output}: {bound}"]
    if contents.choice is not None:
        lines.append(contents.choice.statement)
    if contents.confidential:
        lines.append("CONFIDENTIAL: this report is for the trusted side alone")
    elif any(left_out):
        lines.append(
            "left out because they are confidential: "
            f"{counted(left_out.demonstrations, 'demonstration')} without a guarantee, "
            f"{counted(left_out.cells, 'evaluation cell')}, {counted(left_out.findings, 'finding')}, "
            f"{counted(left_out.choices, 'choice')}; "
            "--private shows them"
        )
    return "\n".join(lines)
