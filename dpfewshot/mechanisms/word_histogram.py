r"""A noisy histogram of the records' words. A model then writes from it alone, and reads no record.

Each unit gives one record. Its row has the coordinates below, non-negative integers, with an L2 norm of at
most one grid step times the grid, 1:

    coordinate                                  squared weight
    each of its k distinct words that the       0.38 / k    (0.46 / k without unexpected ones)
      model expects
    each of its u other distinct words          0.08 / u    (0.46 / u without expected ones)
    its first word                              0.35
    its length in words, in powers of √2        0.08
    its last character: one of .?! or another,  0.08
      and then whether all letters are small
    whether a capital letter begins a word      0.03
      that no sentence begins with: a name

What the model expects is what its own texts make likely, of which none has read a record.

The sum of all rows plus N(0, (Δσ)² I) is released once for a label (docs/proofs/word-histogram.md). What
follows is post-processing: any number of texts, by any model.

Private keyphrases in a model's prompt: Nagesh, Chen, Mishra, Wagner 2025. A noisy mean of features that texts
are compared with: DP-MERF (Harder, Adamczewski, Park 2021).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from operator import index
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.accounting.events import Event
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Mechanism, Predictions
from dpfewshot.mechanisms.gaussian import gaussian_event, noise_scale

GRID: Final[int] = _core.grid
"""Steps of the grid that are 1."""

WORDS, FIRST, LENGTH, END, NAME = (Fraction(share, 100) for share in (46, 35, 8, 8, 3))
"""Squared weights of the parts of a row: they sum to 1."""

UNEXPECTED: Final = Fraction(8, 100)
"""Of the words' squared weight, what unexpected words have beside expected ones."""

LENGTHS: Final = 16
"""Lengths that are told apart: 1, √2, 2, ... words."""

ENDS: Final = ".?!"

ENDINGS: Final = len(ENDS) + 2
"""Of a text: one of the `ENDS`; another; another, in a text of letters without capital ones."""

COMMONEST: Final = 1000
"""The first tokens of a vocabulary are those of the commonest words: they say nothing of a subject."""

COMMON: Final = 30_000
"""The first tokens of a vocabulary among which a word is looked for that texts commonly begin with."""

EXPECTED, EXPECTED_FIRST, LIKELY_FIRST = 100, 20, 400
"""The most words and first words that are expected, and the most others among which common ones are known."""

EXPECTING: Final = 4
"""Texts without records in which a model shows what it expects: 12 find 4 to 8 % more of their words."""

_LOOKED_AT: Final = 5_000
"""Of a model's likeliest tokens, those of which it is asked whether they are words."""

CANDIDATES: Final = 12
"""Candidates that a model writes for one text."""

MOST_HINT: Final = 12
"""The most tokens by which a prompt names a length, and opens a quotation."""

WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")

_WITHIN: Final = re.compile(r"(?<=[^\s.?!:]\s)[\"'(]*([^\W\d_]{2,})")
"""A word that begins no sentence; not "I"."""


class Features(NamedTuple):
    """What is counted of one text.

    Attributes:
        words: token ids of its distinct words, in lower case if they are one token so; of those that are one.
        first: the token id of its first word, as it is written; None if that is not one token.
        length: which of the `LENGTHS` it has.
        end: the place of its last character in `ENDS`; 3 for another, or 4 in letters without capital ones.
        named: whether it `has_a_name`.
    """

    words: frozenset[int]
    first: int | None
    length: int
    end: int
    named: bool = False


def features(text: str, tokenize: Callable[[str], Sequence[int]]) -> Features:
    """What is counted of a text."""
    words = WORD.findall(text)
    ids = {each for word in set(words) if (each := _token_of(word, tokenize))}
    number, end = max(1, len(text.split())), ENDS.find(text.rstrip()[-1:] or " ")
    return Features(
        words=frozenset(each for each in ids if each >= COMMONEST),
        first=_only_token(words[0], tokenize) if words and text.lstrip().startswith(words[0]) else None,
        length=min(LENGTHS - 1, round(2 * math.log2(number))),
        end=len(ENDS) + (text.lower() == text != text.upper()) if end < 0 else end,
        named=has_a_name(text),
    )


def has_a_name(text: str, besides: Collection[str] = ()) -> bool:
    """Whether a word that no sentence begins with has a capital letter, as a name has; but for `besides`."""
    return any(word[0].isupper() and word.lower() not in besides for word in _WITHIN.findall(text))


def _token_of(word: str, tokenize: Callable[[str], Sequence[int]]) -> int | None:
    """The token by which a word is counted: in lower case, or as it is written if that is none ("Iraq")."""
    return _only_token(word.lower(), tokenize) or _only_token(word, tokenize)


def _only_token(word: str, tokenize: Callable[[str], Sequence[int]]) -> int | None:
    tokens = tokenize(f" {word}")
    return index(tokens[0]) if len(tokens) == 1 else None  # a fraction raises here, for its text alone


