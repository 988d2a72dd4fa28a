"""`dpfewshot audit membership` and `influence`: attacks on prompts with demonstrations."""

from __future__ import annotations

from typing import Any

import click

from dpfewshot.cli.backends import backend_options, open_backend
from dpfewshot.cli.columns import text_option
from dpfewshot.cli.findings import conclude, finding_options
from dpfewshot.cli.stages import quiet_option, stages

_TASK = click.option("--task", required=True, help="A built-in task, or a .toml file.")
_LABEL = click.option("--label-column", default="label", show_default=True, help="The column of the label.")


@click.command()
@_TASK
@click.option("--members", required=True, help="The records behind the demonstrations.")
@click.option("--non-members", required=True, help="Other records, drawn like the members.")
@text_option
@_LABEL
@click.option(
    "--demonstrations",
    default=None,
    help="The .jsonl of generate --output. By default, prompts hold the members themselves.",
)
@click.option(
    "--loss",
    type=click.Choice(["label", "record"]),
    default="label",
    show_default=True,
    help="The loss of the label after the text, as in the papers, or of the whole record.",
)
@backend_options
@quiet_option
@finding_options
def membership(
    *,
    task: str,
    members: str,
    non_members: str,
    text: str | dict[str, str],
    label_column: str,
    demonstrations: str | None,
    loss: Any,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell members from non-members by a model's loss with one demonstration in its prompt.

    \b
    Example:
      dpfewshot audit membership --task trec --demonstrations demos.jsonl \\
        --members half.jsonl --non-members other-half.jsonl
    """
    from dpfewshot.audit.membership import (
        membership_inference,
        trials_of_demonstrations,
        trials_of_records,
    )
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.records import read_records
    from dpfewshot.tasks import by_name

    inside, outside = (read_records(path, text=text, label=label_column) for path in (members, non_members))
    if demonstrations is None:
        trials = trials_of_records(inside, outside)
    else:
        trials = trials_of_demonstrations(Demonstrations.from_jsonl(demonstrations), inside, outside)
    tell = stages()
    backend = open_backend(options, tell=tell)
    tell("measuring losses")
    finding = membership_inference(by_name(task), backend, trials, loss=loss)
    conclude([finding], output, as_json=as_json)


@click.command()
@_TASK
@click.option("--demonstrations", required=True, help="The .jsonl of generate --output, in prompt order.")
@click.option("--texts", required=True, help="Labelled texts, in the format of --records.")
@text_option
@_LABEL
@click.option(
    "--items", type=int, default=100, show_default=True, help="Use this many texts, from the first."
)
@click.option(
    "--over",
    type=click.Choice(["labels", "calibrated labels", "vocabulary"]),
    default="labels",
    show_default=True,
    help="The model's possible answers.",
)
@backend_options
@quiet_option
@finding_options
def influence(
    *,
    task: str,
    demonstrations: str,
    texts: str,
    text: str | dict[str, str],
    label_column: str,
    items: int,
    over: Any,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how much leaving out each demonstration moves a prompt's answers (ICLInf).

    \b
    Example:
      dpfewshot audit influence --task trec --demonstrations demos.jsonl --texts test.jsonl.gz --items 50
    """
    from dpfewshot.audit.influence import influence_finding, influences
    from dpfewshot.demonstrations import Demonstrations
    from dpfewshot.records import read_records
    from dpfewshot.tasks import by_name

    asked = [record.text for record in read_records(texts, text=text, label=label_column)[:items]]
    shown, tell = Demonstrations.from_jsonl(demonstrations), stages()
    backend = open_backend(options, tell=tell)
    tell("measuring influences")
    measured = influences(by_name(task), backend, shown, asked, over=over)
    finding = influence_finding([measured], over=over)
    conclude([finding], output, as_json=as_json)
