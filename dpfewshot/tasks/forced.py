"""The parts of a text that a schema leaves no choice about: keys, quotes and brackets of JSON."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dpfewshot.tasks.automaton import DEAD, Automaton

_WITHIN_A_WORD = re.compile(r"[\w ]+\Z")


class ForcedTexts:
    """What must follow a state of an automaton, up to where there is a choice.

    A forced text ends before a space and before a word that the choice continues, because tokens begin with
    a space and words are few tokens.

    Args:
        automaton: any.
    """

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._live = _live(automaton)

    def after(self, state: int) -> tuple[str, int]:
        """What must follow a state, and the state behind it. The state is not within a character."""
        written, end = b"", state
        while not self._automaton.accepting[end] and len(choices := self._choices(end)) == 1:
            written += bytes(choices)
            end = int(self._automaton.following[end, choices[0]])
        text = written.decode(errors="ignore")  # an end within a character
        if self._choices(end):
            text = _WITHIN_A_WORD.sub("", text)
        return text, self._automaton.after(state, text.encode())

    def _choices(self, state: int) -> list[int]:
        """The bytes after which a match is possible."""
        return np.flatnonzero(self._live[self._automaton.following[state]]).tolist()


def _live(automaton: Automaton) -> NDArray[np.bool_]:
    """Which states lead to a match."""
    before: dict[int, list[int]] = {}
    for state, following in enumerate(automaton.following):
        for onward in np.unique(following).tolist():
            before.setdefault(onward, []).append(state)
    live = automaton.accepting.copy()
    waiting = np.flatnonzero(live).tolist()
    while waiting:
        new = [state for state in before.get(waiting.pop(), ()) if not live[state]]
        live[new] = True
        waiting += new
    live[DEAD] = False
    return live
