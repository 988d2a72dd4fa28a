"""Few-shot prompts with released demonstrations, which end where the label is to follow.

    {instruction}

    {text_field}: {the text of a demonstration}
    {label_field}: {its label}

    {text_field}: {the text to be labelled}
    {label_field}:

A `Task` asks for a text of a label; a `PromptFormat` asks for the label of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dpfewshot.errors import InvalidRecords, InvalidTask
from dpfewshot.tasks import AGNEWS, DBPEDIA, MIT_D, MIT_G, TREC, Task
from dpfewshot.tasks.layout import TextLayout, on_one_line
from dpfewshot.values import Demonstration

Text: TypeAlias = str | Mapping[str, str]
"""What is labelled: a text or, for a task with several text fields, each field's value by its name."""


@dataclass(frozen=True, slots=True)
class PromptFormat:
    r"""The wording of a few-shot prompt, all of it public.

    Args:
        instruction: the sentence before the demonstrations; empty for none.
        text_field: the field name before a text, without the colon. Empty if `text_fields` is given.
        label_field: the field name before a label, without the colon.
        labels: all labels, in order; None if labels are free.
        label_words: the word for each label in the prompt, in the order of `labels`; None to use the labels.
        text_fields: the names of several fields of a text, in order, those of its demonstrations.
        multiline: whether texts keep their line breaks. A blank line then ends a field, else a line break.
        chat: whether a language model reads the prompt as a conversation, in its own template: each text is
            the user's turn, and each label the model's. `prompt` writes the same words without turns.

    Raises:
        InvalidTask: a field or label is empty, has several lines or occurs twice, or `label_words` and
            `labels` differ in length; or both or none of `text_field` and `text_fields` are given.

    Example:
        >>> mood = PromptFormat("Classify the notes as Glad or Sad.", "Note", "Mood", ("Glad", "Sad"))
        >>> mood.prompt([], "It rains.")
        'Classify the notes as Glad or Sad.\n\nNote: It rains.\nMood:'
    """

    instruction: str
    text_field: str = ""
    label_field: str = ""
    labels: tuple[str, ...] | None = None
    label_words: tuple[str, ...] | None = None
    text_fields: tuple[str, ...] = ()
    multiline: bool = False
    chat: bool = False

    def __post_init__(self) -> None:
        # A task checks its fields and labels by the same rules.
        checked = Task(
            "of the prompt format",
            self.instruction or "none",
            self.label_field,
            self.text_field,
            self.labels,
            self.text_fields,
            self.multiline,
            chat=self.chat,
        )
        for name in ("labels", "text_field", "text_fields"):
            object.__setattr__(self, name, getattr(checked, name))
        if self.label_words is None:
            return
        words = replace(checked, labels=self.label_words).labels or ()
        if len(words) != len(self.labels or ()):
            raise InvalidTask(
                f"{len(words)} label_words for {len(self.labels or ())} labels: give one for each"
            )
        object.__setattr__(self, "label_words", words)

    @property
    def layout(self) -> TextLayout:
        """How a text is written."""
        return TextLayout(self.text_fields or (self.text_field,), self.multiline)

    @property
    def words(self) -> tuple[str, ...]:
        """The labels' words, in order; empty if labels are free."""
        return self.label_words or self.labels or ()

    def word(self, label: str) -> str:
        """Return the word for a label, or raise `InvalidTask`, which lists the known labels alone."""
        if self.labels is None:
            return on_one_line(label)
        if label not in self.labels:
            raise InvalidTask(f"no such label; the labels are {', '.join(self.labels)}")
        return self.words[self.labels.index(label)]

    def opening(self, demonstrations: Iterable[Demonstration]) -> str:
        """Return the prompt up to the text to be labelled, ending with the colon of its field. See `pair`."""
        pieces = [self.instruction] if self.instruction else []
        for one in demonstrations:
            text, word = self.pair(one)
            pieces.append(f"{self.text_opening} {text}{self.label_opening} {word}")
        return "\n\n".join([*pieces, self.text_opening])

    @property
    def text_opening(self) -> str:
        """The words before a text: the name of its first field, with the colon."""
        return f"{self.layout.fields[0]}:"

    @property
    def label_opening(self) -> str:
        """The words after a text: what ends it, and the label's field with the colon."""
        return f"{self.layout.separator}{self.label_field}:"

    def question(self, text: str, longest: int | None = None) -> str:
        """Return one text, up to where its label is to follow. Arguments as in `TextLayout.values`."""
        return f"{self.text_opening} {self.written(text, longest)}{self.label_opening}"

    def written(self, text: str, longest: int | None = None) -> str:
        """Return a text as it stands behind the name of its first field."""
        layout = self.layout
        first, *others = layout.values(text, longest)
        named = zip(layout.fields[1:], others, strict=True)
        return layout.separator.join([first, *(f"{name}: {value}" for name, value in named)])

    def prompt(self, demonstrations: Iterable[Demonstration], text: Text | None = None) -> str:
        """Return the whole prompt; without a text, it ends after the demonstrations.

        Raises:
            InvalidTask: a demonstration has an unknown label, or other fields.
            InvalidRecords: the text is no string, or lacks a field.
        """
        opening = self.opening(demonstrations).removesuffix(self.text_opening)
        if text is None:
            return opening.rstrip("\n")
        return opening + self.question(self.text_of(text, "the text to label"))

    def text_of(self, given: Text, where: str) -> str:
        """Return a caller's text, all fields in one. `InvalidRecords` says `where`, and quotes nothing."""
        layout = self.layout
        if isinstance(given, str) and (not self.text_fields or layout.divided(given) is not None):
            return given
        if not self.text_fields:
            raise InvalidRecords(f"{where} is {type(given).__name__}, not a string")
        if isinstance(given, Mapping) and all(isinstance(given.get(name), str) for name in layout.fields):
            return layout.text(given)
        raise InvalidRecords(
            f"{where} does not have the fields {layout.named}, each a string: pass a mapping of them"
        )

    def pair(self, one: Demonstration) -> tuple[str, str]:
        """Return a demonstration's text as in `written`, and its label's word; else `InvalidTask`."""
        if self.text_fields and self.layout.divided(one.text) is None:
            raise InvalidTask(f"a demonstration's text does not have the fields {self.layout.named}")
        try:
            return self.written(one.text), self.word(one.label)
        except InvalidTask as error:
            raise InvalidTask(f"a demonstration's label: {error}") from None


