"""The canary game's language model: it reveals a canary as clearly as any model can.

A guarantee holds for every model. A real one hides a canary behind all other records. This one is certain of
one token, the mark, if a prompt holds a canary, and cannot answer any other private prompt: only canaries and
noise produce the mark. A sound release never picks its tokens outside the public candidates, the hints. It
forgets what it wrote, so every token reveals as much as the first. It also records which units are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfewshot.audit.premises import Watch
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens

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
    """A backend that knows the first units as canaries, or as the decoys that canaries replace.

    Args:
        candidates: the number of tokens that the public prompt considers equally likely.
        hints: the number of further tokens, which it considers next to impossible.
        canaries: the number of canaries or decoys.
        decoys: whether they are decoys.
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
        """One letter a token: m for the mark, h for a hint; no newline, which would end a demonstration."""
        return "".join("m" if token == MARK else "x" if token < self._candidates else "h" for token in tokens)

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
        """Return a block with constant answers."""
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

    append_each = append

    def close(self) -> None:
        """Do nothing: a block holds no resources."""
