"""Which tokens of a model may come next in a text that matches a schema, and how many it still needs.

All of it is a function of the schema, the vocabulary and released tokens (docs/proofs/schema.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfewshot.backends.protocol import LogprobBackend
from dpfewshot.backends.text import BROKEN, ending_tokens
from dpfewshot.errors import BackendError, InvalidPlan
from dpfewshot.runtime.forking import cached_property
from dpfewshot.tasks.automaton import DEAD, Automaton
from dpfewshot.tasks.schema import automaton

_LONGEST: Final = 64
"""The most bytes of a token that a text may have."""

_NEVER: Final = np.iinfo(np.int32).max
_SPACE: Final = ord(" ")
_CACHED_STEPS: Final = 32

_START, _BEHIND_SPACE = 1, 2
"""States before the first byte: of a text that a space may precede, and behind that space."""


class Step(NamedTuple):
    """The tokens that keep a match possible, ascending, and the state after each and what is forced then."""

    tokens: NDArray[np.int64]
    states: NDArray[np.int32]


class TokenAutomaton:
    """A schema's automaton in the tokens of one model. It keeps no reference to the model.

    What the schema forces is written into the prompts, and not drawn. A space that the schema does not ask
    for may precede the text, as it precedes the records' texts in prompts; it is not part of the text. No
    text is empty.

    Args:
        ends: the tokens that end a text, whatever their own text is.

    Attributes:
        start: the state before the first token that is drawn.
        opening: the tokens that are forced before it.
        ends: those of the vocabulary, ascending, shape (n,).
    """

    def __init__(self, schema: str, backend: LogprobBackend, ends: frozenset[int]) -> None:
        self.ends = np.array(sorted(end for end in ends if end < backend.vocabulary_size), dtype=np.int64)
        self._texts = {
            token: text.encode()
            for token, text in enumerate(_texts(backend))
            if text and token not in ends and BROKEN not in text and len(text.encode()) <= _LONGEST
        }
        texts = [*self._texts.values()]
        spaces = any(text.startswith(b" ") for text in texts)
        self._automaton, self._spaced = _with_start(automaton(schema), spaces=spaces)
        self._tokens = np.array([*self._texts], dtype=np.int64)
        self._lengths = np.array([len(text) for text in texts], dtype=np.int64)
        padded = np.array(texts, dtype=f"S{_LONGEST}")
        self._letters = padded.view(np.uint8).reshape(-1, _LONGEST).T.copy()
        self._forced = {_START: self._automaton.forced(_START)}
        self.start = self._forced[_START][1]
        self._ways = self._explored()
        written = {text: tuple(backend.tokenize(text)) if text else () for text, _ in self._forced.values()}
        self._forced_tokens = {state: written[text] for state, (text, _) in self._forced.items()}
        self.opening = self._forced_tokens[_START]
        self._distances = self._measured()
        self._step = lru_cache(_CACHED_STEPS)(self._settled)
        # The most tokens that are forced behind each state, a row for each number of drawn tokens.
        self._place = {state: place for place, state in enumerate(self._ways)}
        onward = [(place, each) for place, state in enumerate(self._ways) for each in self._ways[state]]
        self._from = np.array([place for place, _ in onward], dtype=np.int64)
        self._to = np.array([self._place[self._forced[each][1]] for _, each in onward], dtype=np.int64)
        self._written = np.array([len(self._forced_tokens[each]) for _, each in onward], dtype=np.int64)
        self._most_forced = [np.zeros(len(self._ways), dtype=np.int64)], False  # are further rows alike?

    def check(self, max_tokens: int) -> None:
        """Refuse with `InvalidPlan` a schema that no text of so many tokens matches, or one text alone."""
        shortest = self.left(self.start)
        if shortest == _NEVER:
            raise InvalidPlan("no text that the model can write matches the task's schema")
        if self.ends_at(self.start):
            raise InvalidPlan("one text alone matches the task's schema: nothing is left to generate")
        if shortest > max_tokens:
            raise InvalidPlan(
                f"a text that matches the task's schema needs at least {shortest} tokens: "
                f"max_tokens={max_tokens} is too few"
            )

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the tokens that a text may have, with their texts."""
        return hashlib.sha256(self._tokens.tobytes() + self._letters.tobytes()).hexdigest()

    def after(self, state: int, token: int) -> tuple[int, tuple[int, ...]]:
        """The state after a further token and what is forced then, and the tokens of what is forced."""
        return self._read(state, token)[1:]

    def accepts(self, state: int) -> bool:
        """Whether the text may end here."""
        return bool(self._automaton.accepting[state])

    def ends_at(self, state: int) -> bool:
        """Whether the text must end here."""
        return self.accepts(state) and not self._step(state).tokens.size

    def left(self, state: int) -> int:
        """The fewest further tokens to be drawn until the text matches."""
        return int(self._distances[state])

    def allowed(self, state: int, most: int) -> NDArray[np.int64]:
        """The tokens that may come next, ascending; never empty where a match is possible.

        Args:
            state: after the tokens so far.
            most: how many tokens may still come, this one included. If no match is so near, only tokens on
                a shortest way to one are allowed.
        """
        step = self._step(state)
        bound = max(most, self.left(state)) - 1
        near = step.tokens[self._distances[step.states] <= bound]
        if self.accepts(state):
            near = np.sort(np.concatenate([near, self.ends]))
        return near if near.size else step.tokens  # without end tokens, a text is cut off where it matches

    def text(self, tokens: Iterable[int]) -> str:
        """The text of drawn tokens; one that was cut off continues on a shortest way to a match."""
        written, state = self._forced[_START]
        for token in tokens:
            more, state, _ = self._read(state, token)
            written += more
        while not self.accepts(state):
            step = self._step(state)
            nearest = int(step.tokens[np.argmin(self._distances[step.states])])
            more, state, _ = self._read(state, nearest)
            written += more
        return written.removeprefix(" ") if self._spaced else written

    def most_forced(self, drawn: int, state: int) -> int:
        """The most tokens that are forced behind a state while so many are drawn."""
        rows, settled = self._most_forced
        while len(rows) <= drawn and not settled:
            row = np.zeros_like(rows[-1])
            np.maximum.at(row, self._from, self._written + rows[-1][self._to])
            settled = np.array_equal(row, rows[-1])
            rows = [*rows, row]
        self._most_forced = rows, settled  # at once: strata ask side by side
        return int(rows[min(drawn, len(rows) - 1)][self._place[state]])

    def _read(self, state: int, token: int) -> tuple[str, int, tuple[int, ...]]:
        """A token's text with what is forced behind it, the state then, and the tokens of what is forced."""
        if token not in self._texts:  # an end token
            return "", state, ()
        reached = self._automaton.after(state, self._texts[token])
        if reached not in self._forced:
            raise BackendError(
                "a released token does not fit the task's schema: the run was begun with another model"
            )
        forced, settled = self._forced[reached]
        return self._texts[token].decode() + forced, settled, self._forced_tokens[reached]

    def _followed(self, state: int) -> Step:
        """Every token that the automaton reads, all at once, and the states before what is forced."""
        states = np.full(len(self._tokens), state, dtype=np.int32)
        alive = np.arange(len(self._tokens))
        for position, letters in enumerate(self._letters):
            going = alive[self._lengths[alive] > position]
            if not going.size:
                break
            states[going] = self._automaton.following[states[going], letters[going]]
            alive = alive[states[alive] != DEAD]
        return Step(self._tokens[alive], states[alive])

    def _settled(self, state: int) -> Step:
        """The tokens after which a match is possible, and the states behind what is forced then."""
        step = self._followed(state)
        reached, place = np.unique(step.states, return_inverse=True)
        settled = np.array([self._forced[each][1] for each in reached.tolist()], dtype=np.int32)[place]
        alive = self._distances[settled] < _NEVER
        return Step(step.tokens[alive], settled[alive])

    def _explored(self) -> dict[int, list[int]]:
        """The states that one token leads to, before what is forced, from every state behind it."""
        ways: dict[int, list[int]] = {}
        waiting = [self.start]
        while waiting:
            state = waiting.pop()
            if state not in ways:
                ways[state] = np.unique(self._followed(state).states).tolist()
                for reached in ways[state]:
                    if reached not in self._forced:
                        self._forced[reached] = self._automaton.forced(reached)
                    waiting.append(self._forced[reached][1])
        return ways

    def _measured(self) -> NDArray[np.int32]:
        """The fewest tokens from each state to a match; `_NEVER` where no match follows."""
        before: dict[int, list[int]] = {}
        for state, ways in self._ways.items():
            for reached in ways:
                before.setdefault(self._forced[reached][1], []).append(state)
        distances = np.full(len(self._automaton.accepting), _NEVER, dtype=np.int32)
        nearest, distance = {state for state in self._ways if self.accepts(state)}, 0
        while nearest:
            distances[list(nearest)] = distance
            further = {state for reached in nearest for state in before.get(reached, ())}
            nearest, distance = {state for state in further if distances[state] == _NEVER}, distance + 1
        return distances


