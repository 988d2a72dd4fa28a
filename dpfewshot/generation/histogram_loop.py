"""Texts from a noisy histogram of the records' words: of several that the model writes, the likest.

First the model, and a text writer if there is one, write texts without any record: their words are expected.
Then one draw of records is charged and counted for all texts of a label. Everything else reads public
numbers:

1. A candidate begins with one of the records' first words, or freely, and its prompt says how long it shall
   be: both are drawn by their noisy shares, as is whether it shall have a name. It ends not much sooner, and
   if it is short it is one sentence. It ends without a mark if most records do, and has no capital letters
   if most records have none.
2. The model writes on, without any record. At each token the records' words that the text lacks become
   likelier, the more so the larger their noisy shares, and names until it has one; those that the model alone
   would write, less so.
   Or a text writer does, which is told the same in words.
3. The candidate that is most like the histogram is released, of those that end, say nothing that only a
   model writes, share few words with earlier texts, have this label in the model's own view, and name
   somebody if they shall, if there are any. What the model gives its tokens counts, too. Of a text writer's,
   it is the first one without a flaw that has this label.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.chat_writer import TextWriter
from dpfewshot.backends.protocol import Logprobs, closing_block
from dpfewshot.errors import BackendError
from dpfewshot.exact import RandomSource
from dpfewshot.generation.brief import ASKED, Brief
from dpfewshot.generation.draft import Draft, ShapedDraft, ending, tokenized
from dpfewshot.generation.models_words import COURTESIES, FORMALITIES, has_a_models_words
from dpfewshot.generation.token_loop import NO_PROBABILITY, PublicRequest, TextRequest, TokenLoop, answered
from dpfewshot.mechanisms.decoding import Decoding
from dpfewshot.mechanisms.word_histogram import (
    CANDIDATES,
    COMMONEST,
    ENDS,
    EXPECTING,
    FIRST,
    MOST_HINT,
    WORD,
    Expected,
    Features,
    Histogram,
    HistogramRelease,
    features,
    has_a_name,
    of_noisy_sum,
    row_sum,
)
from dpfewshot.prompts.writer import none_if_unusable
from dpfewshot.runtime.forking import cached_property

_DECODING: Final = Decoding(temperature=0.7, top_p=0.9)

_TOP_K: Final = 100

_NEAR: Final = 12.0
"""Nats below the likeliest token within which another is ever drawn."""

_SENSE: Final = 0.1
"""What a nat of the mean log-probability of a candidate's tokens counts, beside its likeness."""

_MOST_SHARED: Final = 2 / 3
"""The share of its words above which a text says again what another one does, with another greeting, say."""

_LEAST: Final = 0.7
"""The share of the records' length before which no text ends: their lengths are counted in powers of √2."""

_ONE_SENTENCE: Final = 20
"""The words of a text up to which it is one sentence: most longer ones have several."""

_MOST_GAIN: Final = 2.0
"""The nats that the commonest of the records' words gains at each token: with 3 texts read forced."""

_NAME_GAIN, _NAME_NEAR = 1.0, 3.0
"""The nats that names gain where a text shall have one, until it has; and below the likeliest, the most."""

_TAG: Final = re.compile(r"<.+>|\[[A-Z_]+\]")
"""How special tokens are spelled."""

_CHOICE: Final = re.compile(r"[\w-]+ or [\w-]+")
"""What a description leaves open, and its writer would not: "my knee or hip"."""

_SHORTEST: Final = 3
"""Letters of a word that becomes likelier or less so."""

_FEWEST: Final = 3
"""Words of a text that says something, such as "hi" does not."""

_PREVIEWED: Final = 3
"""Candidates of a text without records: somebody waits for it, and gets it for nothing."""

_FORESEEN, _FORESEEN_TOKENS = 18, 1000
"""Texts without records that a text writer is asked for, to know which words to expect, and their tokens.

More take a server without a GPU longer than `ChatWriter` waits.
"""

_RECORDS_AT_ONCE: Final = 1000


@dataclass(frozen=True)
class _Style:
    """What a histogram asks of a text.

    Attributes:
        gains: the nats that words gain or lose.
        words: how many it shall have; None if that is not known.
        marks: whether its sentences end with a mark.
        lower: whether it has no capital letters.
        named: whether it names somebody or something.
        prompted: what it has from its prompt if it says it: the length, the label's field, "knee or hip".
        prompt: the words of its prompt, in lower case, which name nobody.
        unsaid: tokens of phrases that it does not have.
    """

    gains: Mapping[int, float] = field(default_factory=dict)
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
        """Whether a text says nothing, and the records are longer, as far as is known."""
        return len(text.split()) < min(_FEWEST, self.words or _FEWEST)

    def lacks_name(self, text: str) -> bool:
        """Whether a text shall name somebody, and does not."""
        return self.named and not has_a_name(text, self.prompt)