class Expected(NamedTuple):
    """Words that the model's own texts make likely. Public: found before any record is read.

    Attributes:
        words: how often a text has each, by token id as in `Features.words`.
        firsts: the probability that a text begins with each, by token id, the likeliest first.
    """

    words: Mapping[int, float] = MappingProxyType({})
    firsts: Mapping[int, float] = MappingProxyType({})

    @classmethod
    def of(cls, words: NDArray[np.float64], firsts: NDArray[np.float64], backend: LogprobBackend) -> Expected:
        """The likeliest words, by how often a text of the model has each token, shapes (V,)."""
        likely = _likeliest_words(firsts, backend, subject=False)
        likeliest = islice(_likeliest_words(words, backend, subject=True), EXPECTED)
        begun = [
            *islice(likely, EXPECTED_FIRST),
            *(word for word in islice(likely, LIKELY_FIRST) if word < COMMON),
        ]
        return cls(
            {word: float(words[word]) for word in likeliest}, {word: float(firsts[word]) for word in begun}
        )

    def shares(self) -> dict[int, float]:
        """What `Histogram.words` would have if the records were the model's own texts."""
        each = math.sqrt((WORDS - UNEXPECTED) / max(1.0, sum(self.words.values())))
        return {word: each * number for word, number in self.words.items()}


def _likeliest_words(counts: NDArray[np.float64], backend: LogprobBackend, *, subject: bool) -> Iterator[int]:
    """The tokens that are words, the likeliest first."""
    for token in map(int, np.argsort(-counts, kind="stable")[:_LOOKED_AT]):
        if counts[token] > 0 and is_word(token, backend, subject=subject):
            yield token


def is_word(token: int, backend: LogprobBackend, *, subject: bool, lower: bool = False) -> bool:
    """Whether a word may be counted by this token; with `subject`, as a word that tells of a subject."""
    word = backend.detokenize([token]).strip()
    if token in backend.end_token_ids or (subject and token < COMMONEST):
        return False
    if lower and word != word.lower():
        return False
    token_of = _token_of if subject else _only_token
    return WORD.fullmatch(word) is not None and token_of(word, backend.tokenize) == token


@dataclass(frozen=True)
class WordHistogram(Mechanism):
    """Counts the words of all records once, with noise; a model writes any number of texts from the counts.

    Its tasks have one field and no schema; where labels are free, one count serves all of them. No prompt
    has a record, but the backend is trusted all the same: its tokenizer reads each one.
    """

    name: ClassVar[str] = "word-histogram"
    top_k: ClassVar[int | None] = None  # it has no candidates
    draws_once: ClassVar[bool] = True
    refused_settings: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys(("top_k", "clip", "temperature", "top_p"), "no token is drawn from predictions")
    )

    def planned(self, draws: Draws) -> Draws:
        """One draw with one release, however many texts follow."""
        return replace(draws, steps=1, tokens_per_draw=1)

    def event(self, draws: Draws, noise_multiplier: float) -> Event:
        """One Gaussian release on each draw."""
        return gaussian_event(draws, noise_multiplier)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """The standard deviation on the share of units whose text begins with a given word."""
        return noise_multiplier * math.sqrt(draws.row_change.rows / FIRST) / draws.prompts

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> HistogramRelease:
        """See `Mechanism.start`."""
        return HistogramRelease(None, noise_multiplier, random_source, draws)


@dataclass
class HistogramRelease(BaseRelease):
    """Sums rows and adds noise, in integers."""

    draws: Draws

    def noisy_sum(self, total: NDArray[np.int64], permit: Permit) -> tuple[NDArray[np.int64], int, int]:
        """Release the noisy sum of the rows of one draw; with the noise's scale, and M.

        `total` is private, the `row_sum` of the draw. The permit loses one token before any noise is drawn.
        """
        permit.use(self.noise_multiplier)
        if not self.noise_multiplier:
            return total, 0, self.draws.prompts
        scale = noise_scale(self.noise_multiplier, self.draws.row_change.rows, GRID)
        noise = _core.rounded_normals(scale, len(total), self.random_source)
        return total + noise, scale, self.draws.prompts

    def choose(self, predictions: Predictions) -> int:  # noqa: ARG002 - nothing is chosen
        """Refuse: no token is chosen from predictions."""
        raise InvalidPlan(f"the mechanism {WordHistogram.name} reads no predictions")


def row_sum(found: Iterable[Features], vocabulary_size: int, expected: Expected) -> NDArray[np.int64]:
    """The sum of the texts' rows, in grid steps, shape (2V + 22,), in the order of the table above."""
    first = vocabulary_size
    length = 2 * vocabulary_size
    total = np.zeros(length + LENGTHS + ENDINGS + 1, dtype=np.int64)
    for each in found:
        words = {word for word in each.words if 0 <= word < vocabulary_size}  # no error tells of a record
        known = words & expected.words.keys()
        for some, weight, alone in (
            (known, WORDS - UNEXPECTED, words <= known),
            (words - known, UNEXPECTED, not known),
        ):
            if some:
                total[list(some)] += _steps((WORDS if alone else weight) / len(some))
        if each.first is not None and 0 <= each.first < vocabulary_size:
            total[first + each.first] += _steps(FIRST)
        total[length + each.length] += _steps(LENGTH)
        total[length + LENGTHS + each.end] += _steps(END)
        total[-1] += each.named * _steps(NAME)
    return total


def _steps(squared: Fraction) -> int:
    """The largest number of grid steps whose square is at most this share of the squared grid."""
    return math.isqrt(math.floor(squared * GRID**2))
