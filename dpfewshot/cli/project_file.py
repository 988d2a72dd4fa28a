"""The project file: settings of all commands, written once; and `--set`, a line of it for one call.

A key that is an option, too, has its name: `max_tokens` is `--max-tokens`. The file becomes words of the
command line, which the commands' own parser reads where no option is given. So a setting has one meaning.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.cli.models import options_of
from dpfewshot.cli.printing import Decorator
from dpfewshot.cli.project import SECTIONS, Project, takes
from dpfewshot.errors import DPFewShotError, InvalidPlan
from dpfewshot.runtime.files import read_text, toml_tables
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import NoPrivacy, PrivacyBudget

if TYPE_CHECKING:
    import os

    from dpfewshot.account.account import Account
    from dpfewshot.backends import LogprobBackend
    from dpfewshot.generation.telemetry import Observer
    from dpfewshot.synthesizer import Synthesizer
    from dpfewshot.values import Records, StoredRecords

FILE_NAME: Final = "dpfewshot.toml"
"""The project file that commands find in the working folder."""

_TABLE_OF: Final = {"data": "records", "files": "output"}
"""The section of a project's field, where it has another name."""

_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "task": tuple(one.name for one in fields(Task)),
    **{
        _TABLE_OF.get(name, name): tuple(one.name for one in fields(section) if one.name != "task")
        for name, section in SECTIONS.items()
    },
}
"""The keys of each section."""

_SECTION_OF: Final = {key: name for name, keys in _SECTIONS.items() if name != "task" for key in keys}
"""The section of each key."""

_NAMED: Final[Mapping[type, str]] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of strings",
    dict: "a table",
}
"""What a value must be, by its type in a section."""

_PATHS: Final = ("records", "ca_bundle", "user_model", "calibrations", "baseline", *_SECTIONS["output"])
_OWN: Final = click.core.ParameterSource.DEFAULT_MAP  # and not the environment
_SQLITE: Final = "sqlite:///"


@dataclass(frozen=True)
class ProjectFile:
    """What a project file describes. `load` returns it."""

    words: Mapping[str, Any] = field(repr=False)  # as on the command line; a ledger may have a password
    project: Project = field(repr=False)

    @property
    def task(self) -> Task:
        """The task."""
        return self.project.task

    @redacts_errors(None)
    def records(self) -> Records | StoredRecords:
        """Read the private records; masked if the file says so."""
        return self.project.data.read_masked()

    def backend(self) -> LogprobBackend:
        """Load the language model."""
        return self.project.open_model(prompts=self.project.settings.prompts_per_draw)

    @property
    @redacts_errors(None)
    def budget(self) -> PrivacyBudget | NoPrivacy:
        """What one plan may spend. Reads the records: the default δ counts their units."""
        return self.project.budget.of(self.project.data.read())

    def account(self) -> Account | None:
        """Open the account, which `create = true` creates if there is none; None without a ledger."""
        from dpfewshot.planning.population import relation_of

        project = self.project
        relation = relation_of(project.settings.sampling, project.budget.population)
        budget = self.budget if project.account.create else None
        return project.account.opened(relation, project.data.unit, budget)

    @redacts_errors(None)
    def synthesizer(self, *, resuming: bool = False, observers: Iterable[Observer] = ()) -> Synthesizer:
        """Read the records, load the model, open the account and plan. Spends nothing.

        Args:
            resuming: whether an earlier process may have reserved this plan, for `generate_all(resume=True)`:
                then the account need not have room for a second one.
            observers: are told what is released, as by `Synthesizer`.
        """
        return self.project.synthesizer(resuming=resuming, observers=observers)


@redacts_errors(None)
def load(path: str | os.PathLike[str] = FILE_NAME) -> ProjectFile:
    """Return the project that a file describes, as the command line reads it.

    Args:
        path: a file as `dpfewshot init` writes it. Paths in it are relative to it.

    Raises:
        DPFewShotError: the file lacks a task, records or an epsilon, or a key is unknown, of the wrong type,
            or contradicts another one. Names the line and the key.

    Example:
        >>> demonstrations = load("dpfewshot.toml").synthesizer().generate_all()  # doctest: +SKIP
    """
    found = read(path)
    for section, key in (("task", "task"), ("records", "records"), ("budget", "epsilon")):
        if key not in found.words:
            raise InvalidPlan(f"{path}: [{section}] {'is missing' if key == section else f'needs {key}'}")
    return found


