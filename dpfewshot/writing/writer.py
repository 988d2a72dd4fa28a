"""Texts from a noisy histogram of the records' words: of several that a model writes, the likest.

1. A candidate begins with one of the records' first words, or freely, and its prompt says how long it shall
   be: both are drawn by their noisy shares, as is whether it shall have a name. It ends not much sooner, and
   if it is short it is one sentence. It ends without a mark if most records do, and has no capital letters
   if most records have none (`style.py`).
2. The model writes on. At each token the records' words that the text lacks become likelier, the more so the
   larger their noisy shares, and names until it has one; those that the model alone would write, less so
   (`model_writer.py`). If most of that is no text, it writes as many again as quotations. Or a text writer
   writes, which is told the same in words (`brief.py`).
3. The candidate that is most like the histogram is released, of those that end, say nothing that only a
   model writes, share few words with earlier texts, have this label in the model's own view, and name
   somebody if they shall, if there are any. What the model gives its tokens counts, too. Of a text writer's,
   it is the first one without a flaw that has this label (`candidate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from dpfewshot.backends.chat_writer import TextWriter
from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.errors import BackendError
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.word_histogram import CANDIDATES, EXPECTING, FIRST, Expected, features
from dpfewshot.runtime.forking import cached_property
from dpfewshot.tasks import Task
from dpfewshot.writing.brief import ASKED, Brief
from dpfewshot.writing.candidate import Candidate, best
from dpfewshot.writing.draft import tokenized
from dpfewshot.writing.histogram import Histogram
from dpfewshot.writing.model_writer import ModelWriter
from dpfewshot.writing.request import PublicRequest
from dpfewshot.writing.style import Style, Styles
from dpfewshot.writing.vocabulary import Vocabulary

_PREVIEWED: Final = 3
"""Candidates of a text without records: somebody waits for it, and gets it for nothing."""

_FORESEEN, _FORESEEN_TOKENS = 18, 1000
"""Texts without records that a text writer is asked for, to know which words to expect, and their tokens.

