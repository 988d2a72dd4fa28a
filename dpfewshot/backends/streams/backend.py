"""The base of backends that hold the model in this process, with a key-value stream for each prompt."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from enum import Enum
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends import conformance
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens
from dpfewshot.backends.streams.pool import (
    Logits,
    Place,
    PromptBatch,
    StreamPool,
    StreamPools,
    Streams,
    groups_within,
)
from dpfewshot.backends.streams.threads import Turn, Turns, side_by_side
from dpfewshot.errors import BackendError
from dpfewshot.runtime.forking import start_afresh_in_children

PUBLIC_PROMPTS = 4
"""How many public prompts keep their streams; further ones are evaluated afresh for every token."""

PUBLIC_STEPPING = 30
"""How many public prompts that take steps keep theirs: a classifier asks for so many at once."""

LONGEST, STRIDE = 5, 3
"""Tokens of the longest suffix when steps are checked, and how far neighbours differ in length.

The shape of a step, one token per prompt, does not depend on the suffixes."""

STEPS = 3
"""How many released tokens continue the prompts when steps are checked."""

Columns: TypeAlias = NDArray[np.intp] | slice
"""Tokens of the vocabulary."""


class Use(Enum):
    """The prompts that a backend's pools evaluate; each kind has pools of its own."""

    PUBLIC = "public prompts, one after another"
    PUBLIC_STEPS = "public prompts that take steps"
    WHOLE = "private prompts of one token"
    STEPS = "private prompts that take steps"


