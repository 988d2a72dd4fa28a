"""A text that may be released, and which of several is: the likest of those without a flaw that fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from dpfewshot.mechanisms.word_histogram import WORD, features
from dpfewshot.runtime.forking import cached_property
from dpfewshot.writing.draft import Draft
from dpfewshot.writing.histogram import Histogram
from dpfewshot.writing.models_words import has_a_models_words, is_a_refusal
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.style import Style

_SENSE: Final = 0.1
"""What a nat of the mean log-probability of a candidate's tokens counts, beside its likeness."""

_MOST_SHARED: Final = 2 / 3
"""The share of its words above which a text says again what another one does, with another greeting, say."""

_CHOICE: Final = re.compile(r"[\w-]+ or [\w-]+")
"""What a description leaves open, and its writer would not: "my knee or hip"."""


@dataclass(eq=False)
class Candidate:
    """A text while it is written.

    Attributes:
        logprobs: of its tokens but the first word, by the model alone.
        failed: whether the model gave no token any probability.
    """

    draft: Draft
    logprobs: list[float] = field(default_factory=list)
    failed: bool = False

    @property
    def tokens(self) -> list[int]:
        """Of the text, with the one that ends it, if there is one: it has one field and no schema."""
        return self.draft.context

    def add(self, token: int, logprob: float) -> None:
        """Take the next token."""
        self.logprobs.append(logprob)
        self.draft.add(token)

    @cached_property
    def text(self) -> str:
        """As it would be released."""
        return self.draft.text()

    def has_a_models_words(self, style: Style) -> bool:
        """Whether it says what only a model says, or its prompt."""
        return style.is_told_in(self.text) or has_a_models_words(self.text)

    def flaws(self, earlier: Sequence[str], style: Style) -> int:
        """A sum that is larger for worse flaws, and odd if it lacks a name."""
        return (
            16 * (is_a_refusal(self.text) or _letters(self.text) in ("", *map(_letters, earlier)))
            + 8 * (self.draft.cut_off or self.has_a_models_words(style))
            + 4 * style.says_little(self.text)
            + 2 * any(_shared(self.text, each) > _MOST_SHARED for each in earlier)
            + style.lacks_name(self.text)
        )

    def likeness(self, histogram: Histogram, tokenize: Callable[[str], Sequence[int]]) -> float:
        """To the records, with the sense that the model sees in it."""
        sense = float(np.mean(self.logprobs)) if self.logprobs else 0.0
        return histogram.likeness(features(self.text, tokenize)) + _SENSE * sense


def best(
    written: Sequence[Candidate],
    histogram: Histogram,
    request: PublicRequest,
    style: Style,
    tokenize: Callable[[str], Sequence[int]],
) -> Candidate:
    """Of those of the fewest flaws, the likest that fits its label; if none does, the likest.

    That a text lacks a name is no flaw beside its label: "Hi Support Team" is a name, too.
    """
    style = replace(style, prompted=(*style.prompted, *_CHOICE.findall(request.topic)))
    flaws = {one: one.flaws(request.earlier, style) for one in written}
    ranked = sorted(written, key=lambda one: (flaws[one], -one.likeness(histogram, tokenize)))
    fits = lru_cache(maxsize=None)(request.fits)
    for one in ranked:
        request.stop.check()
        if flaws[one] // 2 == flaws[ranked[0]] // 2 and fits(one.text):
            return one
    return ranked[0]


def _letters(text: str) -> str:
    """What two texts have in common if they differ in spaces, marks and capital letters alone."""
    return re.sub(r"\W", "", text).lower()


def _shared(one: str, other: str) -> float:
    """Of the distinct words of the text that has fewer, the share that the other one has, too."""
    words, others = (set(WORD.findall(text.lower())) for text in (one, other))
    return len(words & others) / max(1, min(len(words), len(others)))
