"""Who sits in which stream: shared prefixes, groups of streams that step together, and dummies."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpfewshot.backends.protocol import Tokens
    from dpfewshot.backends.streams.protocol import Logits, StreamsOpener

BLANK = 0
"""A stream that is never written to: a copy of it is an empty cache of zeros."""

PREFIXES = (1, 2)
"""Streams that hold the public prefixes used last (a private block's and a public one's may differ)."""

RULER = 3
"""A full stream of public dummies, see `StreamPool`."""

RESERVED = 4
"""Streams before the first group."""


@dataclass(frozen=True)
class Group:
    """Neighbouring streams that take a step together: `first` to `first + size - 1`."""

    first: int
    size: int

    @property
    def seats(self) -> int:
        """Prompts that it seats: all but one, which is always a dummy; a group of one has no dummy."""
        return max(1, self.size - 1)


@dataclass(frozen=True)
class Prefix:
    """An evaluated public prefix: its stream, its length, and the logits after it (None if it is empty)."""

    stream: int
    length: int
    logits: Logits | None


@dataclass
class Cohort:
    """Prompts that are evaluated together, one in each of the first seats of a group.

    Attributes:
        rows: the row of the answer that each prompt has.
        suffixes: the token ids of each after the prefix.
        group: the streams that keep them, or None: then every evaluation starts afresh in the
            pool's spare group, with the same calls in the same shapes, hence the same bits.
        evaluated: released tokens in the kept streams; None before the prompts are.
        in_turn: whether they are public and are asked for one token, so that one may go on from another.
    """

    rows: Sequence[int]
    suffixes: Sequence[Tokens]
    group: Group | None
    evaluated: int | None = None
    in_turn: bool = False


class StreamPool:
    """Groups of streams, and the way in which prompts are evaluated in them.

    A prompt starts as a copy of the prefix's whole stream, is evaluated in a decode call of its own,
    and then takes one-token steps with the group it sits in. So that a step's computation has the
    same shape whoever sits there:

    - every stream of the group takes part, those without a prompt as dummies;
    - at least one is a dummy, and dummies are full streams: llama.cpp attends over as many cells as
      the fullest stream of the call needs, which would be a neighbour's length else.

    Dummies are copies of one public stream and are rewound after each step.

    Args:
        open_streams: makes the streams.
        groups: how many groups prompts can be kept in; one more is the spare.
        group_size: streams of a group; 1 steps each prompt alone, without dummies.
        filler: the token of dummies.

    Attributes:
        groups: those that prompts can be kept in.
        spare: the one for prompts that are not kept.
    """

    def __init__(self, open_streams: StreamsOpener, *, groups: int, group_size: int, filler: int) -> None:
        self._filler = filler
        spare, *kept = [Group(RESERVED + index * group_size, group_size) for index in range(groups + 1)]
        self.spare = spare
        self.groups = kept
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._ruled = False
        self._streams = open_streams(streams=spare.first + (groups + 1) * group_size)

    @property
    def failed(self) -> bool:
        """Whether the caches are lost, so that the pool is of no more use."""
        return self._streams.failed

    def close(self) -> None:
        """Free the context."""
        self._streams.close()

    def evaluate(
        self, prefix: tuple[int, ...], cohort: Cohort, released: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Logits]]:
        """Evaluate `prefix + suffix + released` for each prompt of a cohort.

        Args:
            prefix: public token ids that the prompts begin with.
            cohort: at most as many prompts as its group seats, or any number in turn, each with a token
                at least, all within a stream's cells.
            released: for each step, the token id that follows each prompt, by row.

        Yields:
            The row of each prompt and its logits, which must be read before the next is asked for.
        """
        group = cohort.group or self.spare
        trunk = self._prefix(prefix)
        if cohort.in_turn:
            yield from self._load_in_turn(trunk, cohort)
            return
        if not released:
            yield from self._load(trunk, cohort, group)
            return
        if cohort.group is None or cohort.evaluated is None:
            for _ in self._load(trunk, cohort, group):
                pass
            cohort.evaluated = 0
        # Asked again without a further token, the last step is taken again, with the same bits.
        start = min(cohort.evaluated, len(released) - 1)
        lengths = [trunk.length + len(suffix) for suffix in cohort.suffixes]
        if not cohort.evaluated:
            self._fill_with_dummies(group, len(lengths))
        answers: list[Logits] = []
        for done in range(start, len(released)):
            tokens = [released[done][row] for row in cohort.rows]
            answers = self._step(group, tokens, [length + done for length in lengths])
        cohort.evaluated = len(released)
        yield from zip(cohort.rows, answers, strict=True)

    def _load_in_turn(self, trunk: Prefix, cohort: Cohort) -> Iterator[tuple[int, Logits]]:
        """Evaluate public prompts one after the other in one stream.

        A prompt that begins with the whole of an earlier one goes on from where that one ended: a text is
        not evaluated again with each label that may follow it. What prompts have in common by chance is
        not used, so that a prompt's bits depend on those alone that it was made to go on from.
        """
        stream = self.spare.first
        stem: tuple[int, ...] = ()
        self._streams.copy(trunk.stream, stream)
        for row, suffix in zip(cohort.rows, cohort.suffixes, strict=True):
            if not suffix:
                if trunk.logits is not None:
                    yield row, trunk.logits
                continue
            if len(suffix) <= len(stem) or tuple(suffix[: len(stem)]) != stem:
                stem = ()
            start = trunk.length + len(stem)
            self._streams.rewind(stream, start)
            yield row, self._streams.extend(stream, start, suffix[len(stem) :])
            stem = stem or tuple(suffix)

    def _load(self, trunk: Prefix, cohort: Cohort, group: Group) -> Iterator[tuple[int, Logits]]:
        """Evaluate each prompt in a decode call of its own, after a copy of the prefix."""
        for seat, (row, suffix) in enumerate(zip(cohort.rows, cohort.suffixes, strict=True)):
            stream = group.first + seat
            self._streams.copy(trunk.stream, stream)
            if suffix:
                yield row, self._streams.extend(stream, trunk.length, suffix)
            elif trunk.logits is not None:
                yield row, trunk.logits
        cohort.evaluated = 0

    def _step(self, group: Group, following: list[int], positions: list[int]) -> list[Logits]:
        """One token for every prompt of a group, and for its dummies."""
        seated, dummies = len(positions), group.size - len(positions)
        last = self._streams.cells - 1
        tokens = following + [self._filler] * dummies
        where = positions + [last] * dummies
        for index, position in enumerate(where):
            self._streams.rewind(group.first + index, position)
        return self._streams.step(group.first, tokens, where, seated)

    def _fill_with_dummies(self, group: Group, seated: int) -> None:
        """Copy the ruler to the seats that no prompt has, whatever they held before."""
        if group.size == seated:
            return
        if not self._ruled:
            self._streams.extend(RULER, 0, [self._filler] * (self._streams.cells - 1), dummies=True)
            self._ruled = True
        for seat in range(seated, group.size):
            self._streams.copy(RULER, group.first + seat)

    def _prefix(self, tokens: tuple[int, ...]) -> Prefix:
        """The prefix's stream; evaluated unless it is one of those used last."""
        if not tokens:
            return Prefix(BLANK, 0, None)
        known = self._prefixes.pop(tokens, None)
        if known is None:
            if len(self._prefixes) == len(PREFIXES):
                self._prefixes.pop(next(iter(self._prefixes)))
            in_use = {prefix.stream for prefix in self._prefixes.values()}
            stream = next(stream for stream in PREFIXES if stream not in in_use)
            self._streams.copy(BLANK, stream)
            logits = copy(self._streams.extend(stream, 0, tokens))  # llama.cpp's are a view
            known = Prefix(stream, len(tokens), logits)
        self._prefixes[tokens] = known
        return known
