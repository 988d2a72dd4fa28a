"""A demonstration while it is written: which released token belongs to which field, and where a field ends.

A schema and the rule against repetition exclude tokens. All of it is a function of released tokens and public
words, so it is post-processing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.text import ending_tokens, whole_text, wordless_tokens
from dpfewshot.backends.token_automaton import TokenAutomaton
from dpfewshot.tasks.layout import BLANK_LINE, TextLayout, on_lines, on_one_line

_SENTENCE_END = re.compile(
    r"""(?:(?<!\b[A-Za-z])(?<!\b[A-Z][a-z])(?<!\bvs)(?<!\bMrs)\.|[!?…])[.!?…]*["'”’)\]]*(?!\S)|[。！？][」』”）]*"""  # noqa: RUF001 - Chinese and Japanese marks
)
"""A full stop after "J", "v", "vs", "Dr" or "Mrs" ends no sentence."""

REFUSALS: Final = (
    *("sorry", "Sorry", "apologize", "apologise", "As an AI"),
    *(f"{cannot} {help_}" for cannot in ("can't", "can\u2019t", "cannot") for help_ in ("assist", "help")),
)
"""What assistants say in place of a text: "I'm sorry, but I can't help with that"."""

_NO_TOKEN = -1
"""Stands between texts, so that no n-gram reaches from one into the other."""

_OPENING, _RECENT = 2, 20
"""No text opens with the first 2 tokens of one of the 20 before it: a model has a favourite opening."""

SupportRule = Callable[[NDArray[np.float32], frozenset[int]], list[int]]
"""A mechanism's `Release.support`: the candidates among the tokens of a row that are not excluded."""


class Draft:
    """The released tokens of one demonstration.

    An end token of the model ends a field, and so does a line break: in a multiline task, only a blank line.
    The names of further fields cost nothing: they are written into the prompts, and never drawn.

    Args:
        further: the tokens between two fields (`LabelPrompts.further`); needed for the context alone.
        earlier: texts of this label that were released before, in order: this one opens otherwise.

    Attributes:
        context: the tokens after the opening in every prompt: those released, and the names of fields.
    """

    def __init__(
        self,
        backend: LogprobBackend,
        layout: TextLayout,
        *,
        further: Sequence[Sequence[int]] = (),
        earlier: Sequence[str] = (),
        released: Iterable[int] = (),
    ) -> None:
        self.context: list[int] = []
        self._backend, self._layout, self._further = backend, layout, further
        self._ends = ending_tokens(backend)
        self._fields: list[list[int]] = [[]]
        size, tokenize = layout.no_repeat_ngram_size, backend.tokenize
        self._example = tokenize(f" {layout.example}") if size and layout.example else []
        self._phrases = _refusals(backend) if size else []
        self._not_first = wordless_tokens(backend) if size and len(layout.fields) == 1 else frozenset()
        begun = [f" {layout.values(text)[0]}"[: 16 * size] for text in earlier if size]  # may be thousands
        self._earlier = list(map(tokenize, begun))
        for token in released:
            self.add(token)

    @property
    def finished(self) -> bool:
        """Whether the last field has ended."""
        return len(self._fields) > len(self._layout.fields)

    @property
    def cut_off(self) -> bool:
        """Whether the field that was begun has no end yet, of a sentence or its own."""
        field = [] if self.finished else self._fields[-1]
        return bool(field) and not _SENTENCE_END.search(self._value(field))

    @property
    def excluded(self) -> frozenset[int]:
        """What ends a blank field, repeats an n-gram, ends a phrase, or opens the text as an earlier one."""
        field, size = self._fields[-1], self._layout.no_repeat_ngram_size
        excluded = set(ending(self._phrases, field))
        if size:
            excluded |= repeating([*self._example, _NO_TOKEN, *field], size)
        if len(self._fields) == 1:
            for length, texts in ((size, self._earlier), (_OPENING, self._earlier[-_RECENT:])):
                if len(field) == length - 1:
                    alike = (one for one in texts if list(one[: length - 1]) == field)
                    excluded.update(*(one[length - 1 : length] for one in alike))
        excluded -= self._ends | {_NO_TOKEN}
        return frozenset(excluded if self._value(field) else excluded | self._ends | self._not_first)

    def support(self, rule: SupportRule, public_logprobs: NDArray[np.float32], left: int) -> list[int]:  # noqa: ARG002 - any text may end where it is cut off
        """The candidates for the next token, from the prompt without records, shape (V,).

        `left` tokens may still come, this one included.
        """
        excluded = frozenset(each for each in self.excluded if each < len(public_logprobs))
        if len(excluded) == len(public_logprobs):  # nothing else is left to say
            excluded = frozenset()
        return rule(public_logprobs, excluded)

    def written_left(self, tokens: int) -> int:  # noqa: ARG002 - any field may end at its first token
        """The most tokens that are written into the prompts beside so many released ones: names of fields."""
        return sum(map(len, self._further[len(self._fields) - 1 :]))

    def add(self, token: int) -> Sequence[int]:
        """Take a released token, and return the tokens that continue the prompts in its place."""
        self._fields[-1].append(token)
        continuing: Sequence[int] = [token]
        if token in self._ends and self._ends_field(token):
            self._fields.append([])
            if not self.finished and self._further:
                continuing = self._further[len(self._fields) - 2]
        self.context += continuing
        return continuing

    def said(self, token: int) -> str:
        """The field that is being written, with this token and without what ends it."""
        return self._value([*self._fields[-1], token])

    def text(self) -> str:
        """The text of the demonstration, without what ends it; fields that were not reached are empty.

        A field that was not finished is cut after its last whole sentence, if it has one.
        """
        written = self._fields[: len(self._layout.fields)]
        values = [self._value(tokens) for tokens in written]
        if not self.finished:
            values[-1] = whole_sentences(values[-1])
        if len(self._layout.fields) == 1:
            return values[0]
        return self._layout.text(dict(zip_longest(self._layout.fields, values, fillvalue="")))

    def _ends_field(self, token: int) -> bool:
        if not self._layout.multiline or token in self._backend.end_token_ids:
            return True
        return BLANK_LINE.search(whole_text(self._backend, self._fields[-1])) is not None

    def _value(self, tokens: Sequence[int]) -> str:
        model_ends = self._backend.end_token_ids
        written = whole_text(self._backend, [token for token in tokens if token not in model_ends])
        if self._layout.multiline:
            return on_lines(BLANK_LINE.split(written, maxsplit=1)[0])
        return on_one_line(written.split("\n", maxsplit=1)[0])  # "?" and the break may be one token


