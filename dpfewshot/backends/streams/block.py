"""A block of prompts that share a prefix and grow by the same released tokens."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpfewshot.backends.streams.lanes import side_by_side
from dpfewshot.backends.streams.pool import PromptBatch, StreamGroup, StreamPool
from dpfewshot.backends.streams.pools import Place, StreamPools
from dpfewshot.backends.streams.turns import Turn
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from dpfewshot.backends.protocol import Logprobs, Tokens


RowLogSoftmax: TypeAlias = "Callable[[Any, NDArray[np.intp] | slice], NDArray[np.floating]]"
"""Turns the logits of one prompt into the log-probabilities of some columns."""


class StreamBlock:
    """The block of a `StreamBackend`.

    Prompts without a free place are evaluated afresh for every token, in waves, with the same bits: the
    number of prompts changes the time, but no answer and no limit.

    Args:
        pools: the streams.
        guard: entered by every call: holds the backend's lock, and refuses a closed backend.
        log_softmax: turns logits into log-probabilities.
        vocabulary_size: V.
        prefix: public token ids that every prompt begins with.
        suffixes: the rest of each prompt; None for a prompt that cannot be evaluated.
        tokens: how many next tokens may be asked for; with one, no stream is kept.
        public: whether the prompts are public, so that one may continue another.
        turn: the block's turn, which ends with it; None if it waited for none.
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
        turn: Turn | None = None,
    ) -> None:
        self._pools = pools
        self._guard = guard
        self._log_softmax = log_softmax
        self._vocabulary_size = vocabulary_size
        self._prefix = prefix
        self._tokens = tokens
        self._rows = len(suffixes)
        self._released: list[list[int]] = []
        usable = [(row, suffix) for row, suffix in enumerate(suffixes) if suffix is not None]
        sequential = public and tokens == 1
        capacity = max(1, len(usable)) if sequential else pools.lanes[0].spare.capacity
        chunks = [usable[start : start + capacity] for start in range(0, len(usable), capacity)]
        places: list[Place] = []
        self._turn = turn
        self._close = weakref.finalize(self, _give_back, pools, places, turn)
        if tokens > 1:
            pools.take(len(chunks), places)  # which the finalizer owns: an interrupt loses none

        def batch(chunk: Sequence[tuple[int, Tokens]], group: StreamGroup | None) -> PromptBatch:
            rows, prompts = [row for row, _ in chunk], [suffix for _, suffix in chunk]
            return PromptBatch(rows, prompts, group, sequential=sequential)

        kept = zip(places, chunks[: len(places)], strict=True)
        self._kept = [(pool, batch(chunk, group)) for (pool, group), chunk in kept]
        self._waves = [batch(chunk, None) for chunk in chunks[len(places) :]]

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token.

        Args:
            support: the token ids to answer for, in this order; None for the whole vocabulary.

        Returns:
            float32 of shape (prompts, len(support) or V), in nats; a row of NaN for a prompt that
            cannot be evaluated.

        Raises:
            BackendError: the block or the backend is closed, the block has no token left, the support holds
                an invalid token id, or the evaluation failed.
        """
        columns = support_columns(support, self._vocabulary_size)
        width = self._vocabulary_size if support is None else len(support)
        answers = np.full((self._rows, width), np.nan, dtype=np.float32)
        with nullcontext() if self._turn is None else self._turn.working(), self._guard():
            self._check()
            if len(self._released) >= self._tokens:
                raise BackendError(f"the block was opened for {self._tokens} tokens: open another")

            def fill(pool: StreamPool, batch: PromptBatch) -> None:
                with pool.in_use:
                    if pool.closed:  # an interrupt left this lane behind, and the backend was closed since
                        return
                    for row, logits in pool.evaluate(self._prefix, batch, self._released):
                        answers[row] = self._log_softmax(logits, columns)

            for pool, batch in self._kept:
                fill(pool, batch)
            side_by_side(self._pools.lanes, self._waves, fill)
        return answers

    def append(self, token: int) -> None:
        """Continue every prompt with a released token.

        Raises:
            BackendError: the block is closed, or the token id is invalid.
        """
        self.append_each([token] * self._rows)

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with a token of its own, in the order of the suffixes.

        Raises:
            BackendError: the block is closed, a token id is invalid, or the number of tokens differs from
                the number of prompts.
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
        """Return the streams to the pools and drop the prompts. A second call does nothing."""
        self._close()
        self._kept, self._waves = [], []

    def _check(self) -> None:
        if not self._close.alive:
            raise BackendError("the block is closed: open another")
        if self._pools.failed:
            raise BackendError("the block's caches are lost: open it again", retryable=True)


def _give_back(pools: StreamPools, places: Sequence[Place], turn: Turn | None) -> None:
    pools.free.extend(places)
    if turn is not None:
        turn.end()


def support_columns(support: Tokens | None, vocabulary_size: int) -> NDArray[np.intp] | slice:
    """Return the columns of a support.

    Raises:
        BackendError: a token id is not in 0 to V-1.
    """
    if support is None:
        return slice(None)
    columns = np.asarray(support, dtype=np.intp).reshape(-1)
    if columns.size and not (columns.min() >= 0 and columns.max() < vocabulary_size):
        raise BackendError(f"a token of the support is not in 0 to {vocabulary_size - 1}")
    return columns
