"""The model writes candidates side by side, in a style, behind a prompt without records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import NO_PROBABILITY, LogprobBackend, Logprobs, answered, closing_block
from dpfewshot.errors import BackendError
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.mechanisms.word_histogram import ENDS, MOST_HINT
from dpfewshot.tasks.layout import TextLayout
from dpfewshot.writing.candidate import Candidate
from dpfewshot.writing.draft import Draft, ending
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.style import Style
from dpfewshot.writing.vocabulary import Vocabulary

_DECODING: Final = Decoding(temperature=0.7, top_p=0.9)

_TOP_K: Final = 100

_NEAR: Final = 12.0
"""Nats below the likeliest token within which another is ever drawn."""

_QUOTED: Final = "\n>"
"""Opens an answer of a chat model, which does not refuse to write what it quotes."""

_NAME_GAIN, _NAME_NEAR = 1.0, 3.0
"""The nats that names gain where a text shall have one, until it has; and below the likeliest, the most."""


@dataclass(frozen=True)
class ModelWriter:
    """Writes with a backend. `random_source` is for tests alone."""

    vocabulary: Vocabulary
    layout: TextLayout
    random_source: RandomSource | None

    @property
    def _backend(self) -> LogprobBackend:
        return self.vocabulary.backend

    def begun(self, tokens: Sequence[int] = ()) -> Candidate:
        """A candidate that begins with these tokens."""
        return Candidate(Draft(self._backend, self.layout, released=tokens))

    def written(
        self,
        candidates: Sequence[Candidate],
        request: PublicRequest,
        style: Style | None = None,
        *,
        seen: NDArray[np.float64] | None = None,
        quoted: bool = False,
    ) -> list[Candidate]:
        """What the model makes of these beginnings, side by side, in the style of a histogram.

        `seen` takes the sum of the probabilities of each token, and of those at the beginning, shape (2, V).
        `quoted` says whether they are quotations.
        """
        max_tokens, prompts = request.max_tokens, request.prompts
        if style is not None:
            prompts = (request.subject or prompts).hinted(self._hint(style.words))
        opened = self._backend.tokenize(_QUOTED) if quoted else ()
        prefix = [*prompts.prefix, *prompts.public_suffix, *opened]  # which is evaluated once for all
        with closing_block(self._backend, prefix, [()] * len(candidates), max_tokens, public=True) as block:
            writing = candidates
            for length in range(max_tokens):
                places = [
                    place for place, one in enumerate(writing) if not (one.failed or one.draft.finished)
                ]
                if not places:
                    break
                request.stop.check()
                block.keep(places)
                writing = [writing[place] for place in places]
                if length:
                    block.append_each([one.tokens[-1] for one in writing])
                for one, row in zip(writing, answered(block, len(writing), None), strict=True):
                    if seen is not None:
                        shares = np.exp(np.minimum(np.nan_to_num(row, nan=-np.inf), 0))
                        seen[: 1 if length else 2] += shares
                    if len(one.tokens) == length:  # not if it was begun with its first word
                        self._go_on(one, row, style or Style(), max_tokens - length)
        written = [one for one in candidates if not one.failed]
        if not written:
            raise BackendError(NO_PROBABILITY)
        return written

    def _hint(self, words: int | None) -> list[int]:
        """What a prompt says of the length, in tokens; nothing of one that is not known."""
        hint = [] if words is None else self._backend.tokenize(f"\nLength: {words} words")
        most = MOST_HINT - len(_QUOTED)  # which has no more tokens than letters
        return hint if len(hint) <= most else []

    def _go_on(self, one: Candidate, row: Logprobs, style: Style, left: int) -> None:
        """Add a candidate's next token, drawn from the likeliest, or note that there is none."""
        weighed = row.copy()
        gains = style.gains if one.tokens else {**style.gains, **style.habits}
        for word, gain in gains.items():
            if gain < 0 or word not in one.tokens:
                weighed[word] += gain
        weighed[ending(style.unsaid, one.tokens)] = -np.inf
        if not np.isfinite(weighed).any():  # nothing else is left to say
            weighed = row.copy()
        support = one.draft.support(_among, weighed, left)
        if not support:
            one.failed = True
            return
        scores = weighed[support].astype(np.float64)
        names = (self.vocabulary.is_a_name(token, style.prompt) for token in one.tokens[1:])
        if style.named and not any(names):
            scores[self._likely_names(support, scores, style)] += _NAME_GAIN
        place, token = self._drawn(one, support, scores, style)
        one.add(token, float(row[support[place]]))

    def _drawn(
        self, one: Candidate, support: Sequence[int], scores: NDArray[np.float64], style: Style
    ) -> tuple[int, int]:
        """Draw a place in the support, and its token; a mark that is not wanted makes way for the end."""
        while True:
            place = _DECODING.choose(np.exp(scores - scores.max()), self.random_source)
            token = support[place]
            spelled = self.vocabulary.spelled(token)
            ends_sentence, is_markup = spelled.endswith(tuple(ENDS)), self.vocabulary.is_markup(token)
            if not (token in self.vocabulary.ends or ends_sentence or is_markup):
                return place, token
            said = one.draft.said(token)
            goes_on = said.endswith((",", ":")) and not self.layout.multiline  # "Hi,"
            if (len(said.split()) >= style.least and not goes_on) or np.isfinite(scores).sum() == 1:
                is_end = is_markup or (spelled.strip() in ENDS and not style.marks)
                return place, min(self._backend.end_token_ids, default=token) if is_end else token
            if style.has_sentences and ends_sentence and token not in self.vocabulary.ends:
                return place, token
            scores[place] = -np.inf

    def _likely_names(self, support: Sequence[int], scores: NDArray[np.float64], style: Style) -> list[int]:
        """Places of names that are likely, and likelier than in small letters: "Rome", not "Going To"."""
        near: list[int] = np.flatnonzero(scores > scores.max() - _NAME_NEAR).tolist()  # few: a server is slow
        scored = {self.vocabulary.spelled(support[place]): scores[place] for place in near}
        return [
            place
            for place in near
            if self.vocabulary.is_a_name(support[place], style.prompt)
            and scores[place] > scored.get(self.vocabulary.spelled(support[place]).lower(), -np.inf)
        ]


def _among(logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
    """The likeliest tokens that are not excluded, in any order."""
    scores = np.where(np.isfinite(logprobs), logprobs, -np.inf)
    scores[list(excluded)] = -np.inf
    near = np.flatnonzero(scores > scores.max() - _NEAR)
    kept: list[int] = near[np.argsort(-scores[near])[:_TOP_K]].tolist()
    return kept