@dataclass(eq=False)
class _Candidate:
    """A text that may be released, while it is written.

    Attributes:
        logprobs: of its tokens but the first word, by the model alone.
        failed: whether the model gave no token any probability.
    """

    draft: Draft | ShapedDraft
    logprobs: list[float] = field(default_factory=list)
    failed: bool = False

    @property
    def tokens(self) -> list[int]:
        """Of the text, with the one that ends it, if there is one: it has one field and no schema."""
        return self.draft.context

    def add(self, token: int, logprob: float) -> None:
        self.logprobs.append(logprob)
        self.draft.add(token)

    @cached_property
    def text(self) -> str:
        return self.draft.text()

    def worth(
        self,
        histogram: Histogram,
        tokenize: Callable[[str], Sequence[int]],
        earlier: Sequence[str],
        style: _Style,
    ) -> tuple[int, float]:
        """Less its flaws, which come first, an odd number if it lacks a name; its likeness with its sense."""
        flaws = (
            16 * (self.text in ("", *earlier))
            + 8 * (self.draft.cut_off or style.is_told_in(self.text) or has_a_models_words(self.text))
            + 4 * style.says_little(self.text)
            + 2 * any(_shared(self.text, each) > _MOST_SHARED for each in earlier)
            + style.lacks_name(self.text)
        )
        sense = float(np.mean(self.logprobs)) if self.logprobs else 0.0
        return -flaws, histogram.likeness(features(self.text, tokenize)) + _SENSE * sense


