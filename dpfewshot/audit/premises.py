"""What the proof takes for granted, put to the test: how records are drawn, and that prompts do not meet.

A game of tokens sees little of either: where a record moved all other prompts a little, its trace drowns
in what the records say. So both are looked at directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfewshot.audit.bounds import Rate
from dpfewshot.backends.protocol import LogprobBackend, Logprobs, Tokens, closing_block
from dpfewshot.errors import BackendError
from dpfewshot.mechanisms import Draws
from dpfewshot.prompts import LabelPrompts
from dpfewshot.sampling import Sampler

DRAWS = 4000
"""Draws of records that are looked at. They cost no language model."""

_LONGEST_BLOCK = 3


@dataclass(frozen=True, slots=True)
class Expected:
    """A rate that was counted, beside what it has to be.

    Attributes:
        name: of what.
        rate: as counted.
        expected: as the proof needs it.
    """

    name: str
    rate: Rate
    expected: float

    @property
    def holds(self) -> bool:
        """Whether what was counted allows it."""
        return self.rate.low <= self.expected * (1 + 1e-12) and self.expected <= self.rate.high * (1 + 1e-12)


def draws_of(sampler: Sampler, sizes: Sequence[int], draws: Draws, beta: float) -> tuple[Expected, ...]:
    """How often the first unit is drawn, and how often the first two that are drawn share a prompt.

    A unit is in a draw with probability q, whoever else is there. With N > 1 two drawn units share one of M
    prompts with probability 1/M, or (N-1)/(MN-1) in draws of fixed size; with N = 1 they never do. A sample
    that is cut by position puts neighbours together nearly always.

    Args:
        sampler: the one that generates.
        sizes: for each unit, how many records it has.
        draws: as they were planned.
        beta: the probability that one of four bounds is wrong.
    """
    inside = together = pairs = 0
    for _ in range(DRAWS):
        prompt_of = {
            unit: place for place, subset in enumerate(sampler.draw(sizes)) for unit, _record in subset
        }
        inside += 0 in prompt_of
        if len(prompt_of) > 1:
            first, second = sorted(prompt_of)[:2]
            pairs += 1
            together += prompt_of[first] == prompt_of[second]
    found = [Expected("share of draws that hold a unit", Rate(inside, DRAWS, beta), draws.sampling_rate)]
    if pairs:
        shared = Rate(together, pairs, beta)
        found.append(Expected("share of pairs in one prompt", shared, _sharing(draws)))
    return tuple(found)


def _sharing(draws: Draws) -> float:
    if draws.fixed_size is not None:
        size = draws.fixed_size.sample_size
        return (size // draws.prompts - 1) / (size - 1) if size > 1 else 0.0
    return 1 / draws.prompts if draws.row_change.rows > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """How many answers changed, and how many were compared."""

    changed: int = 0
    compared: int = 0

    def __add__(self, other: Answers) -> Answers:
        return Answers(self.changed + other.changed, self.compared + other.compared)


def asked_in_company(
    backend: LogprobBackend,
    prompts: LabelPrompts,
    suffixes: Sequence[Tokens],
    canaries: tuple[Tokens, Tokens],
    tokens: int,
) -> Answers:
    """How many prompts of a draw are answered with other bits alone, or with canaries before and after them.

    Args:
        backend: as it generates, asked as it is then: a block of all prompts of a draw.
        prompts: of the label.
        suffixes: private, one a prompt.
        canaries: the suffixes of two further prompts.
        tokens: of a block.

    Raises:
        BackendError: the backend failed.
    """
    length = min(tokens, _LONGEST_BLOCK)
    first, last = canaries
    public = _answers(backend, prompts, [prompts.public_suffix], [0] * (length - 1), public=True)
    if any(np.isnan(step).all() for step in public):
        raise BackendError("the backend has no answer to a prompt without records")
    said = [int(np.nanargmax(step[0])) for step in public][: length - 1]
    together = _by_prompt(_answers(backend, prompts, suffixes, said))
    others = [
        [_by_prompt(_answers(backend, prompts, [each], said))[0] for each in suffixes],
        _by_prompt(_answers(backend, prompts, [first, *suffixes, last], said))[1:-1],
        _by_prompt(_answers(backend, prompts, [last, *suffixes, first], said))[1:-1],
    ]
    pairs = [pair for company in others for pair in zip(together, company, strict=True)]
    return Answers(sum(not _same(*pair) for pair in pairs), len(pairs))


def _answers(
    backend: LogprobBackend,
    prompts: LabelPrompts,
    suffixes: Sequence[Tokens],
    continuation: Sequence[int],
    *,
    public: bool = False,
) -> list[Logprobs]:
    """The answers to all prompts at each token of a block."""
    tokens = len(continuation) + 1
    with closing_block(backend, prompts.prefix, suffixes, tokens, public=public) as block:
        answers = [np.array(block.next_token_logprobs())]
        for token in continuation:
            block.append(token)
            answers.append(np.array(block.next_token_logprobs()))
    return answers


def _by_prompt(answers: Sequence[Logprobs]) -> list[list[Logprobs]]:
    return [[step[prompt] for step in answers] for prompt in range(len(answers[0]))]


def _same(answers: Sequence[Logprobs], others: Sequence[Logprobs]) -> bool:
    return all(np.array_equal(*step, equal_nan=True) for step in zip(answers, others, strict=True))
