"""Pools of key-value streams: which prompt is evaluated in which stream, and in which calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias

from dpfewshot.backends.protocol import Tokens

Logits: TypeAlias = Any
"""Unnormalised log-probabilities of the next token, shape (V,): an array or a tensor, which may be a view
that the next call overwrites."""

EMPTY = 0
"""A stream that is never written to: a copy of it is an empty cache of zeros."""

PREFIXES = (1, 2, 3, 4)
"""Streams of the public prefixes used last: labels that are generated at the same time have one each."""

FULL_DUMMY = 5
"""A full stream of public tokens, copied to the streams of a group that hold no prompt."""

RESERVED = 6
"""The number of streams before the first group."""


class Streams(Protocol):
    """One key-value stream for each of many sequences."""

    cells: int
    """Tokens that a stream holds."""

    failed: bool
    """Whether an evaluation failed. The caches are then in doubt: nothing may be read from them."""

    def copy(self, source: int, target: int) -> None:
        """Make the stream `target` a complete copy of the stream `source`."""

    def extend(self, stream: int, start: int, tokens: Tokens) -> Logits:
        """Evaluate tokens of one stream in a call of their own, and return the logits after the last.

        `start` is the position of the first token, of which there is at least one. The stream holds as many
        tokens, or more, which are dropped.
        """

    def step(self, first: int, tokens: Sequence[int], positions: Sequence[int], active: int) -> list[Logits]:
        """Evaluate one token in each of the streams `first`, `first` + 1, ... in one call of a fixed shape.

        Tokens from a position on are dropped first, as in `extend`. Return the logits of the first `active`
        streams; the others hold dummies.
        """

    def close(self) -> None:
        """Free the memory."""


StreamGroup: TypeAlias = range
"""Neighbouring streams that take a step together. One stays a dummy, except in a group of one."""


class Prefix(NamedTuple):
    """An evaluated public prefix: its stream, its number of tokens, and the logits after them, if any."""

    stream: int
    length: int
    logits: Logits


@dataclass
class PromptBatch:
    """Prompts that are evaluated together, each in one of the first streams of a group.

    Attributes:
        prompts: each prompt's row of the answer, and its token ids after the prefix.
        group: the streams that keep the prompts. With None, every evaluation starts afresh in the pool's
            spare group, in calls of the same shapes and therefore with the same bits.
        evaluated: released tokens in the kept streams; None until the prompts are evaluated.
        sequential: whether the prompts are public and asked for one token, so that one may continue another.
    """

    prompts: Sequence[tuple[int, Tokens]]
    group: StreamGroup | None
    evaluated: int | None = None
    sequential: bool = False


class StreamPool:
    """Groups of streams, and the calls that evaluate prompts in them.

    A prompt starts as a copy of the prefix's stream, is evaluated in a decode call of its own, and then
    takes one-token steps with its group. Two rules give every step the same shape, whatever the prompts:

    - Every stream of the group takes part; streams without a prompt are dummies.
    - At least one stream is a dummy, and dummies are full. llama.cpp attends over as many cells as the
      fullest stream of the call needs, which would otherwise be the longest neighbour's length.

    Dummies are copies of one public stream and are rewound after each step.

    Args:
        open_streams: returns so many streams, all empty.
        groups: groups that keep prompts. One more, the `spare`, is for prompts that are not kept.
        group_size: streams of a group; 1 steps each prompt alone, without dummies.
        filler: the token of dummies.

    Attributes:
        capacity: the prompts that a group holds.
        in_use: held while prompts are evaluated. After an interrupt a lane may still be at work.
    """

    def __init__(
        self, open_streams: Callable[[int], Streams], *, groups: int, group_size: int, filler: int
    ) -> None:
        self.in_use = Lock()
        self.closed = False
        self._filler = filler
        self.capacity = max(1, group_size - 1)
        end = RESERVED + (groups + 1) * group_size
        self.spare, *self.groups = [
            range(first, first + group_size) for first in range(RESERVED, end, group_size)
        ]
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._has_full_dummy = False
        self._streams = open_streams(end)

    @property
    def failed(self) -> bool:
        """Whether the caches are lost and the pool must be replaced."""
        return self._streams.failed

    def close(self) -> None:
        """Free the streams."""
        self.closed = True
        self._streams.close()

    def evaluate(
        self, prefix: tuple[int, ...], batch: PromptBatch, released: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Logits]]:
        """Yield the row and logits of `prefix + suffix + released` for each prompt of a batch.

        Read the logits before asking for the next.

        Args:
            batch: at most `capacity` prompts, or any number of sequential ones. Each fits a stream.
            released: for each step, the token id that follows each prompt, by row.
        """
        group = batch.group or self.spare
        if batch.sequential:
            yield from self._load_sequentially(self._prefix(prefix), batch)
            return
        if not released:
            yield from self._load(self._prefix(prefix), batch, group)
            return
        if batch.group is None or batch.evaluated is None:
            for _ in self._load(self._prefix(prefix), batch, group):
                pass
            batch.evaluated = 0
        # A repeated question without a further token takes the last step again, with the same bits.
        first = min(batch.evaluated, len(released) - 1)
        active = len(batch.prompts)
        dummies = len(group) - active
        if not batch.evaluated:
            self._fill_with_dummies(group, active)
        answers: list[Logits] = []
        for done in range(first, len(released)):
            tokens = [released[done][row] for row, _ in batch.prompts] + [self._filler] * dummies
            positions = [len(prefix) + len(suffix) + done for _, suffix in batch.prompts]
            positions += [self._streams.cells - 1] * dummies
            answers = self._streams.step(group[0], tokens, positions, active)
        batch.evaluated = len(released)
        yield from zip((row for row, _ in batch.prompts), answers, strict=True)

    def keep(self, batch: PromptBatch, rows: Mapping[int, int]) -> None:
        """Go on with the prompts of these rows, each with its new one, in the first streams of the group."""
        places = [place for place, (row, _) in enumerate(batch.prompts) if row in rows]
        if batch.group is not None:
            for stream, place in zip(batch.group, places, strict=False):
                if batch.group[place] != stream:
                    self._streams.copy(batch.group[place], stream)
            batch.group = batch.group[: len(places)]
        batch.prompts = [(rows[row], suffix) for row, suffix in map(batch.prompts.__getitem__, places)]

    def _load_sequentially(self, start: Prefix, batch: PromptBatch) -> Iterator[tuple[int, Logits]]:
        """Evaluate public prompts one after the other in one stream.

        A prompt that begins with the whole of an earlier one continues it: a text is evaluated once for all
        the labels that may follow it. A beginning shared by chance is not reused, so a prompt's bits depend
        only on the prompt it was made to continue.
        """
        stream = self.spare[0]
        shared: tuple[int, ...] = ()
        self._streams.copy(start.stream, stream)
        for row, suffix in batch.prompts:
            if not suffix:
                yield row, start.logits
                continue
            if len(suffix) <= len(shared) or tuple(suffix[: len(shared)]) != shared:
                shared = ()
            yield row, self._streams.extend(stream, start.length + len(shared), suffix[len(shared) :])
            shared = shared or tuple(suffix)

    def _load(self, start: Prefix, batch: PromptBatch, group: StreamGroup) -> Iterator[tuple[int, Logits]]:
        """Evaluate each prompt in a decode call of its own, after a copy of the prefix."""
        batch.evaluated = None  # until all are evaluated, which an interrupt may prevent
        for stream, (row, suffix) in zip(group, batch.prompts, strict=False):
            self._streams.copy(start.stream, stream)
            yield row, self._streams.extend(stream, start.length, suffix) if suffix else start.logits
        batch.evaluated = 0

    def _fill_with_dummies(self, group: StreamGroup, active: int) -> None:
        """Overwrite the streams after the first `active` with full dummies."""
        if len(group) == active:
            return
        if not self._has_full_dummy:
            self._streams.extend(FULL_DUMMY, 0, [self._filler] * (self._streams.cells - 1))
            self._has_full_dummy = True
        for stream in group[active:]:
            self._streams.copy(FULL_DUMMY, stream)

    def _prefix(self, tokens: tuple[int, ...]) -> Prefix:
        """Return the prefix, evaluated unless it is one of those used last."""
        if not tokens:
            return Prefix(EMPTY, 0, None)
        known = self._prefixes.pop(tokens, None)
        if known is None:
            if len(self._prefixes) == len(PREFIXES):
                self._prefixes.pop(next(iter(self._prefixes)))
            stream = min(set(PREFIXES) - {prefix.stream for prefix in self._prefixes.values()})
            self._streams.copy(EMPTY, stream)
            logits = copy(self._streams.extend(stream, 0, tokens))  # llama.cpp's are a view
            known = Prefix(stream, len(tokens), logits)
        self._prefixes[tokens] = known
        return known


Place: TypeAlias = tuple[StreamPool, StreamGroup]
"""A group of streams and the pool it belongs to."""


class StreamPools:
    """Pools of equal size, so that a prompt has the same bits in each: lanes, or more streams than one holds.

    Args:
        open_pool: makes a pool with so many groups that keep prompts.
        groups: the least number of such groups in all.
        groups_of_a_pool: the most in one pool.
        lanes: how many pools evaluate prompts that have no place, in their spare groups at the same time.

    Attributes:
        free: the places that no block holds.
    """

    def __init__(
        self, open_pool: Callable[[int], StreamPool], *, groups: int, groups_of_a_pool: int, lanes: int
    ) -> None:
        count = max(lanes, -(-groups // groups_of_a_pool))
        self._pools: list[StreamPool] = []
        try:
            for _ in range(count):
                self._pools.append(open_pool(-(-groups // count)))
        except BaseException:
            self.close()
            raise
        self.lanes = self._pools[:lanes]
        self.free: deque[Place] = deque((pool, group) for pool in self._pools for group in pool.groups)

    @property
    def failed(self) -> bool:
        """Whether caches are lost and the pools must be replaced."""
        return any(pool.failed for pool in self._pools)

    def take(self, wanted: int, places: list[Place]) -> None:
        """Move up to `wanted` of the free places to a list."""
        for _ in range(min(wanted, len(self.free))):
            places.append(self.free.popleft())  # noqa: PERF401 - one by one: an interrupt loses none

    def close(self) -> None:
        """Free the memory."""
        for pool in self._pools:
            with pool.in_use:
                pool.close()


def groups_within(streams: int, group_size: int) -> int:
    """Return how many groups fit beside the reserved streams and the spare group; below 1 if none does."""
    return (streams - RESERVED) // group_size - 1
