"""The base of backends that hold the model in this process, with a key-value stream for each prompt."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from dpfewshot.backends.streams.block import StreamBlock
from dpfewshot.backends.streams.pools import StreamPools
from dpfewshot.backends.streams.protocol import Tally
from dpfewshot.backends.streams.turns import Turns
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dpfewshot.backends.protocol import Logprobs, Tokens
    from dpfewshot.backends.streams.protocol import Streams

PUBLIC_PROMPTS = 4
"""How many public prompts keep their streams; further ones are evaluated afresh for every token."""


class Use(Enum):
    """The prompts that a backend's pools evaluate; each kind has pools of its own."""

    PUBLIC = "public prompts"
    WHOLE = "private prompts of one token"
    STEPS = "private prompts that take steps"


class StreamModel(Protocol):
    """A loaded model and its tokenizer."""

    @property
    def vocabulary_size(self) -> int:
        """V."""
        ...

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens with which the model ends a text."""
        ...

    @property
    def bos(self) -> int | None:
        """The beginning-of-sequence token, if the model wants one in front of every prompt."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens stay text."""
        ...

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`."""
        ...

    def chat_text(self, contents: Sequence[str]) -> str:
        """Return a conversation in the model's own template; see `ChatBackend`."""
        ...

    def chat_tokens(self, text: str) -> list[int]:
        """Return the token ids of a public text, with special tokens parsed."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class StreamBackend(ABC):
    """A `BlockBackend` over a `StreamModel`: checks prompts, assigns streams, serialises calls, and closes.

    Args:
        model: the model.
        context_tokens: the longest prompt, including the tokens that a block adds to it.
        kept_prompts: how many private prompts of a block keep their streams from token to token.
        decode_batch: streams that take a step together, one of them a dummy: 1, or a multiple of 8.
        lanes: how many private prompts of one token are evaluated at the same time, each in a pool of its
            own. With one lane they share the pools of public prompts.

    Attributes:
        context_tokens: the argument.
        kept_prompts: the argument. A plan that decides M keeps within it.
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
        self.context_tokens = context_tokens
        self._model = model
        self.kept_prompts = kept_prompts
        self._decode_batch = decode_batch
        self._lanes = lanes
        self._tally = Tally()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._calls = 0
        self._closing = False
        self._pools: dict[Use, StreamPools] = {}
        self._turns = Turns()
        self._close = weakref.finalize(self, _free, self._pools, model, self._process)

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self._model.vocabulary_size

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends a text, a turn or a message."""
        return self._model.end_token_ids

    @property
    def tokens_evaluated(self) -> int:
        """Tokens of prefixes and prompts evaluated so far, without dummies.

        Depends on the lengths of private texts: for the operator alone, never to be published.
        """
        return self._tally.tokens

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
        """Return a conversation in the model's own template; see `ChatBackend`."""
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
        """Open a block of the prompts `prefix + suffix`; see `BlockBackend`.

        The prefix is evaluated once and kept while it is in use. Several blocks may be open at once. A
        private one of several tokens waits until those that other threads opened or asked for before it are
        closed, or not asked for `turns.PATIENCE`. In a public block of one token, a prompt that begins with
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
        if os.getpid() != self._process:
            return
        with self._lock:
            self._closing = True
            self._free_if_idle()

    def _free_if_idle(self) -> None:
        if self._closing and not self._calls:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Hold the lock of an open backend, in the process that made it."""
        kind = type(self).__name__
        if os.getpid() != self._process:
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
                partial(self._open_streams, lanes=lanes),
                groups=kept[use],
                group_size=size,
                groups_of_a_pool=self._groups_of_a_pool(size),
                filler=self._model.bos or 0,
                lanes=lanes,
            )
        return pools

    @abstractmethod
    def _open_streams(self, *, streams: int, lanes: int) -> Streams:
        """Return this many empty streams of at least `context_tokens` cells, for one of some lanes."""

    @abstractmethod
    def _log_softmax(self, logits: Any, columns: NDArray[np.intp] | slice) -> NDArray[np.floating]:
        """Return the log-probabilities of some columns, from the logits of one prompt."""

    def _groups_of_a_pool(self, size: int) -> int:
        """Return how many groups of this size one pool can have."""
        del size
        return sys.maxsize


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


def _free(pools: dict[Use, StreamPools], model: StreamModel, process: int) -> None:
    # A forked child shares the parent's library state and must not tear it down.
    if os.getpid() != process:
        return
    for each in pools.values():
        each.close()
    model.close()
