"""How many states the automaton of an expression has, counted before a compiler builds it.

The compiler has no limit, and a short expression may need exponentially many states, like `[ab]*a[ab]{30}`.
A state is the list of places at which a match may stand, in the order in which the compiler prefers them. On
bytes, and because of what it does with loops of nothing, the compiler has some more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from dpfewshot.errors import InvalidTask

TOO_LARGE: Final = "is too large: bound its strings, or let it have fewer members, levels and repetitions"

LONGEST: Final = 50_000
"""The most characters of an expression, its repetitions written out."""

MOST_STATES: Final = 20_000

_MOST_STEPS: Final = 1_000_000
"""The most steps of a count: about a second."""

_PIECE: Final = re.compile(r"\(\?:|\\.|\[(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_TIMES: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_Part = Callable[[int], int]
"""Adds a part of an expression in front of a place, and returns the place at which the part begins."""


def count_states(expression: str) -> int:
    """The states of an expression's automaton on characters.

    Args:
        expression: for Rust's regex crate, in the syntax that `tasks/expressions.py` writes.

    Raises:
        InvalidTask: it is too large.

    Example:
        >>> count_states("(?:ab|ac)*")
        2
    """
    places = _Places()
    start = places.parsed(iter(_PIECE.findall(expression)))(0)
    kinds = places.kinds()
    states = {places.reached(start)}
    waiting = list(states)
    while waiting:
        following: dict[int, dict[int, None]] = {}
        for place in waiting.pop():
            onward = dict.fromkeys(places.reached(places.onward[place][0])) if place else {}
            for kind in kinds[places.letters[place]]:
                places.step(len(onward))
                following.setdefault(kind, {}).update(onward)
        new = {tuple(each) for each in following.values()} - states
        states |= new
        waiting += new
        if len(states) > MOST_STATES:
            raise InvalidTask(TOO_LARGE)
    return len(states)


class _Places:
    """The places of an expression, its repetitions written out.

    Attributes:
        letters: what is read at each place; "" where nothing is.
        onward: the places that come next, those first that the compiler prefers.
    """

    def __init__(self) -> None:
        self.letters = [""]  # the end of a text
        self.onward: list[list[int]] = [[]]
        self._reached: dict[int, tuple[int, ...]] = {}
        self._length = self._steps = 0

    def parsed(self, pieces: Iterator[str]) -> _Part:
        """The alternatives of a group, up to where it closes."""
        alternatives: list[list[_Part]] = [[]]
        for piece in pieces:
            parts = alternatives[-1]
            if piece == ")":
                break
            if piece == "|":
                alternatives.append([])
            elif piece == "(?:":
                parts.append(self.parsed(pieces))
            elif piece in _TIMES:
                parts.append(partial(self._repeated, parts.pop(), *_TIMES[piece]))
            elif piece[0] == "{":
                least, _, most = piece[1:-1].partition(",")
                limit = int(most or least) if most or "," not in piece else None
                parts.append(partial(self._repeated, parts.pop(), int(least), limit))
            else:
                parts.append(partial(self._add, piece))
        return partial(self._either, alternatives)

    def reached(self, place: int) -> tuple[int, ...]:
        """The places that read something, or end the text, without anything read before."""
        if place not in self._reached:
            found: dict[int, None] = {}
            waiting = [place]
            while waiting:
                if (at := waiting.pop()) not in found:
                    found[at] = None
                    self.step()
                    if at and not self.letters[at]:
                        waiting += reversed(self.onward[at])
            self._reached[place] = tuple(at for at in found if not at or self.letters[at])
        return self._reached[place]

    def kinds(self) -> dict[str, list[int]]:
        """Characters that everything reads alike are of one kind: the kinds that are read at a place."""
        pieces = sorted(set(self.letters) - {""})
        ends = {ord(letter) + more for piece in pieces for letter in piece for more in (0, 1)}
        letters = "".join(chr(end) for end in sorted(ends) if end <= 0x10FFFF)  # noqa: PLR2004 - the last character
        readers: dict[str, list[str]] = {letter: [] for letter in letters}
        for piece in pieces:
            for letter in re.findall(piece, letters, re.DOTALL) if piece[0] == "[" else piece[-1]:
                self.step()
                readers[letter].append(piece)
        found: dict[str, list[int]] = {piece: [] for piece in ("", *pieces)}
        for kind, alike in enumerate({tuple(each) for each in readers.values()}):
            for piece in alike:
                found[piece].append(kind)
        return found

    def step(self, steps: int = 1) -> None:
        """Count steps, so that a count ends."""
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise InvalidTask(TOO_LARGE)

    def _add(self, letters: str, *onward: int) -> int:
        self.letters.append(letters)
        self.onward.append(list(onward))
        self._length += len(letters) or 1
        if self._length > LONGEST:
            raise InvalidTask(TOO_LARGE)
        return len(self.letters) - 1

    def _either(self, alternatives: list[list[_Part]], then: int) -> int:
        starts = []
        for parts in alternatives:
            self.step()
            start = then
            for part in reversed(parts):
                start = part(start)
            starts.append(start)
        return starts[0] if len(starts) == 1 else self._add("", *starts)

    def _repeated(self, part: _Part, least: int, most: int | None, then: int) -> int:
        start = then
        if most is None:
            again = self._add("")
            start = part(again)
            self.onward[again] = [start, then]
            start, least = (start, least - 1) if least else (self._add("", start, then), 0)
        for _ in range((most or least) - least):
            self.step()
            start = self._add("", part(start), then)
        for _ in range(least):
            self.step()
            start = part(start)
        return start