def token_automaton(backend: LogprobBackend, schema: str) -> TokenAutomaton | None:
    """The automaton of a schema in a backend's tokens, made once: it reads the text of every token.

    None for a task without a schema.
    """
    if not schema:
        return None
    return backend.known(("schema", schema), lambda: TokenAutomaton(schema, backend, ending_tokens(backend)))


def _texts(backend: LogprobBackend) -> list[str]:
    """The text of each token behind another one: at the start of a text, tokenizers may drop its space."""
    alone = backend.token_texts()
    sample = backend.tokenize("a b")
    if (
        max(sample) >= len(alone)
        or backend.detokenize(sample).lstrip() == "".join(alone[token] for token in sample).lstrip()
    ):
        return alone
    before = backend.detokenize(sample[:1])
    return [backend.detokenize([sample[0], token]).removeprefix(before) for token in range(len(alone))]


def _with_start(whole: Automaton, *, spaces: bool) -> tuple[Automaton, bool]:
    """An automaton without the empty text, and whether a space that is not of the text may precede it.

    If there is no choice about the first letter, the space always precedes it, where tokens write one.
    """
    shift = 2  # the states before the first byte come behind DEAD
    following = np.where(whole.following == DEAD, DEAD, whole.following + shift)
    following = np.insert(following, 1, following[[whole.initial, whole.initial]], axis=0)
    spaced = bool(following[_START, _SPACE] == DEAD)
    if spaced:
        if spaces and np.count_nonzero(following[_START]) == 1:
            following[_START] = DEAD
        following[_START, _SPACE] = _BEHIND_SPACE
    accepting = np.insert(whole.accepting, 1, [False, False])
    return Automaton(following.astype(np.int32), accepting, _START), spaced