def from_project_file(*, own: Collection[str] = (), **output: str) -> Decorator:
    """Give a command the options --config, whose file stands for what is not given, and --set.

    The command does not read its `own` keys from the file. `output` are options that [output] sets, each with
    its key there.
    """
    names = {key: option for option, key in output.items()}

    def read_file(context: click.Context, _: click.Parameter, path: str | None) -> str | None:
        if context.resilient_parsing or (path is None and not Path(FILE_NAME).exists()):
            return None
        others = {*own, *_SECTIONS["output"]} - names.keys()
        words = {key: one for key, one in read(path or FILE_NAME).words.items() if key not in others}
        context.default_map = _default_map(context.command, words, names) | dict(context.default_map or {})
        return path or FILE_NAME

    def read_lines(context: click.Context, _: click.Parameter, lines: tuple[str, ...]) -> list[str]:
        words = assigned(lines)
        used = {one.name for one in context.command.params}
        if unused := [key for key in words if names.get(key, key) not in used]:
            raise click.UsageError(f"--set {unused[0]}: `{context.info_name}` does not use it")
        context.default_map = dict(context.default_map or {}) | _default_map(context.command, words, names)
        return [names.get(key, key) for key in words]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--config",
            is_eager=True,
            callback=read_file,
            metavar="FILE",
            help="A project file, which stands for what is not given. "
            f"Default: {FILE_NAME}, if it is in this folder; `dpfewshot init` writes it.",
        )
        @click.option(
            "--set",
            "lines",
            is_eager=True,
            multiple=True,
            callback=read_lines,
            metavar="KEY=VALUE",
            help="A line of the project file, for this call: --set top_k=50. Repeatable.",
        )
        @wraps(command)
        def with_file(
            *,
            config: str | None,  # noqa: ARG001 - commands find it among the context's parameters
            lines: Collection[str],
            **values: Any,
        ) -> None:
            source = click.get_current_context().get_parameter_source
            if twice := sorted(name for name in lines if source(name) is not _OWN):
                raise click.UsageError(f"--set {twice[0]}: an option or the environment gives it, too")
            command(**values)

        return with_file

    return decorate