class StreamModel(Protocol):
    """A loaded model and its tokenizer; what is not described here is as of `LogprobBackend`.

    Attributes:
        bos: the beginning-of-sequence token, if the model wants one in front of every prompt.
        longest: the longest prompt that the model attends to, in tokens; None if it does not say.
        most_streams: the most streams that it can open at once.
    """

    vocabulary_size: int
    end_token_ids: frozenset[int]
    bos: int | None
    longest: int | None
    most_streams: int

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of a text, which is public if special tokens are parsed."""

    def detokenize(self, tokens: Tokens) -> str: ...  # noqa: D102 - see above
    def chat_text(self, contents: Sequence[str]) -> str: ...  # noqa: D102

    def open_streams(self, streams: int, tokens: int, lanes: int) -> Streams:
        """Return empty streams of at least this many tokens, for one of some lanes."""

    def log_softmax(self, logits: Logits, columns: Columns) -> NDArray[np.floating]:
        """Return the log-probabilities of some columns, from the logits of one prompt."""

    def close(self) -> None:
        """Free the memory."""


Model = TypeVar("Model", bound=StreamModel)


class StreamBackend(LogprobBackend, Generic[Model]):
    """A backend over a `StreamModel`: checks prompts, assigns streams, serialises calls, and closes.

    Args:
        context_tokens, kept_prompts, decode_batch: see `LlamaCpp`.
        lanes: how many private prompts of one token are evaluated at the same time, each in a pool of its
            own. With one lane they share the pools of public prompts.
    """

    def __init__(
        self, model: Model, *, context_tokens: int, kept_prompts: int, decode_batch: int, lanes: int = 1
    ) -> None:
        self.vocabulary_size = model.vocabulary_size
        self.end_token_ids = model.end_token_ids
        self.context_tokens: int = context_tokens
        self.kept_prompts: int = kept_prompts
        self._model = model
        self._decode_batch = decode_batch
        self._lanes = lanes
        self._lock = threading.RLock()
        self._forked = False
        self._calls = 0
        self._closing = False
        self._pools: dict[Use, StreamPools] = {}
        self._checked = {Use.PUBLIC, Use.PUBLIC_STEPS}  # which need no check
        self._checking = threading.RLock()  # not the backend's: other threads' blocks go on meanwhile
        self._turns = {Use.PUBLIC_STEPS: Turns(), Use.STEPS: Turns()}
        self._close = weakref.finalize(self, _free, self._pools, model)
        start_afresh_in_children(self)
        try:
            self._check_limits()
            self._settle()
        except BaseException:
            self.close()
            raise

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`: nothing is added, and special tokens stay text."""
        with self._guard():
            return self._model.tokenize(text, special=False)

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`: special tokens are spelled out, broken UTF-8 is replaced."""
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
        """Return the token ids of a public text; see `LogprobBackend.chat_tokens`."""
        with self._guard():
            return self._model.tokenize(text, special=True)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token; see `LogprobBackend`.

        Each prompt is evaluated whole, in a call of its own. A prompt gives a row of NaN if it is empty (and
        the model adds no token in front), is longer than `context_tokens`, holds an invalid token id, or has
        logits that are NaN or +inf.
        """
        with closing(self.open_block((), prompts, 1)) as block:
            return block.next_token_logprobs(support)

    def prepare(self, tokens: int) -> None:
        """Open the streams of private blocks of so many tokens, checked; see `LogprobBackend.prepare`."""
        use = self._use(0, tokens, public=False)
        self._check_before(use)
        with self._guard():
            self._streams(use)

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> StreamBlock:
        """Open a block of the prompts `prefix + suffix`; see `LogprobBackend.open_block`.

        The prefix is evaluated once and kept while it is in use. Several blocks may be open at once. One of
        several tokens, unless it has a single public prompt, waits until those that other threads opened or
        asked for before it are closed, or not asked for `threads.PATIENCE`. In a public block of one token, a
        prompt that begins with the whole of an earlier one continues it. One of several tokens takes steps
        without dummies, in which the last bits of an answer may depend on the other prompts.
        """
        self._check_before(self._use(len(suffixes), tokens, public=public))
        return self.open_unchecked(prefix, suffixes, tokens, public=public)

    def open_unchecked(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> StreamBlock:
        """Open a block of prompts of a kind that is checked, or for its check."""
        with self._guard():
            start = prefix if self._model.bos is None else (self._model.bos, *prefix)
            if tokens < 1:
                raise BackendError(f"tokens={tokens}: a block has at least one token")
            if len(start) + tokens > self.context_tokens or not self._are_tokens(start):
                raise BackendError(
                    f"a prefix of {len(start)} tokens and {tokens} further tokens leave no room for a prompt "
                    f"in context_tokens={self.context_tokens}, or the prefix holds an invalid token id"
                )
        use = self._use(len(suffixes), tokens, public=public)
        room = self.context_tokens - len(start) - (tokens - 1)
        turns = self._turns.get(use)
        turn = Turn(self._turns[Use.STEPS]) if turns is None else turns.take()
        try:
            with self._guard():
                return StreamBlock(
                    self._model,
                    self._streams(use),
                    self._guard,
                    prefix=tuple(start),
                    suffixes=[self._usable(suffix, room, bool(start)) for suffix in suffixes],
                    tokens=tokens,
                    public=public,
                    turn=turn,
                )
        except BaseException:
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
        self._checking = threading.RLock()
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

    @abstractmethod
    def _settle(self) -> None:
        """Check the loaded model, and choose how prompts take their steps."""

    def _check_limits(self) -> None:
        longest = self._model.longest
        if longest is not None and self.context_tokens > longest:
            raise BackendError(
                f"context_tokens={self.context_tokens}: at most {longest}, the tokens that it attends to"
            )
        if groups_within(self._model.most_streams, self._decode_batch) < 1:
            raise BackendError(
                f"decode_batch={self._decode_batch} needs more streams than there can be: lower it"
            )

    def _are_tokens(self, ids: Tokens) -> bool:
        return all(0 <= token < self.vocabulary_size for token in ids)

    def _usable(self, suffix: Tokens, room: int, has_prefix: bool) -> list[int] | None:
        """Return the suffix, or None if its prompt cannot be evaluated: a rule of that prompt alone."""
        fits = len(suffix) <= room and (has_prefix or len(suffix) > 0)
        return [int(token) for token in suffix] if fits and self._are_tokens(suffix) else None

    def _use(self, prompts: int, tokens: int, *, public: bool) -> Use:
        if tokens > 1:
            several = Use.PUBLIC_STEPS if prompts > 1 else Use.PUBLIC
            return several if public else Use.STEPS
        return Use.PUBLIC if public or self._lanes == 1 else Use.WHOLE

    def _check_before(self, use: Use) -> None:
        """Check how a kind of private prompts is evaluated, before the first of them."""
        if use in self._checked:
            return
        with self._checking:
            if use not in self._checked:
                self._check_use(use)
                self._checked.add(use)  # last: after an interrupt it is checked again

    def _check_use(self, use: Use) -> None:
        """Check what only some kinds of prompts need, which takes a while. Overridden where there is some."""

    def _streams(self, use: Use) -> StreamPools:
        """Return the pools of one kind of prompts, made on first use."""
        pools = self._pools.get(use)
        if pools is None or pools.failed:
            if pools is not None:
                pools.close()
            size = self._decode_batch if use in self._turns else 1
            lanes = self._lanes if use is Use.WHOLE else 1
            kept = {
                Use.PUBLIC: PUBLIC_PROMPTS,
                Use.PUBLIC_STEPS: min(PUBLIC_STEPPING, self.kept_prompts),
                Use.WHOLE: 0,
                Use.STEPS: self.kept_prompts,
            }[use]
            pools = self._pools[use] = StreamPools(
                lambda groups: StreamPool(
                    lambda streams: self._model.open_streams(streams, self.context_tokens, lanes),
                    groups=groups,
                    group_size=size,
                    filler=self._model.bos or 0,
                ),
                groups=-(-kept // max(1, size - 1)),
                groups_of_a_pool=groups_within(self._model.most_streams, size),
                lanes=lanes,
            )
        return pools

    # ---- checks of the loaded model, with pseudo-random tokens: the same public prompts on every run ------

    def _check_on_device(self) -> None:
        """Set `batch_invariant` by checks; if steps that prompts share change bits, take them one by one."""
        pair = self._random_prompts("whole", (1 + LONGEST, 1 + LONGEST + STRIDE))
        whole = conformance.check_batch_invariance(self, pair)
        self.batch_invariant = self._check_steps(released=1) and whole.passed
        if not self.batch_invariant and self._decode_batch > 1:
            self._step_one_by_one()
            self._check_on_device()

    def _check_steps(self, released: int = STEPS) -> bool:
        """Compare prompts' bits in a step of a generation, which they fill, with those in other streams."""
        prefix, suffixes, tokens = self._prompts_of_steps()
        tokens = tokens[:released]
        asked = Unchecked(self)
        return conformance.check_block_invariance(asked, prefix, suffixes, tokens, support=()).passed

    def _prompts_of_steps(self) -> tuple[list[int], list[list[int]], list[int]]:
        """Return a prefix, suffixes that fill one step, and released tokens."""
        # less a prefix, and a token in front of it
        longest = max(1, min(LONGEST, self.context_tokens - STEPS - 2))
        lengths = [1 + row * STRIDE % longest for row in range(max(3, self._decode_batch))]
        prefix, *suffixes = self._random_prompts("prompt", lengths)
        return prefix, suffixes, conformance.random_tokens("released", STEPS, self.vocabulary_size)

    def _random_prompts(self, name: str, lengths: Sequence[int]) -> list[list[int]]:
        return [
            conformance.random_tokens(f"{name} {row}", length, self.vocabulary_size)
            for row, length in enumerate(lengths)
        ]

    def _step_one_by_one(self) -> None:
        """Take each prompt's steps in calls of its own from now on, and free the groups that shared them."""
        self._close_pools(Use.STEPS)  # first: after an interrupt no group is left that shares steps
        self._decode_batch = 1

    def _close_pools(self, use: Use) -> None:
        with self._guard():
            if use in self._pools:
                self._pools.pop(use).close()


class Unchecked(LogprobBackend):
    """A backend as the checks of its private prompts ask it: without being checked."""

    def __init__(self, backend: StreamBackend[Model]) -> None:
        self.vocabulary_size = backend.vocabulary_size
        self._backend = backend

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`; see `StreamBackend`."""
        return self._backend.tokenize(text)

    def detokenize(self, tokens: Tokens) -> str:
        """Return the text of `tokens`; see `StreamBackend`."""
        return self._backend.detokenize(tokens)

    def next_token_logprobs(self, prompts: Sequence[Tokens], support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token; see `StreamBackend`."""
        with closing(self.open_block((), prompts, 1)) as block:
            return block.next_token_logprobs(support)

    def open_block(
        self, prefix: Tokens, suffixes: Sequence[Tokens], tokens: int, *, public: bool = False
    ) -> StreamBlock:
        """Open a block; see `StreamBackend`."""
        return self._backend.open_unchecked(prefix, suffixes, tokens, public=public)


