"""An expression as an automaton on bytes, and what it forces.

A state is the set of places at which a match may stand. A short expression may need exponentially many, like
`[ab]*a[ab]{30}`, so they are counted while they are built.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidTask

TOO_LARGE: Final = "is too large: bound its strings, or let it have fewer members, levels and repetitions"
TOO_DEEP: Final = "is nested too deeply"

MOST_STATES: Final = 20_000

DEAD: Final = 0
"""The state from which no text matches. One does from every other, because every part has a text."""

_MOST_STEPS: Final = 1_000_000
"""The most steps of building an automaton: about a second."""

_DEEPEST: Final = 105
"""Levels of `Either`: a hundred groups and a character. Building them takes half of Python's stack."""

_BYTES: Final = 256
_WITHIN_A_WORD: Final = re.compile(r"[\w ]+\Z")

Part: TypeAlias = "str | range | list[Part] | Either | Times"
"""A part of an expression: a text, a byte of a range, parts in a row, one of several, or a repetition."""


@dataclass(frozen=True)
class Either:
    """One of several parts."""

    parts: Sequence[Part]


@dataclass(frozen=True)
class Times:
    """A part from `least` to `most` times. None is no limit."""

    part: Part
    least: int
    most: int | None


def character(ranges: Iterable[tuple[int, int]]) -> Part:
    """One character of these ranges, each from its first to its last code point, in UTF-8."""
    lengths = (0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)  # of one byte to four
    return Either(
        [
            between(chr(max(first, low)).encode(), chr(min(last, high)).encode(), range(0x80, 0xC0))
            for first, last in ranges
            for low, high in lengths
            if first <= high and low <= last
        ]
    )


def between(first: bytes, last: bytes, digits: range) -> Part:
    """The texts from the first to the last, all as long, whose bytes behind the first one are `digits`."""
    if not first:
        return []
    if first[0] == last[0]:
        return [range(first[0], first[0] + 1), between(first[1:], last[1:], digits)]
    lowest, highest = (bytes([digit]) * (len(first) - 1) for digit in (digits[0], digits[-1]))
    start, stop = first[0], last[0] + 1
    parts: list[Part] = []
    if first[1:] != lowest:
        parts.append(between(first, first[:1] + highest, digits))
        start += 1
    if last[1:] != highest:
        parts.append(between(last[:1] + lowest, last, digits))
        stop -= 1
    return Either([*parts, [range(start, stop), *[digits] * len(lowest)]] if start < stop else parts)


@dataclass(frozen=True, eq=False)
class Automaton:
    """The texts that match, byte by byte.

    Attributes:
        following: the state after each byte, shape (states, 256), int32; read-only.
        accepting: whether what was read matches, shape (states,).
        initial: the state before the first byte.
    """

    following: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    initial: int

    def after(self, state: int, text: bytes) -> int:
        """The state after further bytes."""
        for byte in text:
            state = int(self.following[state, byte])
        return state

    def forced(self, state: int) -> tuple[str, int]:
        """What must follow a state up to where there is a choice, and the state behind it: keys of JSON, say.

        The state is not within a character. A forced text ends before a space and before a word that the
        choice continues, because tokens begin with a space and words are few tokens.
        """
        written, end = b"", state
        while not self.accepting[end] and len(choices := self._choices(end)) == 1:
            written += bytes(choices)
            end = int(self.following[end, choices[0]])
        text = written.decode(errors="ignore")  # an end within a character
        if self._choices(end):
            text = _WITHIN_A_WORD.sub("", text)
        return text, self.after(state, text.encode())

    def _choices(self, state: int) -> list[int]:
        """The bytes after which a match is possible."""
        return np.flatnonzero(self.following[state] != DEAD).tolist()


