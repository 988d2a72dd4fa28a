"""PB(instruction, subset, label): a prompt in pieces of token ids (Tang et al., Algorithm 1).

The pieces are tokenised one by one, so that a record's tokens are a function of that record. What all
prompts of a label begin with is public, and a backend evaluates it once: the instruction, and the first
record's label and field names where all records have that label.

    Given a label of answer type, generate ...      |
                                                    | prefix
    Answer Type: Location                           |
    Text: Where is Perth ?          body of a record, after the prefix
                                    |
    Answer Type: Location           | suffix: bodies, the open end, released tokens
    Text: What                      |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from dpfewshot.runtime.redaction import is_failure, may_pass
from dpfewshot.tasks import Task
from dpfewshot.values import Record

Body = list[int] | None
"""A record in tokens, as it follows its opener; None where it cannot be tokenised: it enters no prompt."""


class Tokenizer(Protocol):
    """All that writing a prompt needs of a backend."""

    def tokenize(self, text: str) -> list[int]:
        """Token ids; special tokens in the text are never parsed as special."""
        ...


@dataclass(frozen=True)
class LabelPrompts:
    """The prompts that ask for one label.

    Attributes:
        prefix: public tokens that every prompt begins with.
        opener: public tokens that stand before each record's body; the prefix ends in the first of them.
        between: public tokens after a record.
        opening: the open end: the label asked for, and the text field for the next token to begin.
    """

    prefix: list[int]
    opener: list[int]
    between: list[int]
    opening: list[int]

    @property
    def public_suffix(self) -> list[int]:
        """What follows the prefix in the prompt without records, which ends open like all others."""
        return self.opening[len(self.opener) :]

    def suffix(self, bodies: Iterable[Body], released: list[int]) -> list[int] | None:
        """What follows the prefix in the prompt of one subset; None if none of its records can be written."""
        tokens: list[int] = []
        for body in bodies:
            if body is not None:
                tokens += [*(self.opener if tokens else ()), *body, *self.between]
        return [*tokens, *self.opening, *released] if tokens else None


@dataclass(frozen=True, slots=True, eq=False)
class PromptWriter:
    """Writes the prompts of one task in the tokens of one backend. Nothing of it can be exchanged.

    Args:
        task: whose instruction and fields are used.
        tokenizer: the backend.
        record_token_cap: how many tokens of a record's text (and of its label, where labels are free)
            enter a prompt at most. The rest is cut, each record by itself.
    """

    task: Task
    tokenizer: Tokenizer = field(repr=False)
    record_token_cap: int
    _instruction: tuple[int, ...] = field(init=False, repr=False)
    _between: tuple[int, ...] = field(init=False, repr=False)
    _label_field: tuple[int, ...] = field(init=False, repr=False)
    _text_field: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        texts = {
            "_instruction": self.task.preamble(),
            "_between": "\n\n",
            "_label_field": f"{self.task.label_field}:",
            "_text_field": f"\n{self.task.text_field}:",
        }
        for name, text in texts.items():
            object.__setattr__(self, name, tuple(self.tokenizer.tokenize(text)))

    def for_label(self, label: str) -> LabelPrompts:
        """The prompts that ask for a label."""
        opening = [*self._label_field, *self.tokenizer.tokenize(f" {label}"), *self._text_field]
        # Where labels are free, a record's own label is private: only the field's name is common.
        opener = self._label_field if self.task.labels is None else opening
        return LabelPrompts([*self._instruction, *opener], [*opener], [*self._between], opening)

    def body(self, record: Record) -> Body:
        """One record in tokens, as it follows its opener.

        A record that cannot be tokenised is at fault only where a public text can be.

        Raises:
            BackendError: a retryable one: what makes tokens is gone, which no record did.
        """
        try:
            text = self._capped(record.text)
            if self.task.labels is not None:
                return text
            return [*self._capped(record.label), *self._text_field, *text]
        except BaseException as error:  # whatever it says may quote the record; a null says nothing
            if not is_failure(error) or may_pass(error):
                raise
        self._tokenise_public_text()
        return None

    def _tokenise_public_text(self) -> None:
        try:
            self.tokenizer.tokenize(self.task.preamble())  # as when this writer was made
        except BaseException as error:
            if not is_failure(error) or isinstance(error, BackendNotBatchInvariant):
                raise
            raise BackendError("the backend makes no tokens of a public text", retryable=True) from None

    def longest_suffix(self, label: str, records_per_prompt: int, max_tokens: int) -> int:
        """The most tokens after the prefix in a prompt of N records, from caps alone.

        With N > 1 a subset may hold more than N records.
        """
        prompts = self.for_label(label)
        free = self.record_token_cap + len(self._text_field) if self.task.labels is None else 0
        a_record = len(prompts.opener) + free + self.record_token_cap + len(prompts.between)
        return records_per_prompt * a_record - len(prompts.opener) + len(prompts.opening) + max_tokens

    def _capped(self, text: str) -> list[int]:
        # A newline would end the demonstration early: a record is written on one line.
        line = " " + " ".join(text.split())
        # A huge record need not be tokenised whole: few tokens cover more than 16 characters.
        return self.tokenizer.tokenize(line[: 16 * self.record_token_cap])[: self.record_token_cap]