def prompt_format(task: Task) -> PromptFormat:
    """The prompt format for a task's demonstrations.

    A built-in task has the wording of Tang et al. (ICLR 2024), Tables 7 and 8. Any other wording is made of
    the task's field names, labels and their descriptions.
    """
    built_in = None if task.label_descriptions else _BUILT_IN.get(task.name)
    if built_in is not None and built_in.labels == task.labels and not task.text_fields:
        return replace(built_in, multiline=task.multiline)
    return PromptFormat(
        labelling_instruction(task),
        task.text_field,
        task.label_field,
        task.labels,
        text_fields=task.text_fields,
        multiline=task.multiline,
    )


def labelling_instruction(task: Task) -> str:
    """Return an instruction to label a text, made of the task's public words."""
    asked = f"Give the {task.label_field} of the {task.layout.named}."
    if task.labels is None:
        return asked
    meanings = (f"\n{label}: {meaning}" for label, meaning in (task.label_descriptions or {}).items())
    return f"{asked} Answer with one of: {', '.join(task.labels)}.{''.join(meanings)}"


_BUILT_IN: Final = {
    AGNEWS.name: PromptFormat(
        "Classify the news articles into the categories of World, Sports, Business, and Technology.",
        "Article",
        "Answer",
        AGNEWS.labels,
    ),
    DBPEDIA.name: PromptFormat(
        "Classify the documents based on whether they are about a Company, School, Artist, Athlete, "
        "Politician, Transportation, Building, Nature, Village, Animal, Plant, Album, Film, or Book.",
        "Article",
        "Answer",
        DBPEDIA.labels,
    ),
    TREC.name: PromptFormat(
        "Classify the questions based on whether their answer type is a Number, Location, Person, "
        "Description, Entity, or Abbreviation.",
        "Question",
        "Answer Type",
        TREC.labels,
    ),
    # The papers give no instruction for extraction: the demonstrations alone show it.
    MIT_G.name: PromptFormat("", "Sentence", "Genre"),
    MIT_D.name: PromptFormat("", "Sentence", "Director"),
}
