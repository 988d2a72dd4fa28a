"""The project file: settings of all commands, written once; and `--set`, a line of it for one call.

A key that is an option, too, has its name: `max_tokens` is `--max-tokens`. What the keys are, and of which
types, the fields of `Project` say.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dpfewshot.cli.models import open_backend, options_of
from dpfewshot.cli.project import LEDGER_VARIABLE, PARTS, SENT, SETTINGS, Project, names_of, project_of
from dpfewshot.errors import DPFewShotError, InvalidPlan
from dpfewshot.runtime.files import read_text, toml_tables
from dpfewshot.runtime.redaction import redacts_errors
from dpfewshot.tasks import Task
from dpfewshot.values import NoPrivacy, PrivacyBudget

if TYPE_CHECKING:
    from dpfewshot.account.account import Account
    from dpfewshot.backends import LogprobBackend
    from dpfewshot.generation.telemetry import Observer
    from dpfewshot.synthesizer import Synthesizer
    from dpfewshot.values import Records, StoredRecords

FILE_NAME: Final = "dpfewshot.toml"
"""The project file that commands find in the working folder."""

_SECTION_OF: Final[Mapping[str, str]] = {
    **{
        key: "records" if name == "data" else name
        for name, part in PARTS.items()
        for key in names_of(part)
        if key != "task"
    },
    **{name: one.metadata["section"] for name, one in SETTINGS.items() if one.metadata["section"]},
}
"""The section of each key."""

_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "task": tuple(names_of(Task)),
    **{
        section: tuple(key for key, its in _SECTION_OF.items() if its == section)
        for section in dict.fromkeys(_SECTION_OF.values())
    },
}
"""The keys of each section."""

OUTPUT: Final = _SECTIONS["output"]
"""The keys of files that commands write and read."""

_SQLITE: Final = "sqlite:///"


@dataclass(frozen=True)
class ProjectFile:
    """What a project file describes. `load` returns it."""

    values: Mapping[str, Any]  # by key
    project: Project

    def __repr__(self) -> str:  # a ledger's or server's address may have a password
        of = self.project
        return (
            f"ProjectFile(records={of.data.records!r}, epsilon={of.budget.epsilon}, "
            f"account={of.account.account!r}, model={of.model.name!r})"
        )

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
        return open_backend(self.project.model, prompts=self.project.settings.prompts_per_draw)

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
                then the account need not have room for a second one. Nor need it where words are counted,
                since whoever counts them pays for all.
            observers: are told what is released, as by `Synthesizer`.
        """
        resuming = resuming or self.project.counts_words
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
        if key not in found.values:
            raise InvalidPlan(f"{path}: [{section}] {'is missing' if key == section else f'needs {key}'}")
    return found


# ---- reading ---------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> ProjectFile:
    """Read and check a project file, which may lack any section."""
    return parsed(Path(path), read_text(path, InvalidPlan))


def parsed(path: Path, text: str) -> ProjectFile:
    """The project file of this text; `path` is for messages, and its folder for relative paths."""
    file = _File(path, text)
    values = {
        key: _checked(key, _placed(path.parent, key, one), file.error)
        for section, table in file.tables.items()
        if section != "task"
        for key, one in table.items()
    }
    if "task" in file.tables:
        values["task"] = file.task()
    if "text_writer" in values:
        values.setdefault("text_writer_log", _placed(path.parent, "text_writer_log", SENT))
    of_environment = {"ledger": os.environ[LEDGER_VARIABLE]} if os.environ.get(LEDGER_VARIABLE) else {}
    project = project_of(values | of_environment)
    file.check(project)
    return ProjectFile(values, project)


def assigned(lines: Sequence[str]) -> dict[str, Any]:
    """The values of `--set`'s lines, KEY=VALUE. What is no TOML value is a string: quotes may be left out."""
    values: dict[str, Any] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        key = name.strip().partition(".")[0]
        if not equals or not key:
            raise click.UsageError(f"--set must read KEY=VALUE, not {line!r}")
        if key in {"task", *_SECTIONS["task"]} - _SECTION_OF.keys():
            raise click.UsageError(
                f"--set {key}: unknown key; change [task] in the file: it is for all commands"
            )
        if key not in _SECTION_OF:
            close = get_close_matches(key, _SECTION_OF)
            known = f"did you mean {close[0]}?" if close else f"there are {', '.join(_SECTION_OF)}"
            raise click.UsageError(f"--set {key}: unknown key; {known}")
        there, new = values.get(key), _value(key, name, value.strip())
        if isinstance(there, dict) and isinstance(new, dict):  # population.Refund=3 and others
            new = {**there, **new}
        values[key] = new  # as with an option, the last one counts
    return {key: _checked(key, value, _error_of_line) for key, value in values.items()}


def _error_of_line(message: str, key: str) -> InvalidPlan:
    return InvalidPlan(f"--set {key}: {message}")


