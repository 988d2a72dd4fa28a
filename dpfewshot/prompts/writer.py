"""PB(instruction, subset, label): a prompt in pieces of token ids (Tang et al., Algorithm 1).

The pieces are tokenised separately, so that a record's tokens are a function of that record. All prompts of
a label begin with the same public prefix, which a backend evaluates once: the instruction, and the first
record's label and field names if all records have that label.

    Given a label of answer type, generate ...      |
                                                    | prefix
    Answer Type: Location                           |
    Text: Where is Perth ?          body of a record, after the prefix
                                    |
    Answer Type: Location           | suffix: bodies, the opening, released tokens
    Text: What                      |

If a text has several fields, the names of the further ones stand within a body, and between released tokens.

With `Task(chat=True)` the instruction and each label are a turn of the user, and each text an answer of the
model: `between` and the text field's name then hold the turns of the model's template (`prompts/chat.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.text import first_tokens
from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from dpfewshot.prompts.chat import chat_turns
from dpfewshot.runtime.redaction import is_failure, none_if_it_fails
from dpfewshot.tasks import Task
from dpfewshot.tasks.layout import on_one_line
from dpfewshot.values import Record

Result = TypeVar("Result")

Body = list[int] | None
"""A record's tokens after its opener; None if it cannot be tokenised and enters no prompt."""


def none_if_unusable(work: Callable[[], Result], *, public: Callable[[], object]) -> Result | None:
    """What a tokenizer makes of one record; None if it fails on it but still does `public` work.

    Where the tokenizer is unavailable, through no fault of a record, a retryable `BackendError` says so.
    """
    if (made := none_if_it_fails(work, for_good=True)) is not None:
        return made
    try:
        public()
    except BaseException as error:
        if not is_failure(error) or isinstance(error, BackendNotBatchInvariant):
            raise
        raise BackendError("the backend cannot tokenise a public text", retryable=True) from None
    return None


@dataclass(frozen=True)
class LabelPrompts:
    """The pieces of the prompts for one label.

    Attributes:
        prefix: public tokens that every prompt begins with; it ends with the first record's opener.
        opener: public tokens before each record's body.
        between: public tokens after a record.
        opening: public tokens of the demonstration to be written: its label and its text field's name.
        further: public tokens between two fields of a text: what ends the one, and the name of the other.
        text_field: the public tokens that end the opening: the text field's name.
    """

    prefix: list[int]
    opener: list[int]
    between: list[int]
    opening: list[int]
    further: tuple[tuple[int, ...], ...] = ()
    text_field: tuple[int, ...] = ()

    def hinted(self, hint: Sequence[int]) -> LabelPrompts:
        """The pieces of a prompt without records, with public tokens between the label and the text."""
        named = len(self.text_field)
        opener = self.opening[: len(self.opening) - named]
        return replace(
            self,
            prefix=self.prefix[: len(self.prefix) - len(self.opener)] + opener,
            opener=opener,
            opening=[*opener, *hint, *self.text_field],
        )

    @property
    def public_suffix(self) -> list[int]:
        """The tokens after the prefix in the public prompt, which has no records."""
        return self.opening[len(self.opener) :]

    @property
    def public(self) -> tuple[int, ...]:
        """The public prompt, what follows a record, and the names of further fields."""
        names = (token for name in self.further for token in name)
        return (*self.prefix, *self.public_suffix, *self.between, *names)

    def suffix(self, bodies: Iterable[Body], released: list[int]) -> list[int] | None:
        """Return one subset's tokens after the prefix; None if none of its records can be tokenised."""
        tokens: list[int] = []
        for body in bodies:
            if body is not None:
                tokens += [*(self.opener if tokens else ()), *body, *self.between]
        return [*tokens, *self.opening, *released] if tokens else None