class StreamBlock:
    """The block of a `StreamBackend`.

    Prompts without a free place are evaluated afresh for every token, in waves, with the same bits: the
    number of prompts changes the time, but no answer and no limit.

    Args:
        guard: entered by every call: holds the backend's lock, and refuses a closed backend.
        prefix, suffixes, tokens, public: as of `open_block`; None for a prompt that cannot be evaluated.
        turn: the block's turn, which ends with it.
    """

    def __init__(
        self,
        model: StreamModel,
        pools: StreamPools,
        guard: Callable[[], AbstractContextManager[None]],
        *,
        prefix: tuple[int, ...],
        suffixes: Sequence[Tokens | None],
        tokens: int,
        public: bool,
        turn: Turn,
    ) -> None:
        self._model = model
        self._pools = pools
        self._guard = guard
        self._prefix = prefix
        self._tokens = tokens
        self._public = public
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
        self._kept = [  # a step of public prompts needs no dummies
            (pool, PromptBatch(chunk, group[: len(chunk)] if public else group))
            for (pool, group), chunk in kept
        ]
        self._waves = [PromptBatch(each, None, sequential=sequential) for each in chunks[len(places) :]]

    def next_token_logprobs(self, support: Tokens | None = None) -> Logprobs:
        """Return the log-probabilities of each prompt's next token; see `LogprobBackend`."""
        size = self._model.vocabulary_size
        columns: Columns = slice(None)
        if support is not None:
            columns = np.asarray(support, dtype=np.intp).reshape(-1)
            if not ((columns >= 0) & (columns < size)).all():
                raise BackendError(f"a token of the support is not in 0 to {size - 1}")
        answers = np.full((self._rows, size if support is None else len(support)), np.nan, dtype=np.float32)
        with self._turn.working(), self._guard():
            self._check()
            if len(self._released) >= self._tokens:
                raise BackendError(f"the block was opened for {self._tokens} tokens: open another")

            def fill(pool: StreamPool, batch: PromptBatch) -> None:
                with pool.in_use:
                    if pool.closed:  # an interrupt left this lane behind, and the backend was closed since
                        return
                    for row, logits in pool.evaluate(self._prefix, batch, self._released):
                        answers[row] = self._model.log_softmax(logits, columns)

            for pool, batch in self._kept:
                fill(pool, batch)
            side_by_side(self._pools.lanes, self._waves, fill)
        return answers

    def append(self, token: int) -> None:
        """Continue every prompt with a released token."""
        self.append_each([token] * self._rows)

    def append_each(self, tokens: Tokens) -> None:
        """Continue each prompt with a token of its own, in the order of the suffixes."""
        with self._guard():
            self._check()
            if len(tokens) != self._rows:
                raise BackendError(f"{len(tokens)} tokens for {self._rows} prompts: give one each")
            if not all(0 <= token < self._model.vocabulary_size for token in tokens):
                raise BackendError(f"a token is not in 0 to {self._model.vocabulary_size - 1}")
            self._released.append([int(token) for token in tokens])

    def rewind(self) -> None:
        """Go back to the prompts as they were opened, whose streams still hold them."""
        with self._guard():
            self._check()
            for _, batch in self._kept:
                batch.evaluated = None if batch.evaluated is None else 0
            self._released = []  # last: an interrupt leaves no stream ahead of what is released

    def keep(self, places: Sequence[int]) -> None:
        """Go on with some of the prompts; see `PromptBlock`."""
        with self._turn.working(), self._guard():
            self._check()
            if not self._public or [*places] != sorted({*places}.intersection(range(self._rows))):
                raise BackendError("keep takes places of public prompts, ascending")
            if len(places) == self._rows:
                return
            rows = {place: row for row, place in enumerate(places)}
            for pool, batch in (*self._kept, *((self._pools.lanes[0], wave) for wave in self._waves)):
                with pool.in_use:
                    pool.keep(batch, rows)
            self._kept = [(pool, batch) for pool, batch in self._kept if batch.prompts]
            self._waves = [wave for wave in self._waves if wave.prompts]
            self._released = [[step[place] for place in places] for step in self._released]
            self._rows = len(places)

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
    """Refuse settings that no model can honour, before one is loaded."""
    if context_tokens < 1:
        raise BackendError(f"context_tokens={context_tokens}: at least 1")
    if kept_prompts < 0:
        raise BackendError(f"kept_prompts={kept_prompts}: at least 0")
    # Kernels process rows by fours and eights, and a remainder in other code that rounds differently.
    if decode_batch < 1 or (decode_batch > 1 and decode_batch % 8):
        raise BackendError(f"decode_batch={decode_batch}: 1 or a multiple of 8")


def _give_back(pools: StreamPools, places: Sequence[Place], turn: Turn) -> None:
    pools.free.extend(places)
    turn.end()


def _free(pools: dict[Use, StreamPools], model: StreamModel) -> None:
    for each in pools.values():
        each.close()
    model.close()
