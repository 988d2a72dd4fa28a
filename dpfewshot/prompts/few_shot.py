"""Few-shot prompts with released demonstrations, which end where the label is to follow.

    {instruction}

    {text_field}: {the text of a demonstration}
    {label_field}: {its label}

    {text_field}: {the text to be labelled}
    {label_field}:

A `Task` asks for a text of a label; a `PromptFormat` asks for the label of a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dpfewshot.errors import InvalidTask
from dpfewshot.tasks import AGNEWS, DBPEDIA, MIT_D, MIT_G, TREC, Task
from dpfewshot.values import Demonstration


@dataclass(frozen=True, slots=True)
class PromptFormat:
    r"""The wording of a few-shot prompt, all of it public.

    Args:
        instruction: the sentence before the demonstrations; empty for none.
        text_field: the field name before a text, without the colon.
        label_field: the field name before a label, without the colon.
        labels: all labels, in order; None if labels are free.
        label_words: the word for each label in the prompt, in the order of `labels`; None to use the labels.

    Raises:
        InvalidTask: a field or label is empty, has several lines or occurs twice, or `label_words` and
            `labels` differ in length.

    Example:
        >>> mood = PromptFormat("Classify the notes as Glad or Sad.", "Note", "Mood", ("Glad", "Sad"))
        >>> mood.prompt([], "It rains.")
        'Classify the notes as Glad or Sad.\n\nNote: It rains.\nMood:'
    """

    instruction: str
    text_field: str
    label_field: str
    labels: tuple[str, ...] | None = None
    label_words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        # A task checks its fields and labels by the same rules.
        fields = (self.instruction or "none", self.label_field, self.text_field)
        checked = Task("of the prompt format", *fields, self.labels)
        object.__setattr__(self, "labels", checked.labels)
        if self.label_words is None:
            return
        words = Task("of the prompt format", *fields, self.label_words).labels or ()
        if len(words) != len(self.labels or ()):
            raise InvalidTask(
                f"{len(words)} label_words for {len(self.labels or ())} labels: give one for each"
            )
        object.__setattr__(self, "label_words", words)

    @property
    def words(self) -> tuple[str, ...]:
        """The labels' words, in order; empty if labels are free."""
        return self.label_words or self.labels or ()

    def word(self, label: str) -> str:
        """Return the word for a label.

        Raises:
            InvalidTask: the label is unknown. The message lists the labels, without the unknown one.
        """
        if self.labels is None:
            return on_one_line(label)
        if label not in self.labels:
            raise InvalidTask(f"no such label; the labels are {', '.join(self.labels)}")
        return self.words[self.labels.index(label)]

    def opening(self, demonstrations: Iterable[Demonstration]) -> str:
        """Return the prompt up to the text to be labelled, ending with the colon of its field."""
        shown = [f"{self.question(one.text)} {self.word(one.label)}" for one in demonstrations]
        pieces = [self.instruction] if self.instruction else []
        return "\n\n".join([*pieces, *shown, f"{self.text_field}:"])

    def question(self, text: str) -> str:
        """Return one text, up to where its label is to follow."""
        return f"{self.text_field}: {on_one_line(text)}\n{self.label_field}:"

    def prompt(self, demonstrations: Iterable[Demonstration], text: str | None = None) -> str:
        """Return the whole prompt; without a text, it ends after the demonstrations."""
        opening = self.opening(demonstrations).removesuffix(f"{self.text_field}:")
        return opening.rstrip("\n") if text is None else opening + self.question(text)


def on_one_line(text: str) -> str:
    """Replace every run of white space by one space: a line break could pass for a new field."""
    return " ".join(text.split())


def prompt_format(task: Task) -> PromptFormat:
    """Return the prompt format for a task's demonstrations.

    A built-in task has the wording of Tang et al. (ICLR 2024), Tables 7 and 8. Any other wording is made of
    the task's field names and labels.
    """
    built_in = _BUILT_IN.get(task.name)
    if built_in is not None and built_in.labels == task.labels:
        return built_in
    return PromptFormat(labelling_instruction(task), task.text_field, task.label_field, task.labels)


def labelling_instruction(task: Task) -> str:
    """Return an instruction to label a text, made of the task's public words."""
    asked = f"Give the {task.label_field} of the {task.text_field}."
    return asked if task.labels is None else f"{asked} Answer with one of: {', '.join(task.labels)}."


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