def _refusals(backend: LogprobBackend) -> list[list[int]]:
    forms = [form for each in REFUSALS for form in (each, f" {each}")]
    return backend.known("refusals", lambda: tokenized(forms, backend))


def tokenized(phrases: Iterable[str], backend: LogprobBackend) -> list[list[int]]:
    """The tokens of phrases, without those that have none in the vocabulary."""
    found = map(list, map(backend.tokenize, phrases))
    return [tokens for tokens in found if tokens and max(tokens) < backend.vocabulary_size]


def ending(phrases: Iterable[list[int]], tokens: list[int]) -> list[int]:
    """The tokens that would end a phrase behind these."""
    return [each[-1] for each in phrases if tokens[len(tokens) + 1 - len(each) :] == each[:-1]]


def whole_sentences(text: str) -> str:
    """The text up to its last sentence end; all of it where it has none.

    Example:
        >>> whole_sentences("I lost my card. Please send me a n")
        'I lost my card.'
        >>> whole_sentences("where is my new ca")
        'where is my new ca'
    """
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else text


def repeating(tokens: Sequence[int], size: int) -> frozenset[int]:
    """The tokens that would end an n-gram, n ≥ 2, which the tokens already have.

    Example:
        >>> sorted(repeating([1, 2, 3, 1, 2, 4, 1, 2], 3))
        [3, 4]
    """
    last = list(tokens[len(tokens) - size + 1 :])
    starts = range(len(tokens) - size + 1)
    return frozenset(tokens[at + size - 1] for at in starts if list(tokens[at : at + size - 1]) == last)


class ShapedDraft:
    """The released tokens of one demonstration whose text matches a schema. See `Draft`.

    It ends at an end token, which may come only where the text matches, or where nothing else may follow.

    Attributes:
        context: the tokens after the opening in every prompt: those released, and what the schema forces.
    """

    def __init__(self, automaton: TokenAutomaton, released: Iterable[int] = ()) -> None:
        self.context = list(automaton.opening)
        self._automaton = automaton
        self._released: list[int] = []
        self._state = automaton.start
        self._ended = False
        for token in released:
            self.add(token)

    @property
    def finished(self) -> bool:
        """Whether the text has ended."""
        return self._ended or self._automaton.ends_at(self._state)

    @property
    def cut_off(self) -> bool:
        """Never: the schema lets every text end in time."""
        return False

    def support(self, rule: SupportRule, public_logprobs: NDArray[np.float32], left: int) -> list[int]:
        """The candidates, from the allowed tokens alone: fewer than asked for where fewer are allowed."""
        allowed = self._automaton.allowed(self._state, left)
        return allowed[rule(public_logprobs[allowed], frozenset())].tolist()  # type: ignore[no-any-return]

    def written_left(self, tokens: int) -> int:
        """The most tokens that the schema forces beside so many further released ones."""
        return self._automaton.most_forced(tokens, self._state)

    def add(self, token: int) -> Sequence[int]:
        """Take a released token, and return the tokens that continue the prompts."""
        self._released.append(token)
        self._ended = self._ended or token in self._automaton.ends
        self._state, forced = self._automaton.after(self._state, token)
        self.context += (token, *forced)
        return (token, *forced)

    def text(self) -> str:
        """The text of the demonstration, which matches the schema."""
        return self._automaton.text(self._released)
