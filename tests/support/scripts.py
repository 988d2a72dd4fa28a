"""Scripted language models and data sets that several test files use."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dpfewshot.backends import Scripted
from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.sample_data import SUPPORT_TICKETS
from dpfewshot.tasks import Task
from dpfewshot.values import Record

TASK = Task(
    name="tickets",
    instruction="Write a ticket.",
    label_field="Kind",
    text_field="Ticket",
    labels=("refund", "delivery"),
    no_repeat_ngram_size=0,  # its models repeat themselves
)

TASK_FILE = """
name = "tickets"
instruction = "Write a ticket."
label_field = "Kind"
text_field = "Ticket"
labels = ["refund", "delivery"]
"""

WORDS = (" my", " parcel", " money", " is", " late", " back", " secret", "\n")


SENTENCE = (" my", " parcel", " is", " late", "\n")


class Sentence(Scripted):
    """Says its sentence word by word, with probability `sure`, whatever the records hold."""

    def __init__(self, sentence: Sequence[str] = SENTENCE, sure: float = 0.93) -> None:
        self.sentence = [WORDS.index(word) for word in sentence]
        self.sure = sure
        self.prompts = 0
        super().__init__(WORDS, self.answer)
        self._opening = self.tokenize("Ticket:")

    def answer(self, prompt: list[int]) -> list[float]:
        self.prompts += 1
        words = 0  # how many words stand after the last unknown text, which is the field's name
        while words < len(prompt) and prompt[-1 - words] < len(WORDS):
            words += 1
        rest = (1 - self.sure) / (len(WORDS) - 1)
        probabilities = [rest] * len(WORDS)
        probabilities[self.sentence[min(words, len(self.sentence) - 1)]] = self.sure
        return probabilities


class Hooked(Sentence):
    """Nearly sure of its sentence; calls a hook with the number of each call of private prompts.

    Args:
        hook: what it raises comes in place of the answer.
    """

    def __init__(
        self, hook: Callable[[int], object] = lambda _number: None, sentence: Sequence[str] = SENTENCE
    ) -> None:
        super().__init__(sentence, sure=0.999999)
        self.hook = hook
        self.asked = 0

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        if support is not None:
            self.asked += 1
            self.hook(self.asked)
        return super().next_token_logprobs(prompts, support)


class Desk(Scripted):
    """Knows two words and the labels of the sample tickets, and answers every prompt alike."""

    def __init__(self) -> None:
        words = (" my", " parcel", "\n", *(f" {label}" for label in SUPPORT_TICKETS.labels or ()))
        super().__init__(words, lambda _: [0.6, 0.2, *[0.2 / (len(words) - 2)] * (len(words) - 2)])


def written(folder: Path, records: Sequence[Record] | None = None) -> list[str]:
    """The tickets and their task as files; the options that name them."""
    (folder / "task.toml").write_text(TASK_FILE)
    write_jsonl(tickets() if records is None else records, folder / "records.jsonl")
    return ["--task", str(folder / "task.toml"), "--records", str(folder / "records.jsonl")]


def write_jsonl(records: Iterable[Record], path: Path) -> None:
    """One JSON object a line, with `unit` if the record has one."""
    rows = (
        {"text": one.text, "label": one.label} | ({} if one.unit is None else {"unit": one.unit})
        for one in records
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tickets(count: int = 400) -> list[Record]:
    """Half of them refunds; the texts are unknown words to the scripted model."""
    return [Record(f"ticket number {i}", TASK.labels[i % 2]) for i in range(count)]  # type: ignore[index]
