"""A regular expression as an automaton on bytes, and what it forces.

A state is the set of places at which a match may stand. A short expression may need exponentially many, like
`[ab]*a[ab]{30}`, so they are counted while they are built.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidTask
from dpfewshot.runtime.forking import cached_property

TOO_LARGE: Final = "is too large: bound its strings, or let it have fewer members, levels and repetitions"
TOO_DEEP: Final = "is nested too deeply"

LONGEST: Final = 50_000
"""The most characters of an expression, its repetitions written out."""

MOST_STATES: Final = 20_000

DEAD: Final = 0
"""A state from which no text matches."""

_MOST_STEPS: Final = 1_000_000
"""The most steps of building an automaton: about a second."""

_DEEPEST: Final = 100
"""Levels of groups: far fewer than make reading them depend on the depth of the caller's stack."""

_BYTES: Final = 256
_PIECE: Final = re.compile(r"\(\?:|\\.|\[(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_MEMBER: Final = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
_TIMES: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_WITHIN_A_WORD: Final = re.compile(r"[\w ]+\Z")

_Part = Callable[[int], int]
"""Adds a part of an expression in front of a place, and returns the place at which the part begins."""


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
        return np.flatnonzero(self._live[self.following[state]]).tolist()

    @cached_property
    def _live(self) -> NDArray[np.bool_]:
        """Which states lead to a match."""
        before: dict[int, list[int]] = {}
        for state, following in enumerate(self.following):
            for onward in np.unique(following).tolist():
                before.setdefault(onward, []).append(state)
        live = self.accepting.copy()
        waiting = np.flatnonzero(live).tolist()
        while waiting:
            new = [state for state in before.get(waiting.pop(), ()) if not live[state]]
            live[new] = True
            waiting += new
        live[DEAD] = False
        return live


def automaton_of(expression: str) -> Automaton:
    """The automaton of an expression as `tasks/expressions.py` writes it, which whole texts match."""
    places = _Places()
    start = places.parsed(iter(_PIECE.findall(expression)))(_END)
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
        reads: the first and the last byte that is read at each place; none at the end, and where parts begin.
        onward: the places that come next.
    """

    def __init__(self) -> None:
        self.reads: list[tuple[int, int] | None] = [None]
        self.onward: list[list[int]] = [[]]
        self._readers: dict[tuple[tuple[int, int], int], int] = {}
        self._reached: dict[int, tuple[int, ...]] = {}
        self._length = self._steps = 0

    def parsed(self, pieces: Iterator[str], depth: int = 0) -> _Part:
        """The alternatives of a group, up to where it closes."""
        if depth > _DEEPEST:
            raise InvalidTask(TOO_DEEP)
        alternatives: list[list[_Part]] = [[]]
        for piece in pieces:
            parts = alternatives[-1]
            if piece == ")":
                break
            if piece == "|":
                alternatives.append([])
            elif piece == "(?:":
                parts.append(self.parsed(pieces, depth + 1))
            elif piece in _TIMES:
                parts.append(partial(self._repeated, parts.pop(), *_TIMES[piece]))
            elif piece[0] == "{":
                least, _, most = piece[1:-1].partition(",")
                limit = int(most or least) if most or "," not in piece else None
                parts.append(partial(self._repeated, parts.pop(), int(least), limit))
            else:
                parts.append(partial(self._character, piece, _sequences(piece)))
        return partial(self._either, alternatives)

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
        read = [(first, last + 1) for first, last in filter(None, self.reads)]
        borders = sorted({0, *(end for ends in read for end in ends if end < _BYTES)})
        spans = (ends or (0, -1) for ends in self.reads)
        return borders, [
            range(bisect_left(borders, first), bisect_left(borders, last + 1)) for first, last in spans
        ]

    def step(self, steps: int = 1) -> None:
        """Count steps, so that building ends."""
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise InvalidTask(TOO_LARGE)

    def _add(self, reads: tuple[int, int] | None, *onward: int) -> int:
        self.step()
        self.reads.append(reads)
        self.onward.append(list(onward))
        return len(self.reads) - 1

    def _character(self, piece: str, sequences: list[list[tuple[int, int]]], then: int) -> int:
        self._length += len(piece)
        if self._length > LONGEST:
            raise InvalidTask(TOO_LARGE)
        starts = []
        for sequence in sequences:
            start = then
            for reads in reversed(sequence):
                key = reads, start
                if key not in self._readers:
                    self._readers[key] = self._add(reads, start)
                start = self._readers[key]
            starts.append(start)
        return starts[0] if len(starts) == 1 else self._add(None, *starts)

    def _either(self, alternatives: list[list[_Part]], then: int) -> int:
        starts = []
        for parts in alternatives:
            self.step()
            start = then
            for part in reversed(parts):
                start = part(start)
            starts.append(start)
        return starts[0] if len(starts) == 1 else self._add(None, *starts)

    def _repeated(self, part: _Part, least: int, most: int | None, then: int) -> int:
        start = then
        if most is None:
            start = self._add(None, then)
            self.onward[start].append(part(start))
        for _ in range((most or least) - least):
            self.step()
            start = self._add(None, part(start), then)
        for _ in range(least):
            self.step()
            start = part(start)
        return start


def _sequences(piece: str) -> list[list[tuple[int, int]]]:
    """The ranges of bytes, one behind another, in which UTF-8 writes a letter, or each of a class."""
    members = piece[1:-1] if piece[0] == "[" else piece
    ranges = ((first[-1], (last or first)[-1]) for first, last in _MEMBER.findall(members))
    return [each for first, last in ranges for each in _utf8(ord(first), ord(last))]


def _utf8(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """The same for a range of characters: it is split where its bytes would not be independent."""
    for longest in (0x7F, 0x7FF, 0xFFFF):  # of one byte, of two, of three
        if first <= longest < last:
            yield from _utf8(first, longest)
            yield from _utf8(longest + 1, last)
            return
    for bits in (6, 12, 18) if last > 0x7F else ():  # noqa: PLR2004 - ASCII
        low = (1 << bits) - 1  # the last bytes' share of a character
        if first >> bits != last >> bits:
            if first & low:
                yield from _utf8(first, first | low)
                yield from _utf8((first | low) + 1, last)
                return
            if last & low != low:
                yield from _utf8(first, (last & ~low) - 1)
                yield from _utf8(last & ~low, last)
                return
    yield list(zip(chr(first).encode(), chr(last).encode(), strict=True))
