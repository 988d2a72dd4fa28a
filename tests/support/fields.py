"""A task of two text fields, a byte-level tokenizer, and a model that writes given fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import dpfewshot as dpf
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens

TASK = dpf.Task(
    name="mails",
    instruction="Write a mail.",
    label_field="Kind",
    labels=("refund", "delivery"),
    text_fields=("Subject", "Body"),
)
COLUMNS = {"Subject": "mail.subject", "Body": "mail.text"}
TOML = """
name = "mails"
instruction = "Write a mail."
label_field = "Kind"
text_fields = ["Subject", "Body"]
labels = ["refund", "delivery"]
multiline = true
"""


class Bytes(LogprobBackend):
    """One token a byte, as byte-level tokenizers fall back to: any text has tokens, any tokens a text."""

    vocabulary_size = 256
    end_token_ids: frozenset[int] = frozenset({0})
    batch_invariant = True

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenize(self, tokens: Tokens) -> str:
        return bytes(tokens).decode(errors="replace")

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        columns = self.vocabulary_size if support is None else len(support)
        return np.full((len(prompts), columns), -np.log(256), dtype=np.float32)


class Writer(Bytes):
    """Writes each field's value, whatever the records hold, and counts the prompts.

    Args:
        values: by the name of a field, each with what ends it.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = {f"{name}:": value for name, value in values.items()}
        self.prompts = 0

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        self.prompts += len(prompts)
        answers = np.full((len(prompts), self.vocabulary_size), np.log(1e-4), dtype=np.float32)
        for answer, prompt in zip(answers, prompts, strict=True):
            answer[self._next(self.detokenize(prompt))] = np.log(0.97)
        return answers if support is None else answers[:, support]

    def _next(self, text: str) -> int:
        name = max(self.values, key=text.rfind)
        written = text[text.rfind(name) + len(name) :]
        value = self.values[name]
        return ord(value[min(len(written.lstrip("\n")), len(value) - 1)])


def rows(count: int = 400) -> list[dict[str, object]]:
    """Mails with a subject and a body of several lines, below a member of their own."""
    return [
        {
            "mail": {"subject": f"Order {i}", "text": f"Hello,\n\nwhere is order {i}?\nBody: no\n\nBye"},
            "label": ("refund", "delivery")[i % 2],
        }
        for i in range(count)
    ]


def records(count: int = 400) -> list[dpf.Record]:
    """The mails, read by the paths of their fields."""
    return dpf.as_records(rows(count), text=COLUMNS)


def backend() -> Writer:
    """A writer, for the command line."""
    return Writer({"Subject": " Late\n\n", "Body": " Hello,\nwhere?\n\n"})
