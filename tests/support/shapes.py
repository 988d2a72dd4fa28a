"""A model whose answers are arbitrary, for texts that match a schema all the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.tasks.automaton import Automaton
from dpfewshot.tasks.schema import automaton, checked
from tests.support.fields import Bytes

PIECES = [
    *map(chr, range(32, 127)),
    *("\n", "é", " refund", " re", "fund", '"}', '", "', "20", "2026-", ": ", "}\n"),
]


def accepts(found: Automaton, text: str | bytes) -> bool:
    """Whether a text matches."""
    written = text.encode() if isinstance(text, str) else text
    return bool(found.accepting[found.after(found.initial, written)])


def matches(schema: object, text: str) -> bool:
    """Whether a text matches a task's schema."""
    return accepts(automaton(checked(schema)), text)


class Moody(Bytes):
    """A model of pieces of text whose answers are any function of the prompt and of a seed.

    Args:
        seed: of all answers.
        private_seed: of the answers to prompts that hold a record.
    """

    answers: tuple[float, ...] = (-1.0, -9.0, -90.0, -np.inf)
    vocabulary_size = len(PIECES)
    end_token_ids = frozenset({PIECES.index("~")})

    def __init__(self, seed: int, private_seed: int | None = None) -> None:
        self.seeds = (seed, seed if private_seed is None else private_seed)
        self.supports: list[Tokens] = []

    def tokenize(self, text: str) -> list[int]:
        return [PIECES.index(each) for each in re.sub(r"[^ -~\né]", "?", text)]

    def detokenize(self, tokens: Tokens) -> str:
        return "".join(PIECES[token] for token in tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        columns = slice(None) if support is None else list(support)
        if support is not None:
            self.supports.append(tuple(support))
        return np.array([self._row(tuple(prompt))[columns] for prompt in prompts], dtype=np.float32)

    def _row(self, prompt: tuple[int, ...]) -> np.ndarray[Any, Any]:
        private = self.detokenize(prompt).count("Kind:") > 1
        rng = np.random.default_rng([self.seeds[private], *prompt])
        return rng.choice(self.answers, len(PIECES))


class Calm(Moody):
    """A model that gives every token some probability."""

    answers = (-1.0, -9.0, -90.0)
