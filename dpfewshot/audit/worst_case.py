"""The language model of the canary game: it gives a canary away as loudly as a model can.

A guarantee holds for every model. A real one hides a canary behind what all other records say; this one is
certain of one token, the mark, where a prompt holds a canary, and has no answer to any other private prompt,
so that the mark is said by canaries and by noise alone. It forgets what it has written: every token is as
telling as the first. Nothing here is private.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.prompts import LabelPrompts

CANARY, DECOY, OTHER = -1, -2, -3
"""Tokens that no vocabulary has: the body of a canary, of what it takes the place of, of any other record."""

PROMPTS = LabelPrompts(prefix=[], opener=[], between=[], opening=[])
"""Prompts hold bodies and released tokens alone."""

MARK, OTHER_MARK = 0, 1
"""The token that a canary is certain of, and the one that a decoy is."""


class WorstCaseModel:
    """A `BlockBackend` that knows a canary.

    Args:
        vocabulary_size: V, as many as there shall be candidates.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.end_token_ids: frozenset[int] = frozenset()
        self.batch_invariant = True
        self._certain = np.full((2, vocabulary_size), -np.inf, dtype=np.float32)
        self._certain[MARK, MARK] = self._certain[OTHER_MARK, OTHER_MARK % vocabulary_size] = 0.0
        self._public = np.full((1, vocabulary_size), -np.log(vocabulary_size), dtype=np.float32)

    def tokenize(self, text: str) -> list[int]:
        """No text is ever asked about."""
        raise NotImplementedError

    def detokenize(self, tokens: Tokens) -> str:
        """A letter each: none is a newline, so nothing ends a demonstration early."""
        return "x" * len(tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Certain of the mark where a canary is, of the other where a decoy is, a row of NaN elsewhere."""
        answers = np.full((len(prompts), self.vocabulary_size), np.nan, dtype=np.float32)
        for answer, prompt in zip(answers, prompts, strict=True):
            if CANARY in prompt:
                answer[:] = self._certain[MARK]
            elif DECOY in prompt:
                answer[:] = self._certain[OTHER_MARK]
        return answers if support is None else answers[:, support]

    def open_block(
        self,
        prefix: Tokens,  # noqa: ARG002 - there is none
        suffixes: Sequence[Tokens],
        tokens: int,  # noqa: ARG002 - as many as are wanted
        *,
        public: bool = False,
    ) -> Memory:
        """A block whose answers stay what they are."""
        return Memory(self._public if public else self.next_token_logprobs(suffixes))


class Memory:
    """The answers of a block, whatever is appended."""

    def __init__(self, answers: Logprobs) -> None:
        self._answers = answers

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """The same answers every time."""
        return self._answers if support is None else self._answers[:, support]

    def append(self, token: int) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing is held."""
