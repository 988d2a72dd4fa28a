"""How demonstrations are written where they are used: one prompt that ends where the label is to come.

    {instruction}

    {text_field}: {the text of a demonstration}
    {label_field}: {its label}

    {text_field}: {the text to be labelled}
    {label_field}:

It is the mirror of `tasks`: a `Task` asks for a text of a label, a `PromptFormat` for the label of a text.
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
    r"""The words of a few-shot prompt. All of them are public.

    Args:
        instruction: the sentence before the demonstrations; empty for none.
        text_field: what stands before a text, without the colon.
        label_field: what stands before a label, without the colon.
        labels: every label there is, in order; None where labels are free.
        label_words: how each label is written in the prompt, in the order of `labels`; None where a label
            is written as it is called.

    Raises:
        InvalidTask: a field or label is empty, not on one line or there twice, or there is another number
            of words than of labels.

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
        # A task has the same rules for its fields and labels, and says what is wrong.
        fields = (self.instruction or "none", self.label_field, self.text_field)
        checked = Task("of the prompt format", *fields, self.labels)
        object.__setattr__(self, "labels", checked.labels)
        if self.label_words is None:
            return
        words = Task("of the prompt format", *fields, self.label_words).labels or ()
        if len(words) != len(self.labels or ()):
            raise InvalidTask(f"{len(words)} label_words for {len(self.labels or ())} labels: one each")
        object.__setattr__(self, "label_words", words)

    @property
    def words(self) -> tuple[str, ...]:
        """How the labels are written, in order; empty where they are free."""
        return self.label_words or self.labels or ()

    def word(self, label: str) -> str:
        """How a label is written.

        Raises:
            InvalidTask: it is none of the labels. The message names them, and not the one refused.
        """
        if self.labels is None:
            return on_one_line(label)
        if label not in self.labels:
            raise InvalidTask(f"no such label: the labels are {', '.join(self.labels)}")
        return self.words[self.labels.index(label)]

    def opening(self, demonstrations: Iterable[Demonstration]) -> str:
        """All that stands before the text to be labelled: it ends at the colon of its field."""
        shown = [f"{self.question(one.text)} {self.word(one.label)}" for one in demonstrations]
        pieces = [self.instruction] if self.instruction else []
        return "\n\n".join([*pieces, *shown, f"{self.text_field}:"])

    def question(self, text: str) -> str:
        """One text, up to where its label is to come."""
        return f"{self.text_field}: {on_one_line(text)}\n{self.label_field}:"

    def prompt(self, demonstrations: Iterable[Demonstration], text: str | None = None) -> str:
        """The whole prompt; without a text it ends after the demonstrations."""
        opening = self.opening(demonstrations).removesuffix(f"{self.text_field}:")
        return opening.rstrip("\n") if text is None else opening + self.question(text)


def on_one_line(text: str) -> str:
    """The text with every run of white space as one space: a line of its own would pose as a field."""
    return " ".join(text.split())


def prompt_format(task: Task) -> PromptFormat:
    """The format in which a task's demonstrations are used.

    Args:
        task: a built-in task has the wording of Tang et al. (ICLR 2024), Tables 7 and 8; any other's is made
            of its field names and labels.
    """
    built_in = _BUILT_IN.get(task.name)
    if built_in is not None and built_in.labels == task.labels:
        return built_in
    return PromptFormat(labelling_instruction(task), task.text_field, task.label_field, task.labels)


def labelling_instruction(task: Task) -> str:
    """The sentence that asks for the label of a text, made of the task's public words."""
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
    # Extraction is asked for by the demonstrations alone: the papers give no instruction.
    MIT_G.name: PromptFormat("", "Sentence", "Genre"),
    MIT_D.name: PromptFormat("", "Sentence", "Director"),
}
