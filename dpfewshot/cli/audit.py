"""`dpfewshot audit`: what releases reveal about the records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.cli.models import Model, open_backend
from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import FAILED, Decorator, quiet_option, stages, warn
from dpfewshot.cli.project import COLUMNS, Budget, Data, PlanOptions, Project
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.runtime.files import write_errors, write_whole
from dpfewshot.values import check_whole, rounded_up_text

if TYPE_CHECKING:
    from dpfewshot.audit import AuditFinding, Figure

CONFIDENTIAL: Final = (
    "CONFIDENTIAL: computed from private records, outside every budget. Keep it on the trusted side."
)


_SHOWN: Final = {"demonstrations": "demonstrations"}


def _takes(*wanted: type | str, **further: Any) -> Decorator:
    """Give an audit options, and those that all audits have."""
    output = {"help": "Write the JSON to this file, new or replaced."}
    settings = takes(*wanted, "output", output=output, **further)
    return lambda command: settings(quiet_option(command))


class _CanaryByDefault(click.Group):
    """Runs the canary game unless another audit is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if named else ["canary", *args])


@click.group(cls=_CanaryByDefault)
def audit() -> None:
    """Audit a set-up or its releases, without spending or releasing anything.

    The default audit is the canary game. Exit status: 0 passed, 1 failed.

    \b
    Example:
      dpfewshot audit --task trec --records trec.jsonl.gz --epsilon 4 --max-tokens 15
      dpfewshot audit leak --demonstrations demos.jsonl --records trec.jsonl.gz
      dpfewshot audit membership --help
    """


@audit.command()
@_takes(
    *(Data, Model, Budget, PlanOptions, "plays", "beta", "texts_only"),
    required=("task", "records", "epsilon"),
)
def canary(*, project: Project, as_json: bool) -> None:
    """Play with and without canaries against a set-up, and bound epsilon from below.

    Takes the options of `generate`. Fails if there is less noise than planned, if records are not drawn as
    planned, or if the model's answer to a prompt depends on other prompts. With texts_only, a play is a
    whole run of the plan by your model: start with plays=100.

    \b
    Example:
      dpfewshot audit canary --task trec --records trec.jsonl.gz --label Location --epsilon 4 --max-tokens 15
      dpfewshot audit canary --task trec --records trec.jsonl.gz --epsilon 4 \\
        --set texts_only=true --set plays=100
    """
    from dpfewshot.audit import canary_game

    synthesizer, plays = project.synthesizer(), project.plays
    stages()(f"playing {plays} games with canaries, and {plays} without")
    found = canary_game(synthesizer, plays=plays, beta=project.beta, texts_only=project.texts_only)
    conclude(found, project, as_json=as_json)


@audit.command()
@_takes("task", "records", *COLUMNS, "baseline", required=("records",), files=_SHOWN)
@click.option("--demonstrations", required=True, help="The released .jsonl of generate --output.")
@click.option("--held-out", help="Unused records, with the same columns.")
def leak(*, project: Project, demonstrations: str, held_out: str | None, as_json: bool) -> None:
    """Search released texts for private text and personal data.

    Fails if a demonstration repeats ten words in a row, or personal data, of one unit alone. Warns if the
    task's example, which is in every prompt, has the words of a record.

    \b
    Example:
      dpfewshot audit leak --demonstrations demos.jsonl --records tickets.jsonl --unit customer
    """
    from dpfewshot.audit import leak_check
    from dpfewshot.audit.leak import copies

    baseline, records = project.baseline, project.data.read()
    if project.data.task and project.task.example and copies(project.task.example, records):
        warn("the task's example has the words of a record, and every prompt has the example: make one up")
    finding = leak_check(
        Demonstrations.from_jsonl(demonstrations),
        records,
        baseline=() if baseline is None else Demonstrations.from_jsonl(baseline),
        held_out=None if held_out is None else project.data.read(held_out),
    )
    conclude(finding, project, as_json=as_json)


@audit.command()
@_takes("task", "records", "text", "label_column", Model, required=("task", "records"))
@click.option("--held-out", required=True, help="Other records, drawn like those of --records.")
@click.option(
    "--demonstrations", help="From generate --output. Default: prompts hold the records themselves."
)
def membership(*, project: Project, held_out: str, demonstrations: str | None, as_json: bool) -> None:
    """Tell records from others by a model's loss with one demonstration in its prompt.

    \b
    Example:
      dpfewshot audit membership --task trec --demonstrations demos.jsonl \\
        --records half.jsonl --held-out other-half.jsonl
    """
    from dpfewshot.audit.membership import membership_inference, trials_of_demonstrations, trials_of_records

    inside, outside = project.data.read(), project.data.read(held_out)
    if demonstrations is None:
        trials = trials_of_records(inside, outside)
    else:
        trials = trials_of_demonstrations(Demonstrations.from_jsonl(demonstrations), inside, outside)
    backend = open_backend(project.model)
    stages()("measuring losses")
    conclude(membership_inference(project.task, backend, trials), project, as_json=as_json)


@audit.command()
@_takes("task", "text", "label_column", Model, "items", required=("task",), files=_SHOWN)
@click.option("--demonstrations", required=True, help="From generate --output, in prompt order.")
@click.option("--test", required=True, help="Labelled texts, in the format of records.")
def influence(*, project: Project, demonstrations: str, test: str, as_json: bool) -> None:
    """Measure how much leaving out each demonstration moves a prompt's answers (ICLInf).

    \b
    Example:
      dpfewshot audit influence --task trec --demonstrations demos.jsonl --test test.jsonl.gz
    """
    from dpfewshot.audit.influence import influence_finding, influences

    check_whole("items", project.items)
    asked = [record.text for record in project.data.read(test)[: project.items]]
    shown = Demonstrations.from_jsonl(demonstrations)
    backend = open_backend(project.model)
    stages()("measuring influences")
    measured = influences(project.task, backend, shown, asked)
    conclude(influence_finding([measured]), project, as_json=as_json)


def conclude(finding: AuditFinding, project: Project, *, as_json: bool) -> None:
    """Write and print a finding; exit with 1 if it failed."""
    from dpfewshot.audit import as_document

    document = json.dumps(as_document([finding]))
    if project.output is not None:
        with write_errors(project.output):
            write_whole(project.output, document + "\n")
    click.echo(document if as_json else "\n".join(_in_words(finding)))
    if finding.verdict == "failed":
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
    interval = f" ({figure.interval})" if figure.interval else ""
    reference = "" if figure.reference is None else f", reference {rounded_up_text(figure.reference, 4)}"
    return f"{figure.value:.4g}{interval}{reference}"
