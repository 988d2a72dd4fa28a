"""A block of prompts that share a prefix and grow by the same released tokens."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpfewshot.backends.streams.pool import Cohort
from dpfewshot.backends.streams.pools import StreamPools
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from dpfewshot.backends.protocol import Logprobs, Tokens


RowLogSoftmax: TypeAlias = "Callable[[Any, NDArray[np.intp] | slice], NDArray[np.floating]]"
"""From the logits of one prompt, as its streams give them, to the log-probabilities of some columns."""


class StreamBlock:
    """The block of every backend with a key-value stream for each prompt.

    Prompts beyond the places that are free are evaluated afresh for every token, in waves, with the
    same bits: how many prompts there are changes the time, and neither an answer nor a limit.

    Args:
        pools: the streams.
        guard: entered by every call: holds the backend's lock, and refuses a backend that is closed.
        log_softmax: turns logits into log-probabilities.
        vocabulary_size: V.
        prefix: public token ids that every prompt begins with.
        suffixes: the rest of each prompt; None for a prompt that cannot be evaluated.
        tokens: how many next tokens may be asked for; with one, no stream is kept.
        public: whether the prompts are public, so that one may go on from where another ended.
    """

    def __init__(
        self,
        *,
        pools: StreamPools,
        guard: Callable[[], AbstractContextManager[None]],
        log_softmax: RowLogSoftmax,
        vocabulary_size: int,
        prefix: tuple[int, ...],
        suffixes: Sequence[Tokens | None],
        tokens: int,
        public: bool,
    ) -> None:
        self._pools = pools
        self._guard = guard
        self._log_softmax = log_softmax
        self._vocabulary_size = vocabulary_size
        self._prefix = prefix
        self._tokens = tokens
        self._rows = len(suffixes)
        self._released: list[list[int]] = []
        seated = [(row, suffix) for row, suffix in enumerate(suffixes) if suffix is not None]
        in_turn = public and tokens == 1
        seats = max(1, len(seated)) if in_turn else pools.first.spare.seats
        parts = [seated[start : start + seats] for start in range(0, len(seated), seats)]
        places = pools.take(len(parts)) if tokens > 1 else []
        waves = [(pools.first, None)] * (len(parts) - len(places))
        self._close = weakref.finalize(self, pools.free.extend, places)
        self._cohorts = [
            (pool, Cohort([row for row, _ in part], [suffix for _, suffix in part], group, in_turn=in_turn))
            for part, (pool, group) in zip(parts, [*places, *waves], strict=True)
        ]

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Log-probabilities of the next token of each prompt as it now stands.

        Args:
            support: the token ids asked for, in this order; None for the whole vocabulary.

        Returns:
            float32 of shape (prompts, len(support) or V), in nats; a row of NaN for a prompt that
            cannot be evaluated.

        Raises:
            BackendError: the block or the backend is closed, all of the block's tokens were asked for, a
                support id is none, or the evaluation failed.
        """
        columns = support_columns(support, self._vocabulary_size)
        width = self._vocabulary_size if support is None else len(support)
        answers = np.full((self._rows, width), np.nan, dtype=np.float32)
        with self._guard():
            self._check()
            if len(self._released) >= self._tokens:
                raise BackendError(f"the block was opened for {self._tokens} tokens: open another")
            for pool, cohort in self._cohorts:
                for row, logits in pool.evaluate(self._prefix, cohort, self._released):
                    answers[row] = self._log_softmax(logits, columns)
        return answers

    def append(self, token: int) -> None:
        """Continue every prompt with a released token.

        Raises:
            BackendError: the block is closed, or the id is none.
        """
        self.append_each([token] * self._rows)

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with a token of its own, in the order of the suffixes.

        Raises:
            BackendError: the block is closed, an id is none, or there is not one for each prompt.
        """
        with self._guard():
            self._check()
            if len(tokens) != self._rows:
                raise BackendError(f"{len(tokens)} tokens for {self._rows} prompts: give one each")
            for token in tokens:
                if not 0 <= token < self._vocabulary_size:
                    raise BackendError(f"token {token} is not in 0 to {self._vocabulary_size - 1}")
            self._released.append([int(token) for token in tokens])

    def close(self) -> None:
        """Give the streams back and forget the prompts. Closing twice is harmless."""
        self._close()
        self._cohorts = []

    def _check(self) -> None:
        if not self._close.alive:
            raise BackendError("the block is closed: open another")
        if self._pools.failed:
            raise BackendError("the block's caches are lost: open it again", retryable=True)


def support_columns(support: Tokens | None, vocabulary_size: int) -> NDArray[np.intp] | slice:
    """The columns of a support.

    Raises:
        BackendError: an id is not in 0 to V-1.
    """
    if support is None:
        return slice(None)
    columns = np.asarray(support, dtype=np.intp).reshape(-1)
    if columns.size and not (columns.min() >= 0 and columns.max() < vocabulary_size):
        raise BackendError(f"a token of the support is not in 0 to {vocabulary_size - 1}")
    return columns
