"""Tasks: the instruction, the two field names and the labels of a demonstration. All of it is public.

A prompt is built from a task's pieces, and the language model continues after the last one:

    {instruction}

    {label_field}: {label}
    {text_field}: {text of a record}

    {label_field}: {label}
    {text_field}:

The five built-in tasks have the wording of Tang et al. (ICLR 2024).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from dpfewshot.errors import InvalidTask

if TYPE_CHECKING:
    import os


@dataclass(frozen=True, slots=True)
class Task:
    r"""One kind of demonstration.

    Args:
        name: used in messages and reports. One line.
        instruction: the sentence before the examples. It is in every prompt and must not be private.
        label_field: precedes a label, without the colon: "Answer Type". One line.
        text_field: precedes a text, without the colon: "Text". One line.
        labels: all labels, in order; None if labels are free, as in extraction tasks.

    Raises:
        InvalidTask: a value is empty, of the wrong type, repeated, or longer than one line.

    Example:
        >>> task = Task("mood", "Given a mood, write a note in it.", "Mood", "Note", ("Glad", "Sad"))
        >>> task.preamble()
        'Given a mood, write a note in it.\n\n'
    """

    name: str
    instruction: str
    label_field: str
    text_field: str
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what in ("name", "label_field", "text_field"):
            _check_line(getattr(self, what), what)
        _check_text(self.instruction, "instruction")
        for what in ("label_field", "text_field"):
            if getattr(self, what).endswith(":"):
                raise InvalidTask(f"the task's {what} must not end with a colon: the prompt adds it")
        if self.labels is not None:
            object.__setattr__(self, "labels", _checked_labels(self.labels))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a task from a TOML file whose keys are the arguments above.

        Without `labels`, labels are free.

        Raises:
            InvalidTask: names the file, which is missing, is not TOML, or does not describe a task.
        """
        settings = _read_toml(Path(path))
        known = {field.name for field in fields(cls)}
        required = [field.name for field in fields(cls) if field.default is MISSING]
        if unknown := sorted(set(settings) - known):
            raise InvalidTask(f"{path}: unknown key {unknown[0]!r}; a task has {', '.join(sorted(known))}")
        if missing := [key for key in required if key not in settings]:
            raise InvalidTask(
                f"{path}: the key {missing[0]!r} is missing; a task needs {', '.join(required)}"
            )
        try:
            return cls(**settings)
        except InvalidTask as error:
            raise InvalidTask(f"{path}: {error}") from None

    def check_label(self, label: str) -> None:
        """Refuse a label that the task does not have, or a blank one if labels are free.

        The message names the task's labels and never the refused one, which may be a record's.

        Raises:
            InvalidTask: the task does not have the label.
        """
        if self.labels is None:
            if not label.strip():
                raise InvalidTask(f"a label of task {self.name!r} must not be blank")
        elif label not in self.labels:
            raise InvalidTask(
                f"task {self.name!r} has no such label; its labels are {', '.join(self.labels)}"
            )

    def preamble(self) -> str:
        """The start of every prompt: the instruction and an empty line."""
        return f"{self.instruction}\n\n"


def by_name(name: str) -> Task:
    """A built-in task, or the one in a `.toml` file.

    Args:
        name: one of "agnews", "dbpedia", "trec", "mit-g", "mit-d", in any case and with `_` for `-`;
            or a path that ends in ".toml".

    Raises:
        InvalidTask: there is no such task, or its file cannot be used.

    Example:
        >>> by_name("MIT_G").label_field
        'Genre'
    """
    if name.lower().endswith(".toml"):
        return Task.from_file(name)
    task = _BUILT_IN.get(name.lower().replace("_", "-"))
    if task is None:
        raise InvalidTask(
            f"unknown task {name!r}: choose {', '.join(_BUILT_IN)}, or the path of a .toml file"
        )
    return task


def _check_text(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise InvalidTask(f"the task's {what} must be a string, not {type(value).__name__}")
    if not value.strip():
        raise InvalidTask(f"the task's {what} is empty")
    if value != value.strip():
        raise InvalidTask(f"the task's {what} must not start or end with whitespace")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidTask(f"the task's {what} contains half of a surrogate pair, which is not text")


def _check_line(value: object, what: str) -> None:
    _check_text(value, what)
    if len(str(value).splitlines()) > 1:
        raise InvalidTask(f"the task's {what} must be one line")


def _checked_labels(labels: object) -> tuple[str, ...]:
    # A bare string would pass as a sequence of letters.
    if not isinstance(labels, (list, tuple)):
        raise InvalidTask(f"the task's labels must be a list of strings, not {type(labels).__name__}")
    if not labels:
        raise InvalidTask("the task's labels are empty; leave them out if labels are free")
    for number, label in enumerate(labels, start=1):
        _check_line(label, f"label {number}")
        if label in labels[: number - 1]:
            raise InvalidTask(f"the task's label {label!r} is repeated")
    return tuple(labels)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InvalidTask(f"{path}: no such file") from None
    except OSError as error:
        raise InvalidTask(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidTask(f"{path}: is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # Only the position: the path may be that of a private file, whose text must not be quoted.
        place = re.search(r" \(at [a-z0-9, ]+\)$", str(error))
        raise InvalidTask(f"{path}: is not TOML{place.group() if place else ''}") from None


AGNEWS: Final = Task(
    name="agnews",
    instruction="Given a label of news type, generate the chosen type of news accordingly.",
    label_field="News Type",
    text_field="Text",
    labels=("World", "Sports", "Business", "Technology"),
)
"""AG News: four kinds of news."""

DBPEDIA: Final = Task(
    name="dbpedia",
    instruction="Given a label of document type, generate the chosen type of document accordingly.",
    label_field="Document Type",
    text_field="Text",
    labels=(
        "Company",
        "School",
        "Artist",
        "Athlete",
        "Politician",
        "Transportation",
        "Building",
        "Nature",
        "Village",
        "Animal",
        "Plant",
        "Album",
        "Film",
        "Book",
    ),
)
"""DBPedia: fourteen kinds of encyclopedia entries."""

TREC: Final = Task(
    name="trec",
    instruction=(
        "Given a label of answer type, generate a question based on the given answer type accordingly."
    ),
    label_field="Answer Type",
    text_field="Text",
    labels=("Number", "Location", "Person", "Description", "Entity", "Abbreviation"),
)
"""TREC: questions by the type of their answer."""

MIT_G: Final = Task(
    name="mit-g",
    instruction=(
        "Given a genre for the film, generate a description accordingly "
        "and make sure to include the given genre in the description."
    ),
    label_field="Genre",
    text_field="Sentence",
)
"""MIT Movies, genre extraction. Labels are free."""

MIT_D: Final = Task(
    name="mit-d",
    instruction=(
        "Given a director for the film, generate a description accordingly "
        "and make sure to include the given director in the description."
    ),
    label_field="Director",
    text_field="Sentence",
)
"""MIT Movies, director extraction. Labels are free."""

_BUILT_IN: Final = {task.name: task for task in (AGNEWS, DBPEDIA, TREC, MIT_G, MIT_D)}