def _value(key: str, name: str, written: str) -> Any:
    for value in (written, json.dumps(written)):
        with suppress(ValueError, RecursionError):  # as `toml_tables`
            found = tomllib.loads(f"{name} = {value}")
            if set(found) == {key}:
                return found[key]
            break
    raise _error_of_line("is no key of TOML", key)


_WORDS: Final[Mapping[str, str]] = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple[str, ...]": "a list of strings",
    "Mapping[str, str]": "a table of strings",
    "Mapping[str, int]": "a table of whole numbers",
    "Literal['all']": "'all'",
}
"""What a value must be, by the type of its setting."""


def _checked(key: str, value: Any, error: Callable[[str, str], InvalidPlan]) -> Any:
    """A value of TOML as a setting; `error` makes the refusal of one that is of another type."""
    setting = SETTINGS[key]
    if isinstance(value, str) and "\0" in value:
        raise error("must be without the character NUL, which no path can hold", key)
    kinds = str(setting.type).removesuffix(" | None").split(" | ")
    made = next((made for kind in kinds if (made := _made(kind, value)) is not None), None)
    if made is None:
        raise error(f"must be {' or '.join(_WORDS[kind] for kind in kinds)}", key)
    choice = setting.metadata["click"].get("type")
    if isinstance(choice, click.Choice) and value not in choice.choices:
        raise error(f"{value!r} is not one of {', '.join(map(repr, choice.choices))}", key)
    return made


def _made(kind: str, value: Any) -> Any:
    """A value of TOML as one of this type; None if it is of another."""
    if kind == "float":
        number = float(str(value)) if type(value) in {int, float} else None
        return None if number == math.inf and type(value) is int else number
    if kind == "tuple[str, ...]":
        listed = [value] if isinstance(value, str) else value
        return tuple(listed) if isinstance(listed, list) and set(map(type, listed)) <= {str} else None
    if kind.startswith("Mapping"):
        inside = str if kind.endswith("str]") else int
        return value if isinstance(value, dict) and set(map(type, value.values())) <= {inside} else None
    return value if kind == type(value).__name__ or kind == f"Literal[{value!r}]" else None


def _placed(folder: Path, key: str, value: Any) -> Any:
    """A value, as seen from the working folder if it is a path, or paths."""
    if isinstance(value, list):
        return [_placed(folder, key, one) for one in value]
    if not isinstance(value, str):
        return value
    if key == "ledger" and value.startswith(_SQLITE):
        return _SQLITE + str(folder / value.removeprefix(_SQLITE))
    # A model may be a name on a hub, which has folders.
    is_file = key in {"model", "user_model"} and (
        (folder / value).exists() or re.fullmatch(r"[^/:]+\.gguf", value)
    )
    return str(folder / value) if SETTINGS[key].metadata["path"] or is_file else value


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

    def check(self, project: Project) -> None:
        """Refuse sections that contradict themselves or each other."""
        account, data, budget, settings = project.account, project.data, project.budget, project.settings
        with self._checks("account"):
            if "account" in self.tables:  # the environment may name a ledger for other commands
                account.check()
            own_ledger = "ledger" in self.tables.get("account", {}) and not os.environ.get(LEDGER_VARIABLE)
            if own_ledger and budget.epsilon == math.inf:
                raise InvalidPlan("a ledger counts nothing at epsilon = inf, without privacy")
        with self._checks("model"):
            options_of(project.model)
        with self._checks("settings"):
            settings.made_mechanism()
            project.expert_settings().decided(max_tokens=settings.max_tokens, shots_per_label=settings.shots)
        with self._checks("budget"):
            if "epsilon" in self.tables.get("budget", {}) and budget.epsilon != math.inf:
                PrivacyBudget(budget.epsilon, 1e-6 if budget.delta is None else budget.delta)
        if not isinstance(data.task, Task):
            return
        task, population = data.task, budget.population
        given = tuple(data.text) if isinstance(data.text, Mapping) else ()
        if "records" in self.tables and given != task.text_fields:
            columns = f"a table with a column for each of {', '.join(task.text_fields)}"
            raise self.error(
                f"must be {columns if task.text_fields else 'one column'}, as [task] says", "text"
            )
        with self._checks("settings", "labels"):
            project.check_labels()
        if population is not None:
            from dpfewshot.planning.population import check_population

            with self._checks("budget", "population"):
                check_population(population, task.labels)

    @contextmanager
    def _checks(self, section: str, key: str = "") -> Iterator[None]:
        """Name the line of what is refused: of the key, or of the longest one that the message names."""
        try:
            yield
        except (DPFewShotError, click.UsageError) as error:
            plain, keys = re.sub("[_-]", " ", str(error)), self.tables.get(section, {})
            named = (one for one in keys if one.replace("_", " ").removesuffix("s") in plain)
            raise self.error(str(error), key or max(named, key=len, default=""), section) from None
