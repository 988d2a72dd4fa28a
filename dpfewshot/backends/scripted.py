"""A deterministic backend for tests and documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.backends.text import BROKEN
from dpfewshot.errors import BackendError


class Scripted(LogprobBackend):
    r"""A language model made of a function.

    Args:
        vocabulary: the texts of tokens 0 to V-1. Text is split greedily, longest entry first; each
            stretch that no entry matches becomes the extra id V, which is never predicted.
        next_token: returns the V probabilities of the next token for a prompt's token ids.
        end_token_ids: the tokens that end a text, besides a newline.
        batch_invariant: the backend's own claim.

    Example:
        >>> backend = Scripted(["a", "b", "\n"], next_token=lambda prompt: [0.6, 0.3, 0.1])
        >>> backend.tokenize("ab?")
        [0, 1, 3]
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        next_token: Callable[[list[int]], Sequence[float]],
        *,
        end_token_ids: Sequence[int] = (),
        batch_invariant: bool = True,
    ) -> None:
        self._vocabulary = list(vocabulary)
        self._ids = {text: token for token, text in enumerate(self._vocabulary)}
        longest_first = sorted(filter(None, self._ids), key=len, reverse=True)
        self._entry = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._next_token = next_token
        self.vocabulary_size = len(self._vocabulary)
        self.end_token_ids = frozenset(end_token_ids)
        self.batch_invariant = batch_invariant

    def tokenize(self, text: str) -> list[int]:
        """Split the text greedily into vocabulary entries; a stretch that matches none becomes the id V."""
        return [self._ids.get(part, self.vocabulary_size) for part in self._entry.split(text) if part]

    def detokenize(self, tokens: Tokens) -> str:
        """Join the entries; unknown text becomes the replacement character."""
        texts = [*self._vocabulary, BROKEN]
        return "".join(texts[token] for token in tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Call the function once for each prompt.

        Raises:
            BackendError: the function does not return V probabilities.
        """
        columns = slice(None) if support is None else list(support)
        width = self.vocabulary_size if support is None else len(support)
        rows = np.empty((len(prompts), width), dtype=np.float32)
        for row, prompt in zip(rows, prompts, strict=True):
            probabilities = np.asarray(self._next_token(list(prompt)), dtype=np.float64)
            if probabilities.shape != (self.vocabulary_size,):
                raise BackendError(
                    f"next_token must return {self.vocabulary_size} probabilities, one for each entry; "
                    f"it returned an array of shape {probabilities.shape}"
                )
            with np.errstate(divide="ignore", invalid="ignore"):
                row[:] = np.log(probabilities)[columns]
        return rows
