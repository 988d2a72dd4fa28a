"""Public prompts and texts for the checks of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dpfewshot.backends.protocol import LogprobBackend, Tokens

SAMPLE_PREFIX = "Write a question about a place.\n\nText:"

SAMPLE_TEXT = (
    "What is the name of the river , 2,850 km long , that runs through ten countries and four capitals "
    "before it reaches the Black Sea ?"
)

LONG_TOKENS = 320
"""Tokens of a long prompt: vLLM's batch-invariant mode has known faults in steps of over 256 tokens."""

SAMPLE_TEXTS = (SAMPLE_PREFIX, SAMPLE_TEXT, "Text: a  b\n\nText:", "It's 7.5% (or 8)!", "")
"""Plain ASCII, which every tokenizer can represent."""


def sample_prompts(backend: LogprobBackend) -> tuple[list[int], list[list[int]], list[int]]:
    """Return public prompts: a prefix, 27 suffixes of mixed lengths, and up to three released tokens."""
    words = SAMPLE_TEXT.split()
    texts = [" ".join(words[:count]) for count in range(1, len(words) + 1)]
    # Short and long texts alternate, so that small batches mix them.
    mixed = [text for pair in zip(texts, reversed(texts), strict=True) for text in pair][: len(texts)]
    suffixes = [backend.tokenize(f" {text}\n\nText:") for text in mixed]
    return backend.tokenize(SAMPLE_PREFIX), suffixes, backend.tokenize(" Where is the")[:3]


@dataclass(frozen=True)
class Samples:
    """Public inputs of the checks.

    Attributes:
        prefix: token ids that all prompts begin with.
        suffixes: the rest of each prompt: at least two, of mixed lengths.
        released: the tokens that continue blocks, at least one.
        texts: texts that must survive tokenising and detokenising.
    """

    prefix: Tokens
    suffixes: Sequence[Tokens]
    released: Tokens
    texts: Sequence[str]

    @classmethod
    def of(cls, backend: LogprobBackend) -> Self:
        """Return the built-in samples in the backend's tokens."""
        return cls(*sample_prompts(backend), SAMPLE_TEXTS)

    @property
    def prompts(self) -> list[list[int]]:
        """The whole prompts."""
        return [[*self.prefix, *suffix] for suffix in self.suffixes]
