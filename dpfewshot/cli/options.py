"""What a command takes: settings, as options or as keys of the project file, with --config and --set."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from dpfewshot.cli.printing import Decorator, in_options, json_option, warn
from dpfewshot.cli.project import SETTINGS, AccountName, Project, names_of, project_of
from dpfewshot.cli.project_file import FILE_NAME, OUTPUT, assigned, read
from dpfewshot.errors import DPFewShotError

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

_IN_FILE: Final = ParameterSource.DEFAULT_MAP
"""Where a value comes from that is in a project file or in --set, and not in the environment."""


class Setting(click.Option):
    """An option that a project file may give, too: --help says so of a required one, from click 8.2 on."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """What stands behind its help, in brackets."""
        extra = super().get_help_extra(ctx)
        if "required" in extra:
            extra["required"] = "required without a project file"
        return extra


class Key(click.Parameter):
    """A setting of a command that a project file or `--set` gives, and no option of its own."""

    param_type_name = "key"

    def _parse_decls(
        self,
        decls: Sequence[str],
        expose_value: bool,  # noqa: ARG002 - click's signature
    ) -> tuple[str, list[str], list[str]]:
        return decls[0], [], []

    def add_to_parser(self, parser: object, ctx: click.Context) -> None:
        """Add nothing: no word on the command line names it."""


def takes(
    *wanted: type | str,
    required: Collection[str] = (),
    from_file: bool = True,
    own: Collection[str] = (),
    files: Mapping[str, str] | None = None,
    **changed: Mapping[str, Any],
) -> Decorator:
    """Give a command --json and settings, as options or keys; call it with the project that they describe.

    Args:
        wanted: dataclasses of settings, and names of single ones.
        from_file: whether --config and --set give settings, too.
        own: settings that --config does not give.
        files: keys of [output], each with the option that it sets.
        changed: what a setting has otherwise in this command.
    """
    names = [one for each in wanted for one in ([each] if isinstance(each, str) else names_of(each))]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = json_option(command)

        @wraps(command)
        def with_project(**values: Any) -> Any:
            source = click.get_current_context().get_parameter_source
            for name in ("config", "quiet"):  # who needs them finds them among the context's parameters
                values.pop(name, None)
            lines = values.pop("lines", ())
            if twice := sorted(name for name in lines if source(name) is not _IN_FILE):
                raise click.UsageError(f"--set {twice[0]}: an option or the environment gives it, too")
            given = {name: values.pop(name) for name in names}
            try:
                return command(project=_without_guarantee(project_of(given), lines), **values)
            except DPFewShotError as error:
                error.args = (in_options(str(error)),)
                raise

        for name in reversed(names):
            one, declared = SETTINGS[name], SETTINGS[name].metadata
            attributes: dict[str, Any] = {"default": one.default} | declared["click"] | changed.get(name, {})
            if name in required:
                attributes["required"] = True
                del attributes["default"]
            if declared["text"]:
                flags = declared["flags"] or ("--" + name.replace("_", "-"),)
                attributes.setdefault("help", declared["text"])
                kind = Setting if from_file and name not in own else click.Option
                with_project = click.option(*flags, name, cls=kind, **attributes)(with_project)
            else:
                attributes["type"] = click.UNPROCESSED  # the project file's reader has checked it
                with_project = click.option(name, cls=Key, **attributes)(with_project)  # type: ignore[arg-type]
        return _with_file(with_project, own, files or {}) if from_file else with_project

    return decorate


def _with_file(
    command: Callable[..., Any], own: Collection[str], files: Mapping[str, str]
) -> Callable[..., Any]:
    """Give a command the options --config, whose file stands for what is not given, and --set."""

    def defaults(context: click.Context, values: Mapping[str, Any]) -> dict[str, Any]:
        given = {files.get(key, key): value for key, value in values.items()}
        repeated = {one.name for one in context.command.params if one.multiple}
        return {
            name: [value] if name in repeated and isinstance(value, str) else value
            for name, value in given.items()
        }

    def read_file(context: click.Context, _: click.Parameter, path: str | None) -> str | None:
        if context.resilient_parsing or (path is None and not Path(FILE_NAME).exists()):
            return None
        others = {*own, *OUTPUT} - files.keys()
        values = {key: one for key, one in read(path or FILE_NAME).values.items() if key not in others}
        context.default_map = defaults(context, values) | dict(context.default_map or {})
        return path or FILE_NAME

    def read_lines(context: click.Context, _: click.Parameter, lines: tuple[str, ...]) -> list[str]:
        given = defaults(context, assigned(lines))
        used = {one.name for one in context.command.params}
        if unused := [name for name in given if name not in used]:
            raise click.UsageError(f"--set {unused[0]}: `{context.info_name}` does not use it")
        context.default_map = dict(context.default_map or {}) | given
        return list(given)

    command = click.option(
        "--set",
        "lines",
        is_eager=True,
        multiple=True,
        callback=read_lines,
        metavar="KEY=VALUE",
        help="A line of the project file, for this call: --set top_k=50. Repeatable.",
    )(command)
    return click.option(
        "--config",
        is_eager=True,
        callback=read_file,
        metavar="FILE",
        help="A project file, which stands for what is not given. "
        f"Default: {FILE_NAME}, if it is in this folder; `dpfewshot init` writes it.",
    )(command)


def _without_guarantee(project: Project, lines: Collection[str]) -> Project:
    """Leave the account of a project file out at ε = inf: it counts nothing. Refuse its file of texts."""
    published = project.settings.accounting != "certified"
    source = click.get_current_context().get_parameter_source
    in_file = source("epsilon") is _IN_FILE and "epsilon" not in lines
    if not published and (project.budget.epsilon < math.inf or in_file):
        return project
    if source("output") is _IN_FILE:
        raise click.UsageError(
            "this run has no guarantee: name another file with --output, since that of the project file is "
            "for texts to publish"
        )
    if published or project.account.ledger is None or source("ledger") is not _IN_FILE:
        return project
    warn("--epsilon inf means no guarantee, so no account is charged")
    return replace(project, account=AccountName())
