"""`dpfewshot report`: one HTML file for managers and privacy reviewers."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dpfewshot.cli.ledger import unfinished_runs
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import FAILED, warn
from dpfewshot.cli.project import LEDGER_VARIABLE, AccountName, Project
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.runtime.files import write_errors, write_whole
from dpfewshot.values import counted, delta_text, epsilon_text

if TYPE_CHECKING:
    from dpfewshot.report import Contents


@click.command()
@takes(
    *("ledger", "account", "title", "output"),
    files={"demonstrations": "demonstrations", "report": "output"},
    output={"default": "report.html"},
)
@click.option("--demonstrations", help="A .jsonl file from generate --output.")
@click.option("--choice", help="A file with the output of choose --json.")
@click.option("--audit", "audits", multiple=True, help="A file with the output of audit --json. Repeatable.")
@click.option(
    "--private",
    "confidential",
    is_flag=True,
    help="Also show what is for the trusted side alone: audits on private data, demonstrations "
    "without a guarantee, dates.",
)
def report(
    *,
    project: Project,
    demonstrations: str | None,
    choice: str | None,
    audits: tuple[str, ...],
    confidential: bool,
    as_json: bool,
) -> None:
    """Write one HTML file that reports what was promised, spent, released and audited.

    Exit status 1: the account did not release all demonstrations as they are shown.

    \b
    Example:
      dpfewshot report
      dpfewshot report --demonstrations demos.jsonl --ledger sqlite:///budget.db --account tickets \\
        --audit findings.json --private
    """
    from dpfewshot import report as reports

    account, output = project.account, str(project.output)
    if account.account is None and account.ledger == os.environ.get(LEDGER_VARIABLE):
        account = AccountName()  # a report need not be of an account
    account.check()
    if not (account.ledger or demonstrations or choice or audits):
        raise click.UsageError(
            "there is nothing to report: give --demonstrations, --choice, --ledger or --audit"
        )
    opened = account.opened()
    sources = reports.Sources(
        snapshot=None if opened is None else opened.snapshot(),
        demonstrations=None if demonstrations is None else Demonstrations.from_jsonl(demonstrations),
        choice=None if choice is None else reports.read_choice(choice),
        findings=[finding for path in audits for finding in reports.read_findings(path)],
    )
    contents = reports.select(sources, confidential=confidential)
    with write_errors(output):
        write_whole(output, reports.page(contents, title=project.title, made=datetime.now(UTC).date()))
    if opened is not None and unfinished_runs(opened):
        warn("a run of the account is unfinished, or still runs: generate --resume continues it")
    click.echo(json.dumps(_document(contents, output)) if as_json else _in_words(contents, output))
    if contents.free:
        warn(
            f"{counted(contents.free, 'demonstration')} without a certificate: that no record was read "
            "(epsilon 0) is what the file says, and no account can check it"
        )
    if contents.unpaid:
        warn(
            f"{counted(contents.unpaid, 'demonstration')} not released by this account as shown: do not "
            "publish them; `dpfewshot verify` names the lines"
        )
        raise click.exceptions.Exit(FAILED)


def _document(contents: Contents, output: str) -> dict[str, object]:
    return {
        "output": output,
        "confidential": contents.confidential,
        **{name: getattr(contents.promise, name, None) for name in ("epsilon", "delta", "relation")},
        "choice": contents.choice.statement if contents.choice else None,
        "demonstrations": len(contents.demonstrations),
        "findings": len(contents.findings),
        "left_out": contents.left_out,
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
    elif any(left_out.values()):
        lines.append(
            "left out because they are confidential: "
            f"{counted(left_out['demonstrations'], 'demonstration')} without a guarantee, "
            f"{counted(left_out['findings'], 'finding')}, {counted(left_out['choices'], 'choice')}; "
            "--private shows them"
        )
    return "\n".join(lines)
