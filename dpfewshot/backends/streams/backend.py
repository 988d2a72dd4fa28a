"""What backends have in common that hold the model and a key-value stream for each prompt in this process."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from dpfewshot.backends.streams.block import StreamBlock
from dpfewshot.backends.streams.pools import StreamPools
from dpfewshot.backends.streams.protocol import Tally
from dpfewshot.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dpfewshot.backends.protocol import Logprobs, Tokens
    from dpfewshot.backends.streams.protocol import Streams

PUBLIC_PROMPTS = 4
"""Public prompts whose streams are kept; more are evaluated afresh for every token."""


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
        """The token in front of every prompt, if the model wants one."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`: nothing added, special tokens stay text."""
        ...

    def detokenize(self, tokens: Tokens) -> str:
        """The text of `tokens`."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class StreamBackend(ABC):
    """A `BlockBackend` over a `StreamModel`: checks prompts, hands out streams, takes turns, closes.

    Args:
        model: the model.
        context_tokens: the longest prompt, with the tokens that a block adds to it.
        kept_prompts: private prompts of a block whose streams are kept from token to token.
        decode_batch: streams that take a step together, one of them a dummy: 1, or a multiple of 8.

    Attributes:
        context_tokens: as above.
    """

    def __init__(
        self, model: StreamModel, *, context_tokens: int, kept_prompts: int, decode_batch: int
    ) -> None:
        self.context_tokens = context_tokens
        self._model = model
        self._kept_prompts = kept_prompts
        self._decode_batch = decode_batch
        self._tally = Tally()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._pools: dict[bool, StreamPools] = {}
        self._close = weakref.finalize(self, _free, self._pools, model, self._process)

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self._model.vocabulary_size

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Every token with which the model ends a text, a turn or a message."""
        return self._model.end_token_ids

    @property
    def tokens_evaluated(self) -> int:
        """Tokens of prefixes and prompts evaluated so far, dummies left out.

        Depends on the lengths of private texts: for the operator alone, never published.
        """
        return self._tally.tokens

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`; none is added, and special tokens in the text stay text."""
        with self._guard():
            return self._model.tokenize(text)

    def detokenize(self, tokens: Tokens) -> str:
        """The text of `tokens`, special tokens written out, broken UTF-8 replaced.

        Raises:
            BackendError: an id is not in 0 to V-1.
        """
        with self._guard():
            if not self._are_tokens(tokens):
                raise BackendError(f"a token is not in 0 to {self.vocabulary_size - 1}")
            return self._model.detokenize(tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Log-probabilities of the next token of each prompt; see `LogprobBackend`.

        Each prompt is evaluated whole, in a call of its own. A prompt that is empty (and the model adds
        no token in front), longer than `context_tokens`, or holds an id that is none is a row of NaN,
        and so is one whose logits are not finite.
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

        The prefix is evaluated once and kept while it is used. Blocks may be open at the same time. In a
        public block of one token, a prompt that begins with the whole of an earlier one goes on from there.

        Raises:
            BackendError: `tokens` is less than 1, or the prefix leaves no room for a prompt.
        """
        with self._guard():
            start = prefix if self._model.bos is None else (self._model.bos, *prefix)
            if tokens < 1:
                raise BackendError(f"a block has at least one token, not {tokens}")
            if len(start) + tokens > self.context_tokens or not self._are_tokens(start):
                raise BackendError(
                    f"a prefix of {len(start)} tokens and {tokens} tokens to come leave no room for a prompt "
                    f"in context_tokens={self.context_tokens}, or an id of the prefix is not a token"
                )
            room = self.context_tokens - len(start) - (tokens - 1)
            return StreamBlock(
                pools=self._streams(stepping=tokens > 1 and not public),
                guard=self._guard,
                log_softmax=self._log_softmax,
                vocabulary_size=self.vocabulary_size,
                prefix=tuple(start),
                suffixes=[self._usable(suffix, room, bool(start)) for suffix in suffixes],
                tokens=tokens,
                public=public,
            )

    def close(self) -> None:
        """Free the model and its caches. Closing twice is harmless."""
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Hold the lock of a backend that is usable here."""
        kind = type(self).__name__
        if os.getpid() != self._process:
            raise BackendError(
                f"this {kind} was made in another process, and it does not survive a fork: "
                "make one in each process"
            )
        with self._lock:
            if not self._close.alive:
                raise BackendError(f"this {kind} is closed: make another")
            yield

    def _are_tokens(self, ids: Tokens) -> bool:
        return all(0 <= token < self.vocabulary_size for token in ids)

    def _usable(self, suffix: Tokens, room: int, has_prefix: bool) -> list[int] | None:
        """The suffix, or None if its prompt cannot be evaluated: a rule of that prompt alone."""
        at_least = 0 if has_prefix else 1
        if at_least <= len(suffix) <= room and self._are_tokens(suffix):
            return [int(token) for token in suffix]
        return None

    def _streams(self, *, stepping: bool) -> StreamPools:
        """The streams of private blocks that take steps, or those of all else; made when first needed."""
        pools = self._pools.get(stepping)
        if pools is None or pools.failed:
            if pools is not None:
                pools.close()
            size = self._decode_batch if stepping else 1
            pools = self._pools[stepping] = StreamPools(
                self._open_streams,
                groups=-(-self._kept_prompts // max(1, size - 1)) if stepping else PUBLIC_PROMPTS,
                group_size=size,
                groups_of_a_pool=self._groups_of_a_pool(size),
                filler=self._model.bos or 0,
            )
        return pools

    @abstractmethod
    def _open_streams(self, *, streams: int) -> Streams:
        """So many streams of `context_tokens` cells at least, all empty."""

    @abstractmethod
    def _log_softmax(self, logits: Any, columns: NDArray[np.intp] | slice) -> NDArray[np.floating]:
        """Log-probabilities of some columns, from the logits of one prompt."""

    def _groups_of_a_pool(self, size: int) -> int:
        """How many groups of so many streams can be had at once."""
        del size
        return sys.maxsize


def check_settings(context_tokens: int, kept_prompts: int, decode_batch: int) -> None:
    """Refuse settings that no model could honour.

    Raises:
        BackendError: says which.
    """
    if context_tokens < 1:
        raise BackendError(f"context_tokens={context_tokens}: a prompt has at least one token")
    if kept_prompts < 0:
        raise BackendError(f"kept_prompts={kept_prompts}: not a number of prompts")
    # Kernels take rows by fours and eights, and a remainder by other code with other rounding.
    if decode_batch < 1 or (decode_batch > 1 and decode_batch % 8):
        raise BackendError(f"decode_batch={decode_batch}: 1 or a multiple of 8")


def _free(pools: dict[bool, StreamPools], model: StreamModel, process: int) -> None:
    # A child that was forked shares the parent's library state: it must not tear that down.
    if os.getpid() != process:
        return
    for each in pools.values():
        each.close()
    model.close()
