"""`dpfewshot prompt` writes a prompt with released demonstrations, for any model."""

from __future__ import annotations

import json
from typing import Final

import click

from dpfewshot.cli.options import takes
from dpfewshot.cli.printing import stages
from dpfewshot.cli.project import Project
from dpfewshot.demonstrations import Demonstrations

UNPROTECTED: Final = "the new text stands in it as it is, and goes to the model unprotected"


@click.command()
@click.argument("new_text", metavar="TEXT")  # a setting of the project file is called text
@takes("task", required=("task",), files={"demonstrations": "demonstrations"})
@click.option("--demonstrations", required=True, help="From generate or choose, in prompt order.")
def prompt(*, project: Project, new_text: str, demonstrations: str, as_json: bool) -> None:
    """Print a prompt that asks any model for the label of TEXT, after the demonstrations.

    Only the demonstrations are protected: TEXT goes to that model as it is.

    \b
    Example:
      dpfewshot prompt "my parcel is late"
    """
    if not new_text.strip():
        raise click.UsageError("TEXT is empty: give the text to label")
    told = Demonstrations.from_jsonl(demonstrations).to_prompt(project.task, new_text)
    click.echo(json.dumps({"prompt": told}) if as_json else told)
    stages()(UNPROTECTED)