def _default_map(command: click.Command, words: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The words for a command's options, some by another name than their key; a list for a repeated one."""
    words = words | {names[key]: word for key, word in words.items() if key in names}
    repeated = {one.name for one in command.params if one.multiple}
    return {key: [word] if key in repeated and isinstance(word, str) else word for key, word in words.items()}


# ---- reading ---------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> ProjectFile:
    """Read and check a project file, which may lack any section."""
    return parsed(Path(path), read_text(path, InvalidPlan))


def parsed(path: Path, text: str) -> ProjectFile:
    """The project file of this text; `path` is for messages, and its folder for relative paths."""
    file = _File(path, text)
    values = {
        key: _placed(path.parent, key, one)
        for section, table in file.tables.items()
        if section != "task"
        for key, one in table.items()
    }
    words, project, own = _described(values, file.error)
    if "task" in file.tables:
        words["task"] = file.task()
        project = replace(project, data=replace(project.data, task=words["task"]))
    file.check(project, own)
    return ProjectFile(words, project)


def assigned(lines: Sequence[str]) -> dict[str, Any]:
    """The words of `--set`'s lines, KEY=VALUE. What is no TOML value is a string: quotes may be left out."""
    values: dict[str, Any] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        key = name.strip().partition(".")[0]
        if not equals or not key:
            raise click.UsageError(f"--set must read KEY=VALUE, not {line!r}")
        if key not in _SECTION_OF:
            close = get_close_matches(key, _SECTION_OF)
            known = f"did you mean {close[0]}?" if close else f"there are {', '.join(_SECTION_OF)}"
            raise click.UsageError(f"--set {key}: unknown key; {known}")
        there, new = values.get(key), _value(key, name, value.strip())
        if isinstance(there, dict) and isinstance(new, dict):  # population.Refund=3 and others
            new = {**there, **new}
        values[key] = new  # as with an option, the last one counts
    return _described(values, _error_of_line)[0]


def _error_of_line(message: str, key: str) -> InvalidPlan:
    return InvalidPlan(f"--set {key}: {message}")


def _value(key: str, name: str, written: str) -> Any:
    for value in (written, json.dumps(written)):
        try:
            found = tomllib.loads(f"{name} = {value}")
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        if set(found) == {key}:
            return found[key]
        break
    raise _error_of_line("is no key of TOML", key)


@click.command()
@takes(*SECTIONS.values())
def _everything(*, project: Project) -> Project:
    return project


def _described(
    values: Mapping[str, Any], error: Callable[[str, str], InvalidPlan]
) -> tuple[dict[str, Any], Project, Collection[str]]:
    """The words of some keys, the project that they describe, and those that the environment leaves alone.

    `error` makes an error of a message and the key that it is about.
    """
    words = {key: _words(value) for key, value in values.items()}
    repeated = {one.name for one in _everything.params if one.multiple}
    for key, value in values.items():
        if isinstance(value, (list, dict)) and key not in repeated:
            raise error("must be a single value", key)
    try:
        with _everything.make_context("", [], default_map=_default_map(_everything, words, {})) as context:
            project: Project = _everything.invoke(context)
            own = [key for key in values if context.get_parameter_source(key) is _OWN]
    except click.BadParameter as refused:
        raise error(refused.message, str(refused.param.name if refused.param else "")) from None
    sections = [getattr(project, name) for name in SECTIONS]
    for key in own:  # refuse what became something else on its way: "1" a number, or true a string
        value, made = values[key], next(getattr(one, key) for one in sections if hasattr(one, key))
        as_given = [value] if isinstance(made, tuple) and isinstance(value, str) else value
        same = (list(made) if isinstance(made, tuple) else made) == as_given
        if not same or (made is True) != (value is True):
            raise error(f"must be {_NAMED.get(type(made), 'left out')}", key)
    return words, project, own


def _placed(folder: Path, key: str, value: Any) -> Any:
    """A value, as seen from the working folder if it is a path, or paths."""
    if isinstance(value, list):
        return [_placed(folder, key, one) for one in value]
    if not isinstance(value, str):
        return value
    if key == "ledger" and value.startswith(_SQLITE):
        return _SQLITE + str(folder / value.removeprefix(_SQLITE))
    # A model may be a name on a hub, which has folders.
    is_model = key == "model" and ((folder / value).exists() or re.fullmatch(r"[^/:]+\.gguf", value))
    return str(folder / value) if key in _PATHS or is_model else value


def _words(value: Any) -> Any:
    """A value as on the command line, where a table's entry is NAME=VALUE."""
    if isinstance(value, dict):
        return [f"{name}={one}" for name, one in value.items()]
    return value if isinstance(value, list) else str(value)


class _File:
    """A file's text and tables. Its errors name the line of a key."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.split("\n")
        self.tables = toml_tables(text, path, InvalidPlan)
        for section, table in self.tables.items():
            if section not in _SECTIONS or not isinstance(table, dict):
                listed = ", ".join(f"[{name}]" for name in _SECTIONS)
                raise self.error(f"unknown section; there are {listed}", section, section)
            for key in table:
                if key not in _SECTIONS[section]:
                    known = ", ".join(map(repr, _SECTIONS[section]))
                    raise self.error(f"unknown key; [{section}] has {known}", key, section)

    def error(self, message: str, key: str, section: str = "") -> InvalidPlan:
        """An error that names the key and its line, or that of its section, by default the key's own."""
        section = section or _SECTION_OF[key]
        inside, line = "", 0
        for number, text in enumerate(self._lines, start=1):
            header = re.match(r"\s*\[+\s*([\w.-]+)", text)
            inside = header[1] if header else inside
            has_key = re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", text)
            if (inside in {section, ""} and has_key) or (header and inside == f"{section}.{key}"):
                line = number
                break
            line = number if header and inside == section else line
        place = f"{self._path}, line {line}" if line else str(self._path)
        return InvalidPlan(f"{place}: {key!r}: {message}" if key else f"{place}: {message}")

    def task(self) -> Task:
        """The task of [task]."""
        table = self.tables["task"]
        for one in fields(Task):
            if one.default is MISSING and one.name not in table:
                raise self.error(f"[task] needs {one.name!r}", "", "task")
        with self._checks("task"):
            return Task(**table)

    def check(self, project: Project, own: Collection[str]) -> None:
        """Refuse sections that contradict themselves or each other."""
        account, data, budget, settings = project.account, project.data, project.budget, project.settings
        with self._checks("account"):
            if "account" in self.tables:  # the environment may name a ledger for other commands
                account.check()
            if "ledger" in own and budget.epsilon == math.inf:
                raise InvalidPlan("a ledger counts nothing at epsilon = inf, without privacy")
        with self._checks("model"):
            options_of(project.model)
        with self._checks("settings"):
            settings.made_mechanism()
        with self._checks("budget"):
            if "epsilon" in own and budget.epsilon < math.inf:
                PrivacyBudget(budget.epsilon, 1e-6 if budget.delta is None else budget.delta)
        if isinstance(data.task, Task):
            self._check_task(data.task, project)

    def _check_task(self, task: Task, project: Project) -> None:
        data, population = project.data, project.budget.population
        given = tuple(data.text) if isinstance(data.text, Mapping) else ()
        if "records" in self.tables and given != task.text_fields:
            columns = f"a table with a column for each of {', '.join(task.text_fields)}"
            raise self.error(
                f"must be {columns if task.text_fields else 'one column'}, as [task] says", "text"
            )
        with self._checks("settings", "labels"):
            for label in project.settings.labels:
                task.check_label(label)
        if population is not None:
            from dpfewshot.planning.population import check_population

            with self._checks("budget", "population"):
                check_population(population, task.labels)

    @contextmanager
    def _checks(self, section: str, key: str = "") -> Iterator[None]:
        """Name the line of what is refused: of the key, or of the first one that the message names."""
        try:
            yield
        except (DPFewShotError, click.UsageError) as error:
            message = error.message if isinstance(error, click.UsageError) else str(error)
            plain = re.sub("[_-]", " ", message)
            named = (
                one
                for one in self.tables.get(section, {})
                if one.replace("_", " ").removesuffix("s") in plain
            )
            raise self.error(message, key or next(named, ""), section) from None
