"""What commands print: stages on standard error, tables, JSON, and messages in the words of the options."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import click

from dpfewshot.values import on_one_line

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Gives a command an option."""

FAILED: Final = 1
"""The exit status of a failed audit or verification."""

json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


quiet_option: Decorator = click.option(
    "--quiet", is_flag=True, help="Print no stages on standard error, only warnings and errors; ask nothing."
)
"""For a command with `cli.options.takes`, which leaves the value to `stages`."""


_NARROWEST: Final = 20
"""Characters of the shortest lines: a terminal may state none."""


def stages() -> Callable[[str], None]:
    """Return what prints the stages of the running command, on any thread; nothing with --quiet.

    A stage is named when it begins, so that a pipe is not silent. It may say public numbers alone, and no
    duration: that depends on how many records were drawn.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.params.get("quiet"):
        return lambda _: None
    return partial(say, err=True)


def say(text: str, *, err: bool = False) -> None:
    """Print lines in words on standard output, or on standard error."""
    click.echo(wrapped(text, err=err), err=err)


def wrapped(text: str, *, err: bool = False) -> str:
    """Break long lines between words if they go to a terminal, which would break words."""
    if not (sys.stderr if err else sys.stdout).isatty():
        return text
    width = max(_NARROWEST, shutil.get_terminal_size().columns - 1)
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (2 + len(line) - len(line.lstrip())),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def warn(message: str) -> None:
    """Print a warning on standard error, with --quiet too."""
    say(f"warning: {message}", err=True)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row: the first column to the left, the others to the right, two spaces between columns.

    A cell is shown on one line, without two spaces in a row.
    """
    shown = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]


# ---- Python's arguments as options -----------------------------------------------------------------------

_RENAMED: Final[Mapping[str, str]] = {"shots_per_label": "shots", "label": "label_column"}
"""Arguments whose option has another name. `label=` names a column wherever a message has it."""

_ARGUMENT: Final = re.compile(
    r"(?<!--set )(?<![\w'\"/.-])(?P<name>[a-z]+(?:_[a-z]+)*)"
    r"(?P<given>=(?P<value>'[^']*'|\"[^\"]*\"|[\w+-]+(?:\.\w+)*)?)?(?![\w'\"/(])"
)
"""A word, or an argument with or without its value: `max_tokens`, `text=`, `unit='customer'`."""


def in_options(message: str) -> str:
    """Write arguments of Python as options or keys of a command: `max_tokens=40` as `--max-tokens 40`.

    A key with a value becomes `--set top_k=50`. A word without "=" is an argument only if it has an
    underscore: "population" and "unit" are words too. What the running command does not use stays as it is.
    """
    context = click.get_current_context(silent=True)
    params = context.command.params if context else []
    options = {one.name: max(one.opts, key=len, default=one.name) for one in params if one.name}

    def written(found: re.Match[str]) -> str:
        name, value = found["name"], (found["value"] or "").strip("'\"")
        if name == "chat" and found["given"]:  # a field of the task, which has no option
            return f"{name} = {value.lower()} in the task's file"
        option = options.get(_RENAMED.get(name, name))
        is_argument = found["given"] or "_" in name
        if option is None or name in {"epsilon", "delta"} or not is_argument:
            return found[0]  # an amount is stated, and no advice
        if value in {"None", "False"}:
            return f"no {option}"
        if not option.startswith("-"):
            return f"--set {option}={value}" if value else option
        return f"{option} {value}" if value not in {"", "True"} else option

    return _ARGUMENT.sub(written, message)
