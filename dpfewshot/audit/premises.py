"""Tests of the proof's premises: how records are drawn, and that prompts do not affect each other.

The games hardly see a violation of either: if one record moves all other prompts a little, the records'
content hides it. So both are tested directly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfewshot.audit.bounds import Rate
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens, closing_block
from dpfewshot.errors import BackendError
from dpfewshot.mechanisms import Draws
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.prompts.writer import LabelPrompts

_LONGEST_BLOCK = 3


@dataclass(frozen=True, slots=True)
class Expected:
    """An observed rate and the one that the proof requires.

    Attributes:
        name: what was counted.
        rate: the observed rate.
        expected: the required rate.
    """

    name: str
    rate: Rate
    expected: float

    @property
    def holds(self) -> bool:
        """Whether the interval of the observed rate contains the required one."""
        return self.rate.low <= self.expected * (1 + 1e-12) and self.expected <= self.rate.high * (1 + 1e-12)


@dataclass
class Watch:
    """Counts how units are drawn, as seen by the language model.

    Attributes:
        draws: the number of draws of records.
        inside: draws with the first unit.
        pairs: draws with at least two units.
        together: the part of `pairs` in which the first two units share a prompt.
        compared: draws compared with the previous one: every second draw.
        equal: the part of `compared` with the same units as the previous draw.
        twice: draws with more than one record of a unit.
        longest: the most tokens of one draw.
    """

    draws: int = 0
    inside: int = 0
    pairs: int = 0
    together: int = 0
    compared: int = 0
    equal: int = 0
    twice: int = 0
    longest: int = 0
    _served: int = 0
    _before: frozenset[int] = frozenset()

    def drawn(self, prompts: Sequence[Sequence[int]]) -> None:
        """Record the start of a draw.

        Args:
            prompts: the numbers of the units in each prompt.
        """
        prompt_of = {unit: place for place, units in enumerate(prompts) for unit in units}
        self.draws, self._served = self.draws + 1, 0
        self.inside += 0 in prompt_of
        self.twice += len(prompt_of) < sum(map(len, prompts))
        if len(prompt_of) > 1:
            first, second = sorted(prompt_of)[:2]
            self.pairs += 1
            self.together += prompt_of[first] == prompt_of[second]
        now = frozenset(prompt_of)
        if self.draws % 2 == 0:  # disjoint pairs of draws are independent
            self.compared += 1
            self.equal += now == self._before
        self._before = now

    def served(self) -> None:
        """Record another token of the same draw."""
        self._served += 1
        self.longest = max(self.longest, self._served)

    def against(self, draws: Draws, units: int, beta: float) -> tuple[Expected, ...]:
        """Compare the counts with what the proof requires.

        A unit is in a draw with probability q, independently of all other units, with one of its records.
        Draws are independent. With N > 1, two drawn units share one of M prompts with probability 1/M, or
        (N-1)/(MN-1) in draws of fixed size; with N = 1 they never do. Slicing a sample by position puts
        neighbours together nearly always.

        Args:
            draws: the planned draws.
            units: the number of units.
            beta: the probability that one bound is wrong.
        """
        long = self.longest > draws.tokens_per_draw
        found = [
            ("share of draws that hold a unit", self.inside, self.draws, draws.sampling_rate),
            (
                "share of draws that repeat the one before",
                self.equal,
                self.compared,
                _repeating(draws, units),
            ),
            ("share of pairs in one prompt", self.together, self.pairs, _sharing(draws)),
            ("share of draws that hold a unit twice", self.twice, self.draws, 0.0),
            ("longer draws than planned", int(long), 1, 0.0),
        ]
        return tuple(
            Expected(name, Rate(seen, times, beta), expected)
            for name, seen, times, expected in found
            if times
        )


def _repeating(draws: Draws, units: int) -> float:
    """The probability that two independent draws hold the same units."""
    if draws.fixed_size is not None:
        return 1 / math.comb(draws.fixed_size.population, draws.fixed_size.sample_size)
    q = draws.sampling_rate
    return float((q**2 + (1 - q) ** 2) ** units)


def _sharing(draws: Draws) -> float:
    if draws.fixed_size is not None:
        size = draws.fixed_size.sample_size
        return (size // draws.prompts - 1) / (size - 1) if size > 1 else 0.0
    return 1 / draws.prompts if draws.row_change.rows > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """The number of answers that were compared, and of those that changed."""

    changed: int = 0
    compared: int = 0

    def __add__(self, other: Answers) -> Answers:
        return Answers(self.changed + other.changed, self.compared + other.compared)


def asked_in_company(
    backend: LogprobBackend,
    prompts: LabelPrompts,
    suffixes: Sequence[Tokens],
    canaries: tuple[Tokens, Tokens],
    *,
    tokens: int,
    top_k: int | None,
) -> Answers:
    """Count the prompts of a draw whose answers change bits when asked alone, or between canaries.

    Each step asks for the candidates, as a generation does, and for all tokens as well.

    Args:
        backend: asked as in a generation: with a block of all prompts of a draw.
        prompts: the label's prompts.
        suffixes: the private suffix of each prompt.
        canaries: the suffixes of two further prompts.
        tokens: the tokens of a draw; the first three are asked for.
        top_k: the number of likeliest public tokens that are candidates; None is the whole vocabulary.

    Raises:
        BackendError: the backend failed.
    """
    length = min(tokens, _LONGEST_BLOCK)
    first, last = canaries
    public = _answers(backend, prompts, [prompts.public_suffix], [0] * (length - 1), public=True)
    if any(np.isnan(step).all() for step in public):
        raise BackendError("the backend cannot evaluate a prompt without records")
    said = [int(np.nanargmax(step[0])) for step in public][: length - 1]
    supports = [likeliest(step[0], frozenset(), top_k) for step in public]

    def asked(company: Sequence[Tokens]) -> list[list[Logprobs]]:
        return _by_prompt(_answers(backend, prompts, company, said, supports))

    together = asked(suffixes)
    others = [
        [asked([each])[0] for each in suffixes],
        asked([first, *suffixes, last])[1:-1],
        asked([last, *suffixes, first])[1:-1],
    ]
    pairs = [pair for company in others for pair in zip(together, company, strict=True)]
    return Answers(sum(not _same(*pair) for pair in pairs), len(pairs))


def _answers(
    backend: LogprobBackend,
    prompts: LabelPrompts,
    suffixes: Sequence[Tokens],
    continuation: Sequence[int],
    supports: Sequence[Tokens] = (),
    *,
    public: bool = False,
) -> list[Logprobs]:
    """The answers to all prompts at each token: for its support, if it has one, and for all tokens."""
    tokens = len(continuation) + 1
    answers = []
    with closing_block(backend, prompts.prefix, suffixes, tokens, public=public) as block:
        for step in range(tokens):
            if step > 0:
                block.append(continuation[step - 1])
            if supports:
                answers.append(np.array(block.next_token_logprobs(supports[step])))
            answers.append(np.array(block.next_token_logprobs()))
    return answers


def _by_prompt(answers: Sequence[Logprobs]) -> list[list[Logprobs]]:
    return [[step[prompt] for step in answers] for prompt in range(len(answers[0]))]


def _same(answers: Sequence[Logprobs], others: Sequence[Logprobs]) -> bool:
    return all(np.array_equal(*step, equal_nan=True) for step in zip(answers, others, strict=True))