@dataclass(frozen=True, slots=True, eq=False)
class PromptWriter:
    """Writes the prompts of one task in the tokens of one backend. Immutable.

    Args:
        backend: for a task with `chat=True` it must give a template that can be used.
        record_token_cap: the most tokens of a record's text, and of its label if labels are free, in a
            prompt. The rest is dropped, record by record, and no character is cut.
    """

    task: Task
    backend: LogprobBackend = field(repr=False)
    record_token_cap: int
    _unnamed: LabelPrompts = field(init=False, repr=False)
    """The pieces before a label's name stands in them: the prefix is the instruction alone."""

    def __post_init__(self) -> None:
        layout, tokens = self.task.layout, self.backend.tokenize
        first, *others = layout.fields
        instruction, between, text_field = tokens(self.task.preamble()), tokens("\n\n"), tokens(f"\n{first}:")
        if self.task.chat:
            turns = chat_turns(self.backend)
            instruction, between = [*turns.head, *instruction], [*turns.following]
            text_field = [*turns.answer, *tokens(f"{first}:")]
        label_field = tokens(f"{self.task.label_field}:")
        further = tuple(tuple(tokens(f"{layout.separator}{name}:")) for name in others)
        unnamed = LabelPrompts(instruction, label_field, between, label_field, further, tuple(text_field))
        object.__setattr__(self, "_unnamed", unnamed)

    def for_label(self, label: str, number: int | None = None) -> LabelPrompts:
        """Return the pieces of the prompts for a label, or for a text of one subject (`Task.described`)."""
        named = self.backend.tokenize(f" {self.task.described(label, number)}")
        bare = self._unnamed
        opening = [*bare.opening, *named, *bare.text_field]
        # If labels are free, a record's label is private: records share only the field's name.
        opener = bare.opener if self.task.labels is None else opening
        prefix = [*bare.prefix, *opener]
        return replace(bare, prefix=prefix, opener=[*opener], between=[*bare.between], opening=opening)

    def body(self, record: Record) -> Body:
        """One record's tokens after its opener; None if it cannot be tokenised."""
        return none_if_unusable(partial(self._body, record), public=self._works)

    def text(self, record: Record) -> Body:
        """The tokens of one record's text, without its label; None if it cannot be tokenised."""
        return none_if_unusable(partial(self._text, record.text), public=self._works)

    def _works(self) -> str:
        return self.backend.detokenize(self.backend.tokenize(self.task.preamble()))

    def _body(self, record: Record) -> list[int]:
        text = self._text(record.text)
        if self.task.labels is not None:
            return text
        label = self._value(on_one_line(record.label))
        return [*first_tokens(self.backend, label, self.record_token_cap), *self._unnamed.text_field, *text]

    def longest_suffix(self, label: str, records_per_prompt: int, max_tokens: int) -> int:
        """Return the most tokens after the prefix in a prompt of N records, computed from caps alone.

        With N > 1, a subset may hold more than N records.
        """
        prompts = self.for_label(label)
        free = self.record_token_cap + len(prompts.text_field) if self.task.labels is None else 0
        further = sum(map(len, prompts.further))
        a_record = len(prompts.opener) + free + self.record_token_cap + further + len(prompts.between)
        generated = len(prompts.opening) + max_tokens + further
        return records_per_prompt * a_record - len(prompts.opener) + generated

    def _text(self, text: str) -> list[int]:
        values = [*map(self._value, self.task.layout.values(text))]
        tokens: list[int] = []
        lengths = _fair_lengths([*map(len, values)], self.record_token_cap)
        for name, value, length in zip(((), *self._unnamed.further), values, lengths, strict=True):
            tokens += [*name, *first_tokens(self.backend, value, length)]
        return tokens

    def _value(self, value: str) -> list[int]:
        # A huge value is not tokenised whole: few tokens cover more than 16 characters.
        return self.backend.tokenize(f" {value}"[: 16 * self.record_token_cap])


def _fair_lengths(lengths: Sequence[int], cap: int) -> list[int]:
    """Lengths that add up to the cap at most: the longest values are shortened, all to the same length."""
    allowed = list(lengths)
    left = cap
    for done, place in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        allowed[place] = min(lengths[place], left // (len(lengths) - done))
        left -= allowed[place]
    return allowed
