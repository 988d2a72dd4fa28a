"""What a backend that keeps a key-value stream for each prompt has to evaluate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import Tokens

Logits = NDArray[np.float32]
"""Unnormalised log-probabilities of the next token, shape (V,): a view, which the next call overwrites."""


@dataclass
class Tally:
    """Tokens evaluated so far. They tell the lengths of private texts: for the operator alone."""

    tokens: int = 0
    dummies: int = 0


class Streams(Protocol):
    """A key-value stream for each of many sequences: `KVStreams` of llama.cpp, and others of its kind."""

    @property
    def cells(self) -> int:
        """Tokens that a stream holds."""
        ...

    @property
    def failed(self) -> bool:
        """Whether nothing may be read from the streams any more."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Make `target` a copy of `source`, all of it."""
        ...

    def rewind(self, stream: int, length: int) -> None:
        """Forget what follows the first `length` tokens of a stream."""
        ...

    def extend(self, stream: int, start: int, tokens: Tokens, *, dummies: bool = False) -> Logits:
        """Evaluate tokens of one stream in a call of their own; the logits after the last."""
        ...

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], seated: int) -> list[Logits]:
        """Evaluate one token in each of neighbouring streams, in one call of a fixed shape."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class StreamsOpener(Protocol):
    """Makes streams."""

    def __call__(self, *, streams: int) -> Streams:
        """So many of them, all empty."""
        ...
