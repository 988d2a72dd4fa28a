"""A schema as an automaton on bytes. outlines-core compiles the regular expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot.errors import InvalidTask, MissingExtra
from dpfewshot.tasks.states import MOST_STATES, TOO_LARGE, count_states

DEAD: Final = 0
"""A state from which no text matches."""

_BYTES: Final = 256
_NUL: Final = 0
"""Stands around every text while it is compiled.

Behind it: else the first alternative that matches would hide longer ones. In front: outlines-core prepares to
find a text within another one too, for which counted repetitions may need exponentially many states.
"""


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


def automaton_of(expression: str) -> Automaton:
    """The automaton of an expression, which whole texts match.

    Args:
        expression: for Rust's regex crate, in the syntax that `tasks/expressions.py` writes.

    Raises:
        InvalidTask: it is too large.
        MissingExtra: outlines-core is not installed.
    """
    try:
        from outlines_core import Index, Vocabulary
    except ImportError:
        raise MissingExtra("Task(schema=...)", "schema") from None
    count_states(expression)  # the compiler has no limit
    letters = Vocabulary(_BYTES, {bytes([byte]): [byte] for byte in range(_BYTES)})
    try:
        index = Index(rf"\x00(?:{expression})\x00", letters)
    except ValueError:  # its message does not say what is wrong
        raise InvalidTask("is nested too deeply") from None
    transitions = index.get_transitions()
    if len(transitions) > MOST_STATES:
        raise InvalidTask(TOO_LARGE)
    return _table(transitions, index.get_initial_state(), index.get_final_states())


def _table(transitions: dict[int, dict[int, int]], before: int, final: set[int]) -> Automaton:
    numbers = {state: number for number, state in enumerate(sorted(transitions), start=DEAD + 1)}
    initial = transitions[before].pop(_NUL)
    following = np.full((len(numbers) + 1, _BYTES), DEAD, dtype=np.int32)
    accepting = np.zeros(len(following), dtype=np.bool_)
    for state, moves in transitions.items():
        accepting[numbers[state]] = moves.pop(_NUL, None) in final
        for byte, target in moves.items():
            if byte < _BYTES:
                following[numbers[state], byte] = numbers.get(target, DEAD)
    following.setflags(write=False)
    return Automaton(following, accepting, numbers[initial])
