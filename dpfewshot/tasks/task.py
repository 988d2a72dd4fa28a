"""Tasks: the instruction, the names of the fields and the labels of a demonstration. All of it is public.

A prompt is built from a task's pieces, and the language model continues after the last one:

    {instruction}

    {label_field}: ...                   (if the task has a made-up example)
    {text_field}: {example}

    {label_field}: {label}
    {text_field}: {text of a record}

    {label_field}: {label}
    {text_field}:

A text may have several fields (`text_fields`). Each begins a line of its own, with its name. The built-in
tasks have the wording of Tang et al. (ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self

from dpfewshot.errors import InvalidTask
from dpfewshot.runtime.files import read_text, toml_tables
from dpfewshot.tasks.layout import TextLayout

if TYPE_CHECKING:
    import os


@dataclass(frozen=True, slots=True)
class Task:
    r"""One kind of demonstration.

    Args:
        name: used in messages and reports. One line.
        instruction: the sentence before the examples. It is in every prompt and must not be private.
        label_field: precedes a label, without the colon: "Answer Type". One line.
        text_field: precedes a text, without the colon: "Text". One line. Empty if `text_fields` is given.
        labels: all labels, in order; None if labels are free, as in extraction tasks.
        text_fields: the names of several fields in place of `text_field`, in order: ("Subject", "Body").
        multiline: whether texts keep their line breaks. A blank line then ends a field, else a line break.
        schema: what every generated text matches: a JSON schema, as a mapping or as JSON, or a regular
            expression. It is kept as a string. For one text field on one line.
        example: a made-up text in the style of the records, about nobody. It is in every prompt and must not
            be private. A word is a candidate only if it is likely after the public prompt, which says by
            this example how such texts are written. For one text field.
        chat: whether prompts are written as a conversation, in the template of the model that generates.
        label_descriptions: the meaning of labels whose names say too little, by label, such as
            {"Phone payments": "paying in a shop with the phone"}. It stands for the label in prompts for new
            texts, and beside it in prompts to label a text. Texts that are written without records take turns
            with the subjects in it: "a lost key; an extra key" has two.
        no_repeat_ngram_size: n ≥ 2: no n tokens in a row come twice in a generated field, or from an example,
            apart from what may end it. Where tokens are drawn, no two texts of a label, in a run or in one of
            its disjoint parts, begin with the same n, and none with the first two of one of the 20 before it.
            0 for no such rule. Small models repeat themselves. It has no effect beside a schema.

    Raises:
        InvalidTask: a value is empty, of the wrong type, repeated, or longer than one line; or both or none
            of `text_field` and `text_fields` are given; or the schema cannot be used.

    Example:
        >>> task = Task("mood", "Given a mood, write a note in it.", "Mood", "Note", ("Glad", "Sad"))
        >>> task.preamble()
        'Given a mood, write a note in it.\n\n'
    """

    name: str
    instruction: str
    label_field: str
    text_field: str = ""
    labels: tuple[str, ...] | None = None
    text_fields: tuple[str, ...] = ()
    multiline: bool = False
    schema: str | Mapping[str, Any] = ""
    example: str = ""
    chat: bool = False
    label_descriptions: Mapping[str, str] | None = field(default=None, hash=False)
    no_repeat_ngram_size: int = 4

    def __post_init__(self) -> None:
        _check_line(self.name, "name")
        _check_field(self.label_field, "label_field")
        _check_text(self.instruction, "instruction")
        if self.text_fields == ():
            _check_field(self.text_field, "text_field")
        else:
            self._check_text_fields()
        for name in ("multiline", "chat"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidTask(f"the task's {name} must be true or false")
        size: object = self.no_repeat_ngram_size
        if type(size) is not int or size < 0 or size == 1:
            raise InvalidTask(
                "the task's no_repeat_ngram_size must be a whole number from 2, or 0 for no rule"
            )
        self._check_schema()
        self._check_example()
        if self.labels is not None:
            labels = _checked_lines(self.labels, "label", "leave them out if labels are free")
            object.__setattr__(self, "labels", labels)
        self._check_descriptions()

    def _check_descriptions(self) -> None:
        described: object = {} if self.label_descriptions is None else self.label_descriptions
        if not isinstance(described, Mapping):
            raise InvalidTask("the task's label_descriptions must be a table: a description for each label")
        object.__setattr__(self, "label_descriptions", dict(described) or None)  # the caller's may change
        for label, meaning in described.items():
            if label not in (self.labels or ()):
                there = ", ".join(self.labels or ()) or "none that are given"
                raise InvalidTask(
                    f"the task has no label {label!r}, which label_descriptions describes: there are {there}"
                )
            _check_line(meaning, f"label_descriptions of {label!r}")

    def _check_schema(self) -> None:
        if self.schema == "":
            return
        from dpfewshot.tasks.schema import checked  # loads NumPy

        object.__setattr__(self, "schema", checked(self.schema))
        if self.text_fields or self.multiline:
            raise InvalidTask("a task with a schema has one text field and is not multiline")
        object.__setattr__(self, "no_repeat_ngram_size", 0)

    def _check_example(self) -> None:
        if self.example == "":
            return
        (_check_text if self.multiline else _check_line)(self.example, "example")
        if self.text_fields:
            raise InvalidTask("a task with an example has one text field")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a task from a TOML file whose keys are the arguments above.

        Without `labels`, labels are free.

        Raises:
            InvalidTask: names the file, which is missing, is not TOML, or does not describe a task.
        """
        settings = toml_tables(read_text(path, InvalidTask), path, InvalidTask)
        known = {field.name for field in fields(cls)}
        required = [field.name for field in fields(cls) if field.default is MISSING]
        if "text_fields" not in settings:
            required.append("text_field")
        if not settings.keys().isdisjoint({"task", "records", "budget"}):
            raise InvalidTask(f"{path}: is a project file: dpf.load(...) reads it, and commands by --config")
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
        """Refuse with `InvalidTask` a label that the task does not have, or what is none if they are free.

        The message names the task's labels and never the refused one, which may be a record's.
        """
        if self.labels is None:
            _check_line(label, "label")
        elif label not in self.labels:
            known = ", ".join(self.labels)
            raise InvalidTask(f"task {self.name!r} has no such label; its labels are {known}")

    @property
    def layout(self) -> TextLayout:
        """How a text is written."""
        return TextLayout(
            self.text_fields or (self.text_field,),
            self.multiline,
            str(self.schema),
            self.no_repeat_ngram_size,
            self.example,
        )

    def identity(self) -> dict[str, object]:
        """The arguments by name."""
        return asdict(self)

    def described(self, label: str, number: int | None = None) -> str:
        """What a prompt for new texts says of the label: its description if there is one, else its name.

        `number` is that of a text of the label, which takes its turn among the subjects; None names all.
        """
        subjects = self.subjects(label)
        if number is None or not subjects:
            return (self.label_descriptions or {}).get(label) or label
        return subjects[number % len(subjects)]

    def subjects(self, label: str) -> list[str]:
        """The parts of a label's description, between semicolons; none if it has none."""
        meaning = (self.label_descriptions or {}).get(label, "")
        return [each for each in map(str.strip, meaning.split(";")) if each]

    def preamble(self) -> str:
        """The start of every prompt: the instruction, the made-up example if there is one, an empty line."""
        made_up = f"{self.label_field}: ...\n{self.text_field}: {self.example}\n\n" if self.example else ""
        return f"{self.instruction}\n\n{made_up}"

    def _check_text_fields(self) -> None:
        names = _checked_lines(self.text_fields, "text field", "leave them out for a single text_field")
        if self.text_field != "":
            raise InvalidTask("the task has a text_field and text_fields: give one of the two")
        for name in names:
            _check_field(name, "text_fields")
        if self.label_field in names:
            raise InvalidTask("the task's label_field is one of its text_fields")
        if len(names) == 1:
            object.__setattr__(self, "text_field", names[0])
        object.__setattr__(self, "text_fields", names if len(names) > 1 else ())


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


def _check_field(value: object, what: str) -> None:
    _check_line(value, what)
    if str(value).endswith(":"):
        raise InvalidTask(f"the task's {what} must not end with a colon: the prompt adds it")


def _checked_lines(values: object, what: str, if_empty: str) -> tuple[str, ...]:
    # A bare string would pass as a sequence of letters.
    if not isinstance(values, (list, tuple)):
        raise InvalidTask(f"the task's {what}s must be a list of strings, not {type(values).__name__}")
    if not values:
        raise InvalidTask(f"the task's {what}s are empty; {if_empty}")
    for number, value in enumerate(values, start=1):
        _check_line(value, f"{what} {number}")
        if value in values[: number - 1]:
            raise InvalidTask(f"the task's {what} {value!r} is repeated")
    return tuple(values)


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
        known = ", ".join(_BUILT_IN)
        raise InvalidTask(f"unknown task {name!r}: choose {known}, or the path of a .toml file")
    return task


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
        "Company", "School", "Artist", "Athlete", "Politician", "Transportation", "Building", "Nature",
        "Village", "Animal", "Plant", "Album", "Film", "Book",
    ),
)  # fmt: skip
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
