"""The canary game's canaries: for a model that reveals them, and for an attacker who sees texts alone.

A guarantee holds for every model. A real one hides a canary behind all other records. `WorstCaseModel` is
certain of one token, the mark, if a prompt holds a canary, and cannot answer any other private prompt: only
canaries and noise produce the mark. A sound release never picks its tokens outside the public candidates, the
hints. It forgets what it wrote, so every token reveals as much as the first. It also records which units are
drawn.

`EchoCanary` begins as demonstrations do, so that a real model comes to continue it, and ends in rare
candidates (Meeus et al. 2025, "The Canary's Echo"). The attacker fits a bigram model to the released texts,
and scores the rare ending by it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from dpfewshot.audit.premises import Watch
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.backends.scripted import Scripted
from dpfewshot.backends.text import ending_tokens
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.mechanisms.word_histogram import COMMONEST
from dpfewshot.values import Record
from dpfewshot.writing.draft import Draft, ShapedDraft

CANARY_WORD = " canary"
"""The only word of a canary for a histogram of words."""

MARK, OTHER_MARK = 0, 1
"""The token that a canary makes certain, and the one that a decoy does."""

_HINT = 1e-30
"""The public probability of all hints together: negligible, but it orders the candidates."""


def text_of_unit(number: int) -> str:
    """Return the text of each record of a unit: one token, short enough for every cap."""
    return f"#{number}"


def telling(text: str) -> int:
    """Return the number of marks and hints in a demonstration's text."""
    return text.count("m") + text.count("h")


class WorstCaseModel(LogprobBackend):
    """A backend that knows the first `canaries` units as canaries, or as the decoys that canaries replace.

    The public prompt considers `candidates` tokens equally likely, and `hints` further ones next to
    impossible.
    """

    def __init__(self, candidates: int, hints: int, canaries: int, *, decoys: bool = False) -> None:
        self.vocabulary_size = candidates + hints
        self.end_token_ids = frozenset()
        self.batch_invariant = True
        self.watch = Watch()
        self._candidates = candidates
        self._canaries = canaries
        hinted = _HINT / max(hints, 1)
        self._known_rows = np.full(self.vocabulary_size, -np.inf, dtype=np.float32)
        self._known_rows[candidates:] = np.log(hinted)
        self._known_rows[OTHER_MARK % candidates if decoys else MARK] = 0.0
        self._public = np.full((1, self.vocabulary_size), np.log(hinted), dtype=np.float32)
        self._public[0, :candidates] = -np.log(candidates)

    def tokenize(self, text: str) -> list[int]:
        """A unit's text is one negative token; public text has no tokens."""
        word = text.strip()
        return [-1 - int(word[1:])] if word[:1] == "#" and word[1:].isdecimal() else []

    def detokenize(self, tokens: Tokens) -> str:
        """A letter a token, m for the mark and h for a hint, and a sentence's end: no text is completed."""
        letters = ("m" if token == MARK else "x" if token < self._candidates else "h" for token in tokens)
        return "".join(f"{letter}!" for letter in letters)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Certainty of the mark for prompts with a canary, a row of NaN for others."""
        answers = np.full((len(prompts), self.vocabulary_size), np.nan, dtype=np.float32)
        for answer, prompt in zip(answers, prompts, strict=True):
            if any(-1 - self._canaries < token < 0 for token in prompt):
                answer[:] = self._known_rows
        return answers if support is None else answers[:, support]

    def open_block(
        self,
        prefix: Tokens,  # noqa: ARG002 - public text has no tokens
        suffixes: Sequence[Tokens],
        tokens: int,  # noqa: ARG002 - a block serves any number
        *,
        public: bool = False,
    ) -> ConstantBlock:
        """Return a block whose answers are constant."""
        if public:
            return ConstantBlock(self._public)
        self.watch.drawn([[-1 - token for token in suffix if token < 0] for suffix in suffixes])
        return ConstantBlock(self.next_token_logprobs(suffixes), self.watch)


class ConstantBlock:
    """A block whose answers ignore what is appended. It tells a watch of each token that it serves."""

    def __init__(self, answers: Logprobs, watch: Watch | None = None) -> None:
        self._answers = answers
        self._watch = watch
        self._further = True

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Return the same answers every time."""
        if self._watch is not None and self._further:
            self._watch.served()
        self._further = False
        return self._answers if support is None else self._answers[:, support]

    def append(self, token: int | Tokens) -> None:  # noqa: ARG002 - it is forgotten
        """Start a further token."""
        self._further = True

    append_each = keep = append

    def rewind(self) -> None:
        """Do nothing: nothing is remembered."""

    def close(self) -> None:
        """Do nothing: a block holds no resources."""


DECOY: Final = " decoy decoy decoy decoy."
"""Differs from the text of the canary word in all that a word histogram counts."""


def counting_model() -> Scripted:
    """A model with two words that count: of the canary, and of the decoy."""
    words = [f" {chr(ord('a') + place % 26)}{place}" for place in range(COMMONEST)]
    vocabulary = [*words, CANARY_WORD, " decoy", "."]
    return Scripted(vocabulary, lambda _: [1.0] * len(vocabulary))


@dataclass(frozen=True, slots=True)
class EchoCanary:
    """A canary whose ending has `rare` tokens, and the attacker's score of it by the public tokenizer.

    Its beginning is private: it was released without a charge.
    """

    record: Record = field(repr=False)
    backend: LogprobBackend = field(repr=False)
    rare: int

    @classmethod
    def following(cls, beginning: Sequence[int], set_up: SetUp, label: str) -> EchoCanary:
        """Continue the beginning of a demonstration, to the plan's length, by the least likely candidates."""
        rule = partial(likeliest, top_k=set_up.mechanism.top_k)
        tokenizer, ends = set_up.backend, ending_tokens(set_up.backend)

        def rarest(draft: Draft | ShapedDraft, row: Logprobs, left: int) -> int:
            """One that ends nothing and that the tokenizer reads as it was written, if there is any."""
            candidates = sorted(draft.support(rule, row, left), key=row.__getitem__)
            legible = (
                token
                for token in candidates
                if token not in ends and tokenizer.tokenize(tokenizer.detokenize([token])) == [token]
            )
            return next(legible, candidates[0])

        prompts, most = set_up.writer.for_label(label), set_up.plan.settings.max_tokens
        draft, tokens = set_up.loop.continued(prompts, beginning, most, rarest)
        return cls(Record(draft.text(), label), tokenizer, len(tokens) - len(beginning))

    def echo(self, texts: Iterable[str]) -> float:
        """Return the log-likelihood of the ending by bigrams of these texts, with Laplace's smoothing."""
        pairs, before = Counter[tuple[int, int]](), Counter[int]()
        for tokens in map(self._tokens, texts):
            pairs.update(itertools.pairwise(tokens))
            before.update(tokens[:-1])
        ending = itertools.pairwise(self._tokens(self.record.text)[-1 - self.rare :])
        size = self.backend.vocabulary_size
        return sum(math.log((pairs[pair] + 1) / (before[pair[0]] + size)) for pair in ending)

    def _tokens(self, text: str) -> list[int]:
        return [-1, *self.backend.tokenize(f" {text}")]  # -1 stands for the beginning of a text