More take a server without a GPU longer than `ChatWriter` waits.
"""


@dataclass(frozen=True)
class HistogramWriter:
    """Writes texts of one task with one model.

    Attributes:
        text_writer: writes the candidates in the model's place; None: the model does.
        random_source: for tests alone; None is the operating system's generator.
    """

    backend: LogprobBackend
    task: Task
    text_writer: TextWriter | None = field(default=None, repr=False)
    random_source: RandomSource | None = field(default=None, repr=False)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens, as words."""
        return Vocabulary(self.backend)

    @cached_property
    def styles(self) -> Styles:
        """Says what a text shall be like."""
        return Styles(self.vocabulary, self.task.layout, self.task.label_field, self.random_source)

    @cached_property
    def model(self) -> ModelWriter:
        """The model as a writer."""
        return ModelWriter(self.vocabulary, self.task.layout, self.random_source)

    def text(self, histogram: Histogram, request: PublicRequest, candidates: int = CANDIDATES) -> list[int]:
        """The tokens of the best of some candidates, with the one that ends it if there is one."""
        if self.text_writer is not None:  # it puts the likest first by itself, so its order counts
            style = self._style_for_writer(histogram, request)
            written, compared = self._commissioned(self.text_writer, histogram, style, request), Histogram()
        else:
            style = self._style(histogram, request)
            written, compared = self._written(histogram, candidates, request, style), histogram
        chosen = best(written, compared, request, style, self.backend.tokenize)
        return self._in_lower_case(chosen, request.max_tokens) if style.lower else chosen.tokens

    def without_records(self, request: PublicRequest) -> list[int]:
        """The tokens of a text from a histogram that tells nothing, chosen from fewer candidates."""
        return self.text(Histogram(), request, _PREVIEWED)

    def known_words(self, kept: Mapping[str, object]) -> list[str]:
        """The words of the records that a kept histogram has, the commonest first."""
        return [*self.vocabulary.commonest_first(Histogram.from_dict(kept).spelled(self.backend).words)]

    def expected(self, request: PublicRequest) -> Expected:
        """The words of texts without records: all that the model might write, and those of a text writer."""
        for quoted in (False, True):
            seen = np.zeros((2, self.backend.vocabulary_size))
            begun = [self.model.begun() for _ in range(EXPECTING)]
            written = self.model.written(begun, request, seen=seen, quoted=quoted)
            if not self._speaks_itself(written, self._style(Histogram(), request)):
                break
        seen /= EXPECTING
        if self.text_writer is not None:
            asked = min(_FORESEEN, max(ASKED, _FORESEEN_TOKENS // request.max_tokens))
            nothing = Histogram()
            style = self._style_for_writer(nothing, request)
            written = self._commissioned(self.text_writer, nothing, style, request, asked)
            for one in written:
                request.stop.check()
                found = features(one.text, self.backend.tokenize)
                for place, words in enumerate((found.words, {found.first})):
                    seen[place][[each for each in words if each in range(seen.shape[1])]] += 1 / len(written)
        return Expected.of(seen[0], seen[1], self.backend)

    def _style(self, histogram: Histogram, request: PublicRequest) -> Style:
        return self.styles.of(histogram, request.max_tokens, request.prompts.prefix)

    def _written(
        self, histogram: Histogram, candidates: int, request: PublicRequest, style: Style
    ) -> list[Candidate]:
        """What the model writes, and as many quotations if most of that is no text."""
        written: list[Candidate] = []
        for quoted in (False, True):
            begun = [self.model.begun(self.styles.beginning(histogram)) for _ in range(candidates)]
            written += self.model.written(begun, request, style, quoted=quoted)
            if not self._speaks_itself(written, style):
                break
        return written

    def _speaks_itself(self, written: Sequence[Candidate], style: Style) -> bool:
        """Whether a chat model refuses, or speaks about a text, where most of these lines should be one."""
        own = [one.has_a_models_words(style) for one in written]
        return self.task.chat and not self.task.multiline and 2 * sum(own) > len(own)

    def _style_for_writer(self, histogram: Histogram, request: PublicRequest) -> Style:
        return replace(self.styles.of(histogram, request.max_tokens), named=False)  # it names as it likes

    def _commissioned(
        self,
        writer: TextWriter,
        histogram: Histogram,
        style: Style,
        request: PublicRequest,
        asked: int = ASKED,
    ) -> list[Candidate]:
        """What a text writer writes, in its order."""
        firsts = self.vocabulary.commonest_first(histogram.firsts)
        brief = Brief(
            preamble=self.task.preamble(),
            topic=f"{self.task.label_field}: {request.topic}",
            words=style.words,
            most_words=max(1, request.max_tokens * 2 // 3),  # names have several tokens each
            firsts={word: min(1.0, share / math.sqrt(FIRST)) for word, share in firsts.items()},
            known=[*self.vocabulary.commonest_first(histogram.words)],
            marks=style.marks,
            lower=style.lower,
            earlier=request.earlier,
            multiline=self.task.layout.multiline,
            asked=asked,
        )
        texts = [f" {one}"[: 16 * request.max_tokens] for one in brief.texts(writer, request.stop)]
        ends = sorted(self.backend.end_token_ids)[:1] or self.backend.tokenize(self.task.layout.separator)
        written = [
            self.model.begun([*tokens, *ends][: request.max_tokens])
            for tokens in tokenized(texts[: max(asked, CANDIDATES)], self.backend)
        ]
        if kept := [one for one in written if one.text]:
            return kept
        raise BackendError("the model has no tokens for what the text writer writes")

    def _in_lower_case(self, one: Candidate, max_tokens: int) -> list[int]:
        """A candidate's tokens, without capital letters if it has an end and they can be spelled so."""
        *said, end = one.tokens
        text = self.backend.detokenize(said).lower()
        small = self.backend.tokenize(text)
        spelled = len(small) < max_tokens and self.backend.detokenize(small) == text
        return [*small, end] if one.draft.finished and spelled else one.tokens
