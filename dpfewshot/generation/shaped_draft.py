"""A demonstration of a task with a schema while it is written (docs/proofs/schema.md).

All of it is a function of released tokens, the schema and the vocabulary, so it is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.token_automaton import TokenAutomaton
from dpfewshot.generation.draft import SupportRule


class ShapedDraft:
    """The released tokens of one demonstration whose text matches a schema. See `Draft`.

    It ends at an end token, which may come only where the text matches, or where nothing else may follow.

    Args:
        automaton: of the schema, in the backend's tokens.
        released: the tokens so far.

    Attributes:
        context: the tokens after the opening in every prompt: those released, and what the schema forces.
    """

    def __init__(self, automaton: TokenAutomaton, released: Iterable[int] = ()) -> None:
        self.context = list(automaton.opening)
        self._automaton = automaton
        self._released: list[int] = []
        self._state = automaton.start
        self._ended = False
        for token in released:
            self.add(token)

    @property
    def finished(self) -> bool:
        """Whether the text has ended."""
        return self._ended or self._automaton.ends_at(self._state)

    def support(self, rule: SupportRule, public_logprobs: NDArray[np.float32], left: int) -> list[int]:
        """The candidates, from the allowed tokens alone: fewer than asked for where fewer are allowed."""
        allowed = self._automaton.allowed(self._state, left)
        return allowed[rule(public_logprobs[allowed], frozenset())].tolist()  # type: ignore[no-any-return]

    def written_left(self, tokens: int) -> int:
        """The most tokens that the schema forces beside so many further released ones."""
        return self._automaton.most_forced(tokens, self._state)

    def add(self, token: int) -> Sequence[int]:
        """Take a released token, and return the tokens that continue the prompts."""
        self._released.append(token)
        self._ended = self._ended or token in self._automaton.ends
        self._state, forced = self._automaton.after(self._state, token)
        self.context += (token, *forced)
        return (token, *forced)

    def text(self) -> str:
        """The text of the demonstration, which matches the schema."""
        return self._automaton.text(self._released)
