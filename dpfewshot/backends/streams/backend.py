"""The base of backends that hold the model in this process, with a key-value stream for each prompt."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.backends.streams.pool import (
    Logits,
    Place,
    PromptBatch,
    StreamPool,
    StreamPools,
    Streams,
    TokenCounts,
)
from dpfewshot.backends.streams.threads import Turn, Turns, side_by_side
from dpfewshot.errors import BackendError
from dpfewshot.runtime.forking import start_afresh_in_children

PUBLIC_PROMPTS = 4
"""How many public prompts keep their streams; further ones are evaluated afresh for every token."""

Columns: TypeAlias = NDArray[np.intp] | slice
"""Tokens of the vocabulary."""

RowLogSoftmax: TypeAlias = Callable[[Logits, Columns], NDArray[np.floating]]
"""Turns the logits of one prompt into the log-probabilities of some columns."""


class Use(Enum):
    """The prompts that a backend's pools evaluate; each kind has pools of its own."""

    PUBLIC = "public prompts"
    WHOLE = "private prompts of one token"
    STEPS = "private prompts that take steps"


class StreamModel(Protocol):
    """A loaded model and its tokenizer; its methods are those of `LogprobBackend`.

    Attributes:
        vocabulary_size: V.
        end_token_ids: the tokens with which the model ends a text.
        bos: the beginning-of-sequence token, if the model wants one in front of every prompt.
    """

    vocabulary_size: int
    end_token_ids: frozenset[int]
    bos: int | None

    def tokenize(self, text: str) -> list[int]: ...  # noqa: D102 - see above
    def detokenize(self, tokens: Tokens) -> str: ...  # noqa: D102
    def chat_text(self, contents: Sequence[str]) -> str: ...  # noqa: D102
    def chat_tokens(self, text: str) -> list[int]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class StreamBackend(LogprobBackend):
    """A backend over a `StreamModel`: checks prompts, assigns streams, serialises calls, and closes.

    Args:
        model: the model.
        context_tokens: the longest prompt, including the tokens that a block adds to it.
        kept_prompts: how many private prompts of a block keep their streams from token to token.
        decode_batch: streams that take a step together, one of them a dummy: 1, or a multiple of 8.
        lanes: how many private prompts of one token are evaluated at the same time, each in a pool of its
            own. With one lane they share the pools of public prompts.
    """

    def __init__(
        self,
        model: StreamModel,
        *,
        context_tokens: int,
        kept_prompts: int,
        decode_batch: int,
        lanes: int = 1,
    ) -> None:
        self.vocabulary_size = model.vocabulary_size
        self.end_token_ids = model.end_token_ids
        self.context_tokens: int = context_tokens
        self.kept_prompts: int = kept_prompts
        self._model = model
        self._decode_batch = decode_batch
        self._lanes = lanes
        self._counts = TokenCounts()
        self._lock = threading.RLock()
        self._forked = False
        self._calls = 0
        self._closing = False
        self._pools: dict[Use, StreamPools] = {}
        self._turns = Turns()
        self._close = weakref.finalize(self, _free, self._pools, model)
        start_afresh_in_children(self)

    @property
    def tokens_evaluated(self) -> int:
        """Tokens of prefixes and prompts evaluated so far, without dummies.

        Depends on the lengths of private texts: for the operator alone, never to be published.
        """
        return self._counts.tokens

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens stay text."""
        with self._guard():
            return self._model.tokenize(text)

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`: special tokens are spelled out, broken UTF-8 is replaced.

        Raises:
            BackendError: a token id is not in 0 to V-1.
        """
        with self._guard():
            if not self._are_tokens(tokens):
                raise BackendError(f"a token is not in 0 to {self.vocabulary_size - 1}")
            return self._model.detokenize(tokens)

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation in the model's own template; see `LogprobBackend.chat_text`."""
        with self._guard():
            bos = "" if self._model.bos is None else self._model.detokenize([self._model.bos])
            return self._model.chat_text(contents).removeprefix(bos)

    def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text: special tokens are parsed, and nothing is added."""
        with self._guard():
            return self._model.chat_tokens(text)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token; see `LogprobBackend`.

        Each prompt is evaluated whole, in a call of its own. A prompt gives a row of NaN if it is empty (and
        the model adds no token in front), is longer than `context_tokens`, holds an invalid token id, or has
        logits that are NaN or +inf.
        """
        block = self.open_block((), prompts, 1)
        try:
            return block.next_token_logprobs(support)
        finally:
            block.close()

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> StreamBlock:
        """Open a block of the prompts `prefix + suffix`; see `LogprobBackend.open_block`.

        The prefix is evaluated once and kept while it is in use. Several blocks may be open at once. A
        private one of several tokens waits until those that other threads opened or asked for before it are
        closed, or not asked for `threads.PATIENCE`. In a public block of one token, a prompt that begins with
        the whole of an earlier one continues it.

        Raises:
            BackendError: `tokens` is below 1, or the prefix leaves no room for a prompt.
        """
        with self._guard():
            start = prefix if self._model.bos is None else (self._model.bos, *prefix)
            if tokens < 1:
                raise BackendError(f"tokens={tokens}: a block has at least one token")
            if len(start) + tokens > self.context_tokens or not self._are_tokens(start):
                raise BackendError(
                    f"a prefix of {len(start)} tokens and {tokens} further tokens leave no room for a prompt "
                    f"in context_tokens={self.context_tokens}, or the prefix holds an invalid token id"
                )
        use = Use.PUBLIC if public else Use.WHOLE if tokens == 1 else Use.STEPS
        room = self.context_tokens - len(start) - (tokens - 1)
        turn = self._turns.take() if use is Use.STEPS else None
        try:
            with self._guard():
                return StreamBlock(
                    pools=self._streams(use if use is not Use.WHOLE or self._lanes > 1 else Use.PUBLIC),
                    guard=self._guard,
                    log_softmax=self._log_softmax,
                    vocabulary_size=self.vocabulary_size,
                    prefix=tuple(start),
                    suffixes=[self._usable(suffix, room, bool(start)) for suffix in suffixes],
                    tokens=tokens,
                    public=public,
                    turn=turn,
                )
        except BaseException:
            if turn is not None:
                turn.end()
            raise

    def close(self) -> None:
        """Free the model and its caches. A second call does nothing.

        From within a call of this backend, as a signal's handler makes it, the end of that call frees them. A
        forked child frees nothing: they are its parent's.
        """
        if self._forked:
            return
        with self._lock:
            self._closing = True
            self._free_if_idle()

    def after_fork(self) -> None:
        """Refuse all calls, and free nothing: the child shares its parent's library state."""
        self._forked = True
        self._close.detach()

    def _free_if_idle(self) -> None:
        if self._closing and not self._calls:
            self._close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Hold the lock of an open backend, in the process that made it."""
        kind = type(self).__name__
        if self._forked:
            raise BackendError(
                f"this {kind} was made in another process and does not survive a fork: "
                "make one in each process"
            )
        with self._lock:
            if self._closing or not self._close.alive:
                raise BackendError(f"this {kind} is closed: make another")
            self._calls += 1
            try:
                yield
            finally:
                self._calls -= 1
                self._free_if_idle()

    def _are_tokens(self, ids: Tokens) -> bool:
        return all(0 <= token < self.vocabulary_size for token in ids)

    def _usable(self, suffix: Tokens, room: int, has_prefix: bool) -> list[int] | None:
        """Return the suffix, or None if its prompt cannot be evaluated: a rule of that prompt alone."""
        at_least = 0 if has_prefix else 1
        if at_least <= len(suffix) <= room and self._are_tokens(suffix):
            return [int(token) for token in suffix]
        return None

    def _streams(self, use: Use) -> StreamPools:
        """Return the pools of one kind of prompts, made on first use."""
        pools = self._pools.get(use)
        if pools is None or pools.failed:
            if pools is not None:
                pools.close()
            size = self._decode_batch if use is Use.STEPS else 1
            kept = {
                Use.PUBLIC: PUBLIC_PROMPTS,
                Use.WHOLE: 0,
                Use.STEPS: -(-self.kept_prompts // max(1, size - 1)),
            }
            lanes = self._lanes if use is Use.WHOLE else 1
            pools = self._pools[use] = StreamPools(
                lambda streams: self._open_streams(streams, lanes),
                groups=kept[use],
                group_size=size,
                groups_of_a_pool=self._groups_of_a_pool(size),
                filler=self._model.bos or 0,
                lanes=lanes,
            )
        return pools

    @abstractmethod
    def _open_streams(self, streams: int, lanes: int) -> Streams:
        """Return this many empty streams of at least `context_tokens` cells, for one of some lanes."""

    @abstractmethod
    def _log_softmax(self, logits: Logits, columns: Columns) -> NDArray[np.floating]:
        """Return the log-probabilities of some columns, from the logits of one prompt."""

    def _groups_of_a_pool(self, size: int) -> int:
        """Return how many groups of this size one pool can have."""
        del size
        return sys.maxsize


class StreamBlock:
    """The block of a `StreamBackend`.

    Prompts without a free place are evaluated afresh for every token, in waves, with the same bits: the
    number of prompts changes the time, but no answer and no limit.

    Args:
        pools: the streams.
        guard: entered by every call: holds the backend's lock, and refuses a closed backend.
        log_softmax: turns logits into log-probabilities.
        vocabulary_size: V.
        prefix, suffixes, tokens, public: as of `open_block`; None for a prompt that cannot be evaluated.
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
        turn: Turn | None,
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
        capacity = max(1, len(usable)) if sequential else pools.lanes[0].capacity
        chunks = [usable[start : start + capacity] for start in range(0, len(usable), capacity)]
        places: list[Place] = []
        self._turn = turn
        self._close = weakref.finalize(self, _give_back, pools, places, turn)
        if tokens > 1:
            pools.take(len(chunks), places)  # which the finalizer owns: an interrupt loses none
        kept = zip(places, chunks[: len(places)], strict=True)
        self._kept = [(pool, PromptBatch(chunk, group)) for (pool, group), chunk in kept]
        self._waves = [PromptBatch(each, None, sequential=sequential) for each in chunks[len(places) :]]

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token; see `LogprobBackend`.

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


def check_settings(context_tokens: int, kept_prompts: int, decode_batch: int) -> None:
    """Refuse settings that no model can honour.

    Raises:
        BackendError: names the setting and its range.
    """
    if context_tokens < 1:
        raise BackendError(f"context_tokens={context_tokens}: at least 1")
    if kept_prompts < 0:
        raise BackendError(f"kept_prompts={kept_prompts}: at least 0")
    # Kernels process rows by fours and eights, and a remainder in other code that rounds differently.
    if decode_batch < 1 or (decode_batch > 1 and decode_batch % 8):
        raise BackendError(f"decode_batch={decode_batch}: 1 or a multiple of 8")


def support_columns(support: Tokens | None, vocabulary_size: int) -> Columns:
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


def _give_back(pools: StreamPools, places: Sequence[Place], turn: Turn | None) -> None:
    pools.free.extend(places)
    if turn is not None:
        turn.end()


def _free(pools: dict[Use, StreamPools], model: StreamModel) -> None:
    for each in pools.values():
        each.close()
    model.close()
