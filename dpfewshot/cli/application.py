"""The entry point. Errors become one line on standard error and an exit status."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Sequence

import click

from dpfewshot import __version__
from dpfewshot.cli.wording import in_options
from dpfewshot.errors import BudgetExceeded, DPFewShotError

BAD_INPUT = 2
BUDGET_EXCEEDED = 3
INTERRUPTED = 130


class LazyGroup(click.Group):
    """Loads a command's module on use, so that starting costs nothing heavy."""

    commands_by_name = (
        "demo",
        "plan",
        "generate",
        "labels",
        "calibrate",
        "choose",
        "evaluate",
        "audit",
        "report",
        "verify",
        "doctor",
        "ledger",
    )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which a newcomer needs them."""
        return list(self.commands_by_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. What it refuses is said in its own options."""
        try:
            return super().invoke(ctx)
        except DPFewShotError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            error.args = (in_options(str(error), command),)
            raise

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command from the module of the same name."""
        if name not in self.commands_by_name:
            return None
        module = importlib.import_module(f"dpfewshot.cli.{name}")
        command: click.Command = getattr(module, name)
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="dpfewshot")
def cli() -> None:
    """Synthetic few-shot demonstrations from private labelled text, with a certified (epsilon, delta).

    \b
    Example:
      dpfewshot demo
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 success, 1 an audit or verification failed, 2 bad input, 3 no budget."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        status = cli.main(args=arguments, prog_name="dpfewshot", standalone_mode=False)
    except BudgetExceeded as error:
        return _fail(str(error), BUDGET_EXCEEDED)
    except DPFewShotError as error:
        return _fail(str(error), BAD_INPUT)
    except click.ClickException as error:
        return _fail(
            re.sub(r"://\S*@", "://...@", error.format_message()), BAD_INPUT
        )  # hides a ledger's password
    except (click.Abort, KeyboardInterrupt) as interruption:
        return _fail(str(interruption) or "interrupted", INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug: only its place and type are shown
        return _fail(f"failed with {type(error).__name__} in {_place(error)}: please report it", BAD_INPUT)
    return status if isinstance(status, int) else 0


def _place(error: BaseException) -> str:
    """Return the last line of this package in a traceback. The error's message may quote a record."""
    names = [
        (str(frame.f_globals.get("__name__")), line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    module, line = [each for each in names if each[0].startswith(__name__.partition(".")[0])][-1]
    return f"{module}, line {line}"


def _fail(message: str, status: int) -> int:
    click.echo("dpfewshot: " + " ".join(message.split()), err=True)
    return status
