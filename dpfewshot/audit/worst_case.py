"""The language model of the canary game: it gives a canary away as loudly as a model can.

A guarantee holds for every model. A real one hides a canary behind what all other records say; this one is
certain of one token, the mark, where a prompt holds a canary, and has no answer to any other private prompt,
so that the mark is said by canaries and by noise alone. What it says outside of the public candidates, the
hints, no sound release can pick. It forgets what it has written: every token is as telling as the first.
And it notes who is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfewshot.audit.premises import Watch
from dpfewshot.backends.protocol import Logprobs, Tokens

MARK, OTHER_MARK = 0, 1
"""The token that a canary is certain of, and the one that a decoy is."""

TELLING = "mh"
"""The letters of the mark and of a hint in a text."""

_HINT = 1e-30
"""The probability of all hints together: nothing, until candidates are chosen by it."""


def text_of_unit(number: int) -> str:
    """The text of each record of a unit: a token by itself, and short enough for every cap."""
    return f"#{number}"


class WorstCaseModel:
    """A `BlockBackend` that knows a canary.

    Args:
        candidates: tokens that the public prompt holds equally likely.
        hints: further tokens, which it holds next to impossible.
        canaries: how many units, from the first one on, are canaries.
        decoys: whether they are decoys instead, which canaries take the place of.
    """

    def __init__(self, candidates: int, hints: int, canaries: int, *, decoys: bool = False) -> None:
        self.vocabulary_size = candidates + hints
        self.end_token_ids: frozenset[int] = frozenset()
        self.batch_invariant = True
        self.watch = Watch()
        self._candidates = candidates
        self._canaries = canaries
        hinted = _HINT / max(hints, 1)
        self._known = np.full(self.vocabulary_size, -np.inf, dtype=np.float32)
        self._known[candidates:] = np.log(hinted)
        self._known[OTHER_MARK % candidates if decoys else MARK] = 0.0
        self._public = np.full((1, self.vocabulary_size), np.log(hinted), dtype=np.float32)
        self._public[0, :candidates] = -np.log(candidates)

    def tokenize(self, text: str) -> list[int]:
        """A unit's text is one token, below zero; public text is none."""
        word = text.strip()
        return [-1 - int(word[1:])] if word[:1] == "#" and word[1:].isdecimal() else []

    def detokenize(self, tokens: Tokens) -> str:
        """A letter each: m is the mark, h a hint. None is a newline, which would end a demonstration."""
        return "".join("m" if token == MARK else "x" if token < self._candidates else "h" for token in tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Certain of the mark where a canary is, a row of NaN elsewhere."""
        answers = np.full((len(prompts), self.vocabulary_size), np.nan, dtype=np.float32)
        for answer, prompt in zip(answers, prompts, strict=True):
            if any(-1 - self._canaries < token < 0 for token in prompt):
                answer[:] = self._known
        return answers if support is None else answers[:, support]

    def open_block(
        self,
        prefix: Tokens,  # noqa: ARG002 - public text is no token
        suffixes: Sequence[Tokens],
        tokens: int,  # noqa: ARG002 - as many as are wanted
        *,
        public: bool = False,
    ) -> Memory:
        """A block whose answers stay what they are."""
        if public:
            return Memory(self._public)
        self.watch.drawn([[-1 - token for token in suffix if token < 0] for suffix in suffixes])
        return Memory(self.next_token_logprobs(suffixes), self.watch)


class Memory:
    """The answers of a block, whatever is appended."""

    def __init__(self, answers: Logprobs, watch: Watch | None = None) -> None:
        self._answers = answers
        self._watch = watch
        self._further = True

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """The same answers every time."""
        if self._watch is not None and self._further:
            self._watch.served()
        self._further = False
        return self._answers if support is None else self._answers[:, support]

    def append(self, token: int) -> None:  # noqa: ARG002 - it is forgotten
        """The next answer is of a further token."""
        self._further = True

    def append_each(self, tokens: Tokens) -> None:  # noqa: ARG002 - they are forgotten
        """The next answers are of further tokens."""
        self._further = True

    def close(self) -> None:
        """Nothing is held."""