@dataclass(frozen=True)
class HistogramLoop(TokenLoop):
    """Generates from one histogram a label. See `TokenLoop`; `random_source` is for tests alone.

    Attributes:
        label_field: the label's name in prompts.
        preamble: what prompts begin with, for a text writer.
        text_writer: writes the candidates in the model's place; None: the model does.
    """

    random_source: RandomSource | None = None
    label_field: str = ""
    preamble: str = ""
    text_writer: TextWriter | None = field(default=None, repr=False)
    _spelling: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def tokens(self, request: TextRequest) -> Generator[int]:
        """Release the tokens of one demonstration, all of them or none. See `TokenLoop.tokens`.

        The first one of a reservation charges its draw; later ones read the histogram that it keeps.
        """
        if request.released:  # the text was taken, and not recorded
            return
        kept = request.reservation.histogram
        if kept is None:
            expected = self._expected(request)  # finds a dead model or writer before anything is charged
            request.units.check()
            kept = of_noisy_sum(*self.noisy_sum(request, expected), expected).as_dict()
            request.reservation.keep(kept)
        released = self._text(Histogram.from_dict(kept).spelled(self.backend), request, CANDIDATES)
        request.released.extend(released)
        yield from released

    def without_records(self, request: PublicRequest) -> list[int]:
        """The tokens of a text from a histogram that tells nothing, chosen from fewer candidates."""
        return self._text(Histogram(), request, _PREVIEWED)

    def _text(self, histogram: Histogram, request: PublicRequest, candidates: int) -> list[int]:
        if self.text_writer is not None:
            best, style = self._commissioned(self.text_writer, histogram, request)
        else:
            begun = [_Candidate(self.draft(self._beginning(histogram))) for _ in range(candidates)]
            style = self._style(histogram, request.max_tokens, request.prompts.prefix)
            best = self._best(self._written(begun, request, style), histogram, request, style)
        return self._in_lower_case(best, request.max_tokens) if style.lower else best.tokens

    def _commissioned(
        self, writer: TextWriter, histogram: Histogram, request: PublicRequest
    ) -> tuple[_Candidate, _Style]:
        """The best text of a text writer. It puts the likest first by itself, so its order counts."""
        written, style = self._candidates_of(writer, histogram, request)
        return self._best(written, Histogram(), request, style), style

    def _candidates_of(
        self, writer: TextWriter, histogram: Histogram, request: PublicRequest, asked: int = ASKED
    ) -> tuple[list[_Candidate], _Style]:
        style = replace(self._style(histogram, request.max_tokens), named=False)  # it names as it likes
        brief = Brief(
            preamble=self.preamble,
            topic=f"{self.label_field}: {request.topic}",
            words=style.words,
            most_words=max(1, request.max_tokens * 2 // 3),  # names have several tokens each
            firsts={
                word: min(1.0, share / math.sqrt(FIRST))
                for word, share in self._commonest_first(histogram.firsts).items()
            },
            known=[*self._commonest_first(histogram.words)],
            marks=style.marks,
            lower=style.lower,
            earlier=request.earlier,
            multiline=self.layout.multiline,
            asked=asked,
        )
        texts = [f" {one}"[: 16 * request.max_tokens] for one in brief.texts(writer, request.stop)]
        ends = sorted(self.backend.end_token_ids)[:1] or self.backend.tokenize(self.layout.separator)
        written = [
            _Candidate(self.draft([*tokens, *ends][: request.max_tokens]))
            for tokens in tokenized(texts[: max(asked, CANDIDATES)], self.backend)
        ]
        if kept := [one for one in written if one.text]:
            return kept, style
        raise BackendError("the model has no tokens for what the text writer writes")

    def known_words(self, kept: Mapping[str, object]) -> list[str]:
        """The words of the records that a reservation's histogram has, the commonest first. Public."""
        return [*self._commonest_first(Histogram.from_dict(kept).spelled(self.backend).words)]

    def _commonest_first(self, shares: Mapping[int, float]) -> dict[str, float]:
        ranked = sorted(shares, key=shares.__getitem__, reverse=True)
        return {self._spelled(word).strip(): shares[word] for word in ranked}

    def noisy_sum(self, request: TextRequest, expected: Expected) -> tuple[NDArray[np.int64], int, int]:
        """Charge, count the rows of a draw and release their sum. See `HistogramRelease.noisy_sum`."""
        none_if_unusable(self._works, public=self._works)  # whether it fails is no matter of the records
        request.stop.check()
        request.reservation.charge()  # not later: whether it is charged would tell how long the count takes
        # the draw is made after the count, since that may fail: nothing leaves, and no noise is drawn
        total = row_sum(self._counted(request), self.backend.vocabulary_size, expected)
        release = cast("HistogramRelease", request.release)
        return release.noisy_sum(total, request.reservation.draw())

    def _expected(self, request: PublicRequest) -> Expected:
        """The words of texts without records: all that the model might write, and those of a text writer."""
        seen = np.zeros((2, self.backend.vocabulary_size))
        self._written([_Candidate(self.draft()) for _ in range(EXPECTING)], request, seen=seen)
        seen /= EXPECTING
        if self.text_writer is not None:
            asked = min(_FORESEEN, max(ASKED, _FORESEEN_TOKENS // request.max_tokens))
            written, _ = self._candidates_of(self.text_writer, Histogram(), request, asked)
            for one in written:
                request.stop.check()
                found = features(one.text, self.backend.tokenize)
                for place, words in enumerate((found.words, {found.first})):
                    seen[place][[each for each in words if each in range(seen.shape[1])]] += 1 / len(written)
        return Expected.of(seen[0], seen[1], self.backend)

    def _counted(self, request: TextRequest) -> Iterator[Features]:
        """What is counted of the drawn records, each by itself; one that cannot be read counts nothing."""
        drawn = [record for subset in request.sampler.draw(request.units.sizes) for record in subset]
        # each word once, since a server is slow; a tuple, which no later answer can change
        tokenize = lru_cache(maxsize=None)(lambda word: tuple(self.backend.tokenize(word)))
        for start in range(0, len(drawn), _RECORDS_AT_ONCE):
            [bodies] = request.units.of([drawn[start : start + _RECORDS_AT_ONCE]])
            for body in bodies:
                if body is None:
                    continue
                found = none_if_unusable(partial(self._features, body, tokenize), public=self._works)
                if found is not None:
                    yield found

    def _features(self, tokens: Sequence[int], tokenize: Callable[[str], Sequence[int]]) -> Features:
        return features(self.backend.detokenize(tokens), tokenize)

    def _works(self) -> object:
        return self._features(self.backend.tokenize(" public"), self.backend.tokenize)

    def _written(
        self,
        candidates: Sequence[_Candidate],
        request: PublicRequest,
        style: _Style | None = None,
        *,
        seen: NDArray[np.float64] | None = None,
    ) -> list[_Candidate]:
        """What the model makes of these beginnings, side by side, in the style of a histogram.

        `seen` takes the sum of the probabilities of each token, and of those at the beginning, shape (2, V).
        """
        max_tokens, prompts = request.max_tokens, request.prompts
        if style is not None:
            prompts = (request.subject or prompts).hinted(self._hint(style.words))
        prefix = [*prompts.prefix, *prompts.public_suffix]  # which is evaluated once for all
        with closing_block(self.backend, prefix, [()] * len(candidates), max_tokens, public=True) as block:
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
                        self._go_on(one, row, style or _Style(), max_tokens - length)
        written = [one for one in candidates if not one.failed]
        if not written:
            raise BackendError(NO_PROBABILITY)
        return written

    def _in_lower_case(self, one: _Candidate, max_tokens: int) -> list[int]:
        """A candidate's tokens, without capital letters if it has an end and they can be spelled so."""
        *said, end = one.tokens
        text = self.backend.detokenize(said).lower()
        small = self.backend.tokenize(text)
        spelled = len(small) < max_tokens and self.backend.detokenize(small) == text
        return [*small, end] if one.draft.finished and spelled else one.tokens

    def _best(
        self, written: Sequence[_Candidate], histogram: Histogram, request: PublicRequest, style: _Style
    ) -> _Candidate:
        """Of those of the fewest flaws, the likest that fits its label; if none does, the likest.

        That a text lacks a name is no flaw beside its label: "Hi Support Team" is a name, too.
        """
        style = replace(style, prompted=(*style.prompted, *_CHOICE.findall(request.topic)))
        worth = {one: one.worth(histogram, self.backend.tokenize, request.earlier, style) for one in written}
        ranked = sorted(written, key=lambda one: worth[one], reverse=True)
        fits = lru_cache(maxsize=None)(request.fits)
        least = -worth[ranked[0]][0] // 2
        for one in ranked:
            request.stop.check()
            if -worth[one][0] // 2 == least and fits(one.text):
                return one
        return ranked[0]

    def _style(self, histogram: Histogram, max_tokens: int, prompt: Sequence[int] = ()) -> _Style:
        length = self._one_of(histogram.usual_lengths)
        words = None if length is None else min(length, max(1, max_tokens * 3 // 4))
        said = {self._spelled(word).strip() for word in histogram.words.keys() | histogram.firsts.keys()}
        named = self.label_field if self.label_field.lower() not in said else ""
        prompted = tuple(each for each in (named, str(words or "")) if each)
        lower = histogram.in_lower_case
        marks = histogram.ends_with_marks and not lower  # which counts those without a mark
        said_before = Counter(WORD.findall(self.backend.detokenize(prompt).lower()))
        style = _Style(
            gains=self._gains(histogram),
            words=words,
            marks=marks,
            lower=lower,
            named=self._one_of({1: histogram.named}, 1 - histogram.named) is not None,
            prompted=prompted,
            prompt=frozenset(said_before),
        )
        phrases = self._with_tokens(FORMALITIES + (COURTESIES if style.has_sentences else ()))
        theirs = {word.lower() for word in said}
        unsaid = [
            tokens
            for each, tokens in (*phrases, *self._of_example(said_before))
            if theirs.isdisjoint(each.lower().split())
        ]
        return replace(style, unsaid=unsaid)

    def _of_example(self, prompt: Counter[str]) -> list[tuple[str, list[int]]]:
        """What the made-up example alone is about: the words that its prompt has nowhere else, with tokens.

        Common and short words are left out.
        """
        words = WORD.findall(self.layout.example)
        elsewhere = prompt - Counter(word.lower() for word in words)
        subject = {word for word in words if len(word) > _SHORTEST and word.lower() not in elsewhere}
        forms = sorted(form for word in subject for form in {word, word.lower(), word.capitalize()})
        told = self._with_tokens(tuple(forms))
        return [(word, tokens) for word, tokens in told if len(tokens) > 1 or tokens[0] >= COMMONEST]

    def _with_tokens(self, phrases: tuple[str, ...]) -> list[tuple[str, list[int]]]:
        """Phrases with their tokens, which are asked for once: a server is slow."""
        return self.backend.known(
            ("phrases", phrases),
            lambda: [(each, one) for each in phrases for one in tokenized([f" {each}"], self.backend)],
        )

    def _hint(self, words: int | None) -> list[int]:
        """What a prompt says of the length, in tokens; nothing of one that is not known."""
        hint = [] if words is None else self.backend.tokenize(f"\nLength: {words} words")
        return hint if len(hint) <= MOST_HINT else []

    def _beginning(self, histogram: Histogram) -> list[int]:
        """One of the records' first words, by its share, or none: few known ones may all be noise."""
        unknown = math.sqrt(FIRST) - sum(histogram.firsts.values())
        rarest = min(histogram.firsts.values(), default=0.0)
        first = self._one_of(histogram.firsts, max(0.0, min(unknown, rarest)))
        return [] if first is None else [first]

    def _one_of(self, shares: Mapping[int, float], unknown: float = 0.0) -> int | None:
        """One of these, drawn by its share; None of none, or for the share of unknown ones."""
        if not shares:
            return None
        place = Decoding(temperature=1.0).choose(np.array([*shares.values(), unknown]), self.random_source)
        return [*shares, None][place]

    def _gains(self, histogram: Histogram) -> dict[int, float]:
        """The nats that tokens of words gain or lose: of those that begin no text, and have some letters."""
        begun = {self._spelled(word).strip().lower() for word in histogram.firsts}
        shares, gains = dict[int, float](), dict[int, float]()
        for word in histogram.words.keys() | histogram.log_ratios.keys():
            spelled = self._spelled(word).strip()
            if spelled.lower() in begun or len(spelled) < _SHORTEST:
                continue
            if word in histogram.words:
                shares[word] = histogram.words[word]
            else:
                gains[word] = histogram.log_ratios[word]
        largest = max(shares.values(), default=1.0)
        return gains | {word: _MOST_GAIN * math.sqrt(share / largest) for word, share in shares.items()}

    def _likely_names(self, support: Sequence[int], scores: NDArray[np.float64], style: _Style) -> list[int]:
        """Places of names that are likely, and likelier than in small letters: "Rome", not "Going To"."""
        near: list[int] = np.flatnonzero(scores > scores.max() - _NAME_NEAR).tolist()  # few: a server is slow
        scored = {self._spelled(support[place]): scores[place] for place in near}
        return [
            place
            for place in near
            if self._is_a_name(support[place], style)
            and scores[place] > scored.get(self._spelled(support[place]).lower(), -np.inf)
        ]

    def _is_a_name(self, token: int, style: _Style) -> bool:
        return has_a_name(f"a {self._spelled(token).strip()}", style.prompt)

    def _is_markup(self, token: int) -> bool:
        """Whether a token that ends no text is no part of one: "<|im_start|>" where the end is refused."""
        spelled = self._spelled(token)
        is_tag = token not in self.ends and _TAG.fullmatch(spelled) is not None
        return is_tag and token not in self.backend.tokenize(spelled)

    def _spelled(self, token: int) -> str:
        """What a token says, which is asked for once: a server is slow."""
        if token not in self._spelling:
            self._spelling[token] = self.backend.detokenize([token])
        return self._spelling[token]

    def _go_on(self, one: _Candidate, row: Logprobs, style: _Style, left: int) -> None:
        """Add a candidate's next token, drawn from the likeliest, or note that there is none."""
        weighed = row.copy()
        for word, gain in style.gains.items():
            if gain < 0 or word not in one.tokens:
                weighed[word] += gain
        weighed[ending(style.unsaid, one.tokens)] = -np.inf
        support = one.draft.support(_among, weighed, left)
        scores = weighed[support].astype(np.float64)
        if style.named and not any(self._is_a_name(token, style) for token in one.tokens[1:]):
            scores[self._likely_names(support, scores, style)] += _NAME_GAIN
        scores[~np.isfinite(scores)] = -np.inf
        if np.isneginf(scores).all():
            one.failed = True
            return
        place, token = self._drawn(one, support, scores, style)
        one.add(token, float(row[support[place]]))

    def _drawn(
        self, one: _Candidate, support: Sequence[int], scores: NDArray[np.float64], style: _Style
    ) -> tuple[int, int]:
        """Draw a place in the support, and its token; a mark that is not wanted makes way for the end."""
        while True:
            place = _DECODING.choose(np.exp(scores - scores.max()), self.random_source)
            token = support[place]
            spelled = self._spelled(token)
            ends_sentence, is_markup = spelled.endswith(tuple(ENDS)), self._is_markup(token)
            if not (token in self.ends or ends_sentence or is_markup):
                return place, token
            words = self.backend.detokenize([*one.tokens, token]).split() if style.least else []
            if len(words) >= style.least or np.isfinite(scores).sum() == 1:
                is_end = is_markup or (spelled.strip() in ENDS and not style.marks)
                return place, min(self.backend.end_token_ids, default=token) if is_end else token
            if style.has_sentences and ends_sentence and token not in self.ends:
                return place, token
            scores[place] = -np.inf


def _among(logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
    """The likeliest tokens that are not excluded, in any order."""
    scores = np.where(np.isfinite(logprobs), logprobs, -np.inf)
    scores[list(excluded)] = -np.inf
    near = np.flatnonzero(scores > scores.max() - _NEAR)
    kept: list[int] = near[np.argsort(-scores[near])[:_TOP_K]].tolist()
    return kept


def _shared(one: str, other: str) -> float:
    """Of the distinct words of the text that has fewer, the share that the other one has, too."""
    words, others = (set(WORD.findall(text.lower())) for text in (one, other))
    return len(words & others) / max(1, min(len(words), len(others)))
