"""Messages of the package in the words of the command line: options in place of Python's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import click

_RENAMED: Final[Mapping[str, str]] = {"shots_per_label": "shots", "label": "label_column"}
"""Arguments whose option has another name. `label=` names a column wherever a message has it."""

_AMOUNTS: Final = frozenset({"epsilon", "delta"})
"""A message states amounts, and gives no advice, where it writes these."""

_OF_THE_TASK: Final = frozenset({"chat"})
"""Fields of the task's file, for which there is no option."""

_ARGUMENT: Final = re.compile(
    r"(?<![\w'\"/.-])(?P<name>[a-z]+(?:_[a-z]+)*)"
    r"(?P<given>=(?P<value>'[^']*'|\"[^\"]*\"|[\w+-]+(?:\.\w+)*)?)?(?![\w'\"/(])"
)
"""A word, or an argument with or without its value: `max_tokens`, `text=`, `unit='customer'`."""


def in_options(message: str, command: click.Command | None = None) -> str:
    """Write arguments of Python as options of a command: `max_tokens=40` as `--max-tokens 40`.

    A word without "=" is an argument only if it has an underscore: "population" and "unit" are words too.
    What the command has no option for stays as it is.

    Args:
        message: for whoever calls Python.
        command: whose options count; None is the one that runs.
    """
    context = click.get_current_context(silent=True)
    command = command or (context.command if context else None)
    options = {one.name: max(one.opts, key=len) for one in command.params if one.name} if command else {}

    def written(found: re.Match[str]) -> str:
        name, value = found["name"], (found["value"] or "").strip("'\"")
        if name in _OF_THE_TASK and found["given"]:
            return f"{name} = {value.lower()} in the task's file"
        option = options.get(_RENAMED.get(name, name))
        is_argument = found["given"] or "_" in name
        if option is None or name in _AMOUNTS or not is_argument:
            return found[0]
        if value in {"None", "False"}:
            return f"no {option}"
        return f"{option} {value}" if value not in {"", "True"} else option

    return _ARGUMENT.sub(written, message)