def automaton_of(expression: Part) -> Automaton:
    """The automaton of an expression, which whole texts match."""
    places = _Places()
    start = places.before(expression, _END)
    borders, spans = places.kinds()
    initial = frozenset(places.reached(start))
    numbers = {frozenset[int](): DEAD, initial: DEAD + 1}
    rows = [[DEAD] * len(borders)]
    waiting = [initial]
    for state in waiting:
        onward: dict[int, list[int]] = {}
        for place in state:
            for kind in spans[place]:
                onward.setdefault(kind, []).append(place)
        row, known = [DEAD] * len(borders), dict[tuple[int, ...], int]()
        for kind, from_places in onward.items():
            moved = tuple(from_places)
            if moved not in known:
                target = frozenset(each for place in moved for each in places.reached(*places.onward[place]))
                places.step(len(moved) + len(target))
                if target not in numbers:
                    numbers[target] = len(numbers)
                    waiting.append(target)
                known[moved] = numbers[target]
            row[kind] = known[moved]
        rows.append(row)
        if len(numbers) > MOST_STATES:
            raise InvalidTask(TOO_LARGE)
    widths = np.diff([*borders, _BYTES])
    following = np.repeat(np.array(rows, dtype=np.int32), widths, axis=1)
    following.setflags(write=False)
    return Automaton(following, np.array([_END in state for state in numbers]), numbers[initial])


_END: Final = 0
"""The place at the end of a text."""


class _Places:
    """The places of an expression, its repetitions written out.

    Attributes:
        reads: the bytes of which one is read at each place; none at the end, and where parts begin.
        onward: the places that come next.
    """

    def __init__(self) -> None:
        self.reads: list[range | None] = [None]
        self.onward: list[list[int]] = [[]]
        self._readers: dict[tuple[range, int], int] = {}
        self._reached: dict[int, tuple[int, ...]] = {}
        self._steps = 0

    def before(self, part: Part, then: int, depth: int = 0) -> int:
        """The place at which a part begins that stands in front of another place."""
        self.step()
        match part:
            case range():
                if (part, then) not in self._readers:
                    self._readers[part, then] = self._add(part, then)
                return self._readers[part, then]
            case str():
                return self.before([range(byte, byte + 1) for byte in part.encode()], then)
            case list():
                for each in reversed(part):
                    then = self.before(each, then, depth)
                return then
            case Either(parts):
                if depth > _DEEPEST:
                    raise InvalidTask(TOO_DEEP)
                starts = [self.before(each, then, depth + 1) for each in parts]
                return starts[0] if len(starts) == 1 else self._add(None, *starts)
            case Times():
                return self._repeated(part, then, depth)

    def _repeated(self, times: Times, then: int, depth: int) -> int:
        start = then
        if times.most is None:
            start = self._add(None, then)
            self.onward[start].append(self.before(times.part, start, depth))
        for _ in range((times.most or times.least) - times.least):
            start = self._add(None, self.before(times.part, start, depth), then)
        for _ in range(times.least):
            start = self.before(times.part, start, depth)
        return start

    def reached(self, place: int) -> tuple[int, ...]:
        """The places that read something, or end the text, without anything read before."""
        if place not in self._reached:
            found: set[int] = set()
            waiting = [place]
            while waiting:
                if (at := waiting.pop()) not in found:
                    found.add(at)
                    self.step()
                    if self.reads[at] is None:
                        waiting += self.onward[at]
            self._reached[place] = tuple(at for at in found if at == _END or self.reads[at])
        return self._reached[place]

    def kinds(self) -> tuple[list[int], list[range]]:
        """The first byte of each kind, and the kinds that a place reads. Every place reads a kind alike."""
        ends = [(each.start, each.stop) if each else (0, 0) for each in self.reads]
        borders = sorted({0, *(end for each in ends for end in each if end < _BYTES)})
        return borders, [range(bisect_left(borders, first), bisect_left(borders, end)) for first, end in ends]

    def step(self, steps: int = 1) -> None:
        """Count steps, so that building ends."""
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise InvalidTask(TOO_LARGE)

    def _add(self, reads: range | None, *onward: int) -> int:
        self.step()
        self.reads.append(reads)
        self.onward.append(list(onward))
        return len(self.reads) - 1
