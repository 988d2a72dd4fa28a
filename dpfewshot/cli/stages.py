"""One line a stage on standard error, so that a long command in a pipe is not silent."""

from __future__ import annotations

from collections.abc import Callable

import click

_QUIET = "dpfewshot.quiet"


def quiet_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--quiet`."""

    def remember(context: click.Context, _: click.Parameter, quiet: bool) -> None:
        context.meta[_QUIET] = quiet

    return click.option(
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Print no stages on standard error, but warnings and errors alone.",
    )(command)


def stages() -> Callable[[str], None]:
    """Return what prints the stages of the running command, on any thread; nothing with --quiet.

    A stage is named when it begins. It may say public numbers alone, and no duration.
    """
    context = click.get_current_context(silent=True)
    quiet = context is None or context.meta.get(_QUIET, False)
    return _silent if quiet else _print


def _silent(stage: str) -> None:
    del stage


def _print(stage: str) -> None:
    click.echo(stage, err=True)
