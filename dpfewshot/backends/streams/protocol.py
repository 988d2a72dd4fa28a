"""The key-value streams that a `StreamBackend` evaluates prompts in."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import Tokens

Logits = NDArray[np.float32]
"""Unnormalised log-probabilities of the next token, shape (V,): a view, which the next call overwrites."""


class Tally:
    """Tokens evaluated so far. They reveal the lengths of private texts: for the operator alone."""

    def __init__(self) -> None:
        self.tokens = 0
        self.dummies = 0
        self._lock = Lock()

    def add(self, *, tokens: int = 0, dummies: int = 0) -> None:
        """Count evaluated tokens; lanes count at the same time."""
        with self._lock:
            self.tokens += tokens
            self.dummies += dummies

    def clear(self) -> None:
        """Begin at zero."""
        self.tokens = self.dummies = 0


class Streams(Protocol):
    """One key-value stream for each of many sequences, such as `KVStreams` and `HuggingFaceStreams`."""

    @property
    def cells(self) -> int:
        """Tokens that a stream holds."""
        ...

    @property
    def failed(self) -> bool:
        """Whether the caches are in doubt: nothing may be read from them."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Make the stream `target` a complete copy of the stream `source`."""
        ...

    def rewind(self, stream: int, length: int) -> None:
        """Drop the tokens after the first `length` of a stream."""
        ...

    def extend(self, stream: int, start: int, tokens: Tokens, *, dummies: bool = False) -> Logits:
        """Evaluate tokens of one stream in a call of their own, and return the logits after the last.

        Args:
            stream: the stream.
            start: the position of the first token: how many tokens the stream holds.
            tokens: at least one.
            dummies: whether the tally counts them as dummies.
        """
        ...

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], active: int) -> list[Logits]:
        """Evaluate one token in each of the streams `first`, `first` + 1, ... in one call of a fixed shape.

        Args:
            first: the first stream.
            tokens: a token for each stream.
            positions: each token's position in its stream.
            active: how many streams, from the first, hold prompts; the rest hold dummies.

        Returns:
            The logits of the active streams.
        """
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class StreamsOpener(Protocol):
    """Makes streams."""

    def __call__(self, *, streams: int) -> Streams:
        """Return this many streams, all empty."""
        ...
