"""What the next text shall be like: drawn from a histogram, with fresh coins."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.mechanisms.word_histogram import COMMONEST, FIRST, WORD, has_a_name
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.writing.histogram import Histogram
from dpfewshot.writing.models_words import COURTESIES, FORMALITIES
from dpfewshot.writing.vocabulary import Vocabulary

_LEAST: Final = 0.7
"""The share of the records' length before which no text ends: their lengths are counted in powers of √2."""

_ONE_SENTENCE: Final = 20
"""The words of a text up to which it is one sentence: most longer ones have several."""

_MOST_GAIN: Final = 2.0
"""The nats that the commonest of the records' words gains at each token: with 3 texts read forced."""

_SHORTEST: Final = 3
"""Letters of a word that becomes likelier or less so."""

_FEWEST: Final = 3
"""Words of a text that says something, such as "hi" does not."""

_ITS_WRITER: Final = re.compile(r"\bwrite an? [^.\n]*?\bthat an? ((?:[\w'-]+ ){0,2}?)([\w'-]+) \w+s\b")
"""Who writes a text, as a prompt says it: "write a note that a school nurse leaves"."""


@dataclass(frozen=True)
class Style:
    """What a histogram asks of a text.

    Attributes:
        gains: the nats that words gain or lose.
        habits: those that first words lose.
        words: how many it shall have; None if that is not known.
        marks: whether its sentences end with a mark.
        lower: whether it has no capital letters.
        named: whether it names somebody or something.
        prompted: what it has from its prompt if it says it: the length, the label's field, "the customer" who
            writes it, "knee or hip".
        prompt: the words of its prompt, in lower case, which name nobody, and alone say nothing.
        unsaid: tokens of phrases that it does not have.
    """

    gains: Mapping[int, float] = field(default_factory=dict)
    habits: Mapping[int, float] = field(default_factory=dict)
    words: int | None = None
    marks: bool = True
    lower: bool = False
    named: bool = False
    prompted: tuple[str, ...] = ()
    prompt: frozenset[str] = frozenset()
    unsaid: Sequence[list[int]] = ()

    @property
    def least(self) -> int:
        """The words before which no text ends, nor its sentence if it has one."""
        return int(_LEAST * (self.words or 0))

    @property
    def has_sentences(self) -> bool:
        """Whether it may have several, which end where they like."""
        return (self.words or 0) > _ONE_SENTENCE and not self.lower

    def is_told_in(self, text: str) -> bool:
        """Whether a text repeats its prompt: "a comedy of 16 minutes", "is there a queue for age limits?"."""
        return any(re.search(rf"\b{re.escape(each)}\b", text, re.IGNORECASE) for each in self.prompted)

    def says_little(self, text: str) -> bool:
        """Whether a text is shorter than the records, as far as is known, or has only words of its prompt."""
        is_short = len(text.split()) < min(_FEWEST, self.words or _FEWEST)
        return is_short or set() < set(WORD.findall(text.lower())) <= self.prompt

    def lacks_name(self, text: str) -> bool:
        """Whether a text shall name somebody, and does not."""
        return self.named and not has_a_name(text, self.prompt)


@dataclass(frozen=True)
class Styles:
    """Says what texts from a histogram shall be like.

    Attributes:
        label_field: the label's name in prompts.
        random_source: for tests alone; None is the operating system's generator.
    """

    vocabulary: Vocabulary
    layout: TextLayout
    label_field: str
    random_source: RandomSource | None

    def of(self, histogram: Histogram, max_tokens: int, prompt: Sequence[int] = ()) -> Style:
        """Draw the style of one text of at most so many tokens. `prompt`, in tokens, names nobody."""
        length = self._one_of(histogram.usual_lengths)
        words = None if length is None else min(length, max(1, max_tokens * 3 // 4))
        theirs = {
            self.vocabulary.spelled(word).strip().lower()
            for word in histogram.words.keys() | histogram.firsts.keys()
        }
        field_name = self.label_field if self.label_field.lower() not in theirs else ""
        lower, said_before = histogram.in_lower_case, self.vocabulary.backend.detokenize(prompt).lower()
        style = Style(
            gains=self._gains(histogram),
            habits=histogram.habits,
            words=words,
            marks=histogram.ends_with_marks and not lower,  # which counts those without a mark
            lower=lower,
            named=self._one_of({1: histogram.named}, 1 - histogram.named) is not None,
            prompted=tuple(
                each for each in (field_name, str(words or ""), *_writers(said_before, theirs)) if each
            ),
            prompt=frozenset(WORD.findall(said_before)),
        )
        phrases = self.vocabulary.with_tokens(FORMALITIES + (COURTESIES if style.has_sentences else ()))
        unsaid = [
            tokens
            for each, tokens in (*phrases, *self._of_example(said_before))
            if theirs.isdisjoint(each.lower().split())
        ]
        return replace(style, unsaid=unsaid)

    def beginning(self, histogram: Histogram) -> list[int]:
        """One of the records' first words, by its share, or none: few known ones may all be noise."""
        unknown = math.sqrt(FIRST) - sum(histogram.firsts.values())
        rarest = min(histogram.firsts.values(), default=0.0)
        first = self._one_of(histogram.firsts, max(0.0, min(unknown, rarest)))
        return [] if first is None else [first]

    def _of_example(self, prompt: str) -> list[tuple[str, list[int]]]:
        """What the made-up example alone is about: the words that its prompt has nowhere else, with tokens.

        Common and short words are left out. `prompt` is in small letters.
        """
        words = WORD.findall(self.layout.example)
        elsewhere = Counter(WORD.findall(prompt)) - Counter(word.lower() for word in words)
        subject = {word for word in words if len(word) > _SHORTEST and word.lower() not in elsewhere}
        forms = sorted(form for word in subject for form in {word, word.lower(), word.capitalize()})
        told = self.vocabulary.with_tokens(tuple(forms))
        return [(word, tokens) for word, tokens in told if len(tokens) > 1 or tokens[0] >= COMMONEST]

    def _gains(self, histogram: Histogram) -> dict[int, float]:
        """The nats that tokens of words gain or lose: of those that begin no text, and have some letters."""
        begun = {self.vocabulary.spelled(word).strip().lower() for word in histogram.firsts}
        shares, gains = dict[int, float](), dict[int, float]()
        for word in histogram.words.keys() | histogram.log_ratios.keys():
            spelled = self.vocabulary.spelled(word).strip()
            if spelled.lower() in begun or len(spelled) < _SHORTEST:
                continue
            if word in histogram.words:
                shares[word] = histogram.words[word]
            else:
                gains[word] = histogram.log_ratios[word]
        largest = max(shares.values(), default=1.0)
        return gains | {word: _MOST_GAIN * math.sqrt(share / largest) for word, share in shares.items()}

    def _one_of(self, shares: Mapping[int, float], unknown: float = 0.0) -> int | None:
        """One of these, drawn by its share; None of none, or for the share of unknown ones."""
        if not shares:
            return None
        place = Decoding(temperature=1.0).choose(np.array([*shares.values(), unknown]), self.random_source)
        return [*shares, None][place]


def _writers(prompt: str, theirs: set[str]) -> list[str]:
    """What a model calls whoever the prompt says writes the text: nobody else does, unless the records do."""
    found = _ITS_WRITER.search(prompt)
    if found is None or found[2] in theirs:
        return []
    return [f"{article} {found[1]}{found[2]}" for article in ("a", "an", "the")]
