"""The option that names the columns of a text."""

from __future__ import annotations

import click

from dpfewshot.cli.backends import Decorator


def _columns(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> str | dict[str, str]:
    """The value of --text: a column, or each text field's column."""
    if len(given) == 1:
        return given[0]
    columns: dict[str, str] = {}
    for entry in given:
        field, equals, column = entry.partition("=")
        if field in columns:
            raise click.BadParameter(f"the field {field!r} is there twice")
        columns[field] = column if equals else field
    return columns


text_option: Decorator = click.option(
    "--text",
    multiple=True,
    default=("text",),
    show_default="text",
    metavar="COLUMN",
    callback=_columns,
    help="The column of the text. If the task has several fields, repeat FIELD=COLUMN for each, in order. "
    "A column may be a path: ticket.body.",
)
