"""The entry point. Errors become one line on standard error and an exit status."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from dpfewshot import __version__
from dpfewshot.cli.printing import say
from dpfewshot.errors import BudgetExceeded, DPFewShotError

BAD_INPUT: Final = 2
BUDGET_EXCEEDED: Final = 3
INTERRUPTED: Final = 130

_COMMANDS: Final[Mapping[str, str]] = {
    "demo": "doctor",
    "model": "models",
    "init": "init",
    "plan": "plan",
    "generate": "generate",
    "replace": "replace",
    "prompt": "prompt",
    "labels": "releases",
    "choose": "releases",
    "search": "releases",
    "evaluate": "evaluate",
    "audit": "audit",
    "report": "report",
    "verify": "ledger",
    "doctor": "doctor",
    "ledger": "ledger",
}
"""The module of each command, in the order in which a newcomer needs them."""


class LazyGroup(click.Group):
    """Loads a command's module on use, so that starting costs nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which a newcomer needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command from its module."""
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"dpfewshot.cli.{_COMMANDS[name]}"), name)
        return command


@click.group(
    cls=LazyGroup,
    commands=dict.fromkeys(_COMMANDS),  # names, of which click proposes one for a misspelt one
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="dpfewshot")
def cli() -> None:
    """Synthetic few-shot demonstrations from private labelled text, with a certified (epsilon, delta).

    Exit status: 0 success, 1 an audit, `verify` or `report` found a fault, 2 bad input, 3 the budget does not
    allow it, 130 interrupted.

    \b
    Example:
      dpfewshot demo
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status, which `dpfewshot --help` lists."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is not drawn is given back
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115 - a service may have closed it
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - likewise
    if sys.stdout is None:  # what is paid for would be lost
        sys.exit(_fail("standard output is closed: leave it open, or send it to a file", BAD_INPUT))
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        status = cli.main(args=arguments, prog_name="dpfewshot", standalone_mode=False)
    except DPFewShotError as error:
        return _fail(str(error), BUDGET_EXCEEDED if isinstance(error, BudgetExceeded) else BAD_INPUT)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return BAD_INPUT
    except click.ClickException as error:
        return _fail(re.sub(r"://\S*@", "://...@", _advised(error)), BAD_INPUT)  # hides a ledger's password
    except (click.Abort, KeyboardInterrupt) as interruption:
        return _fail(str(interruption) or "interrupted", INTERRUPTED)
    except SystemExit as end:
        if end.code != 1:  # of a backend's own code
            raise
        status = BAD_INPUT  # click ends with 1 where nobody reads the output any more, which is an audit's
    except Exception as error:  # noqa: BLE001 - a bug, or a full disk behind the output
        return _fail(_unforeseen(error), BAD_INPUT)
    return status if isinstance(status, int) else 0


def _advised(error: click.ClickException) -> str:
    """The message, and what to do where a project file is missing, or has what was taken for an option."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if context is None:
        return message
    if isinstance(error, click.MissingParameter) and context.params.get("config", "") is None:
        return (
            "there is no dpfewshot.toml in this folder: `dpfewshot init FILE` writes one for a file of "
            f"records. Without it: {message}"
        )
    if not isinstance(error, click.NoSuchOption):
        return message
    if error.option_name == "--set":
        return (
            "this command has no --set: it reads no project file. In the file that `init` writes, change "
            "a line, or --set it for one call of another command"
        )
    key = error.option_name.removeprefix("--").replace("-", "_")
    if any(one.name == key and one.param_type_name == "key" for one in context.command.params):
        return f"{error.option_name} is no option: give the line of the project file, --set {key}=..."
    return message


def _unforeseen(error: Exception) -> str:
    """Where this package failed, and the reason of the system or the type: a message may quote a record."""
    frames = traceback.walk_tb(error.__traceback__)
    names = [(str(frame.f_globals.get("__name__")), line) for frame, line in frames]
    module, line = [each for each in names if each[0].startswith(__name__.partition(".")[0])][-1]
    place = f"{module}, line {line}"
    if isinstance(error, OSError) and error.errno:
        return f"failed in {place}: {os.strerror(error.errno)}"
    return f"failed with {type(error).__name__} in {place}: please report it"


def _fail(message: str, status: int) -> int:
    with suppress(OSError):  # where nobody reads it, the status remains
        say("dpfewshot: " + " ".join(message.split()), err=True)
    return status
