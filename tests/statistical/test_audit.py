"""End to end, a worst-case pair of data sets: what can be measured stays below the claim, and the same
measurement catches half the noise. With more runs it catches 30 % less noise, and a block of four tokens
that is accounted as one.

One unit votes with certainty for the token that the attacker waits for; nobody else is there, so most draws
of the neighbour are empty. The bound is Clopper-Pearson's on P[S | D'] ≤ e^ε P[S | D] + δ, wrong once in 10⁹.
"""

import itertools
import math
from fractions import Fraction
from typing import NamedTuple

import pytest

from dpfewshot.account.draws import Terms
from dpfewshot.account.reservation import Reservation
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.backends import Scripted
from dpfewshot.generation.token_loop import TextRequest, TokenLoop
from dpfewshot.mechanisms import Draws, Gaussian, RowChange
from dpfewshot.prompts.writer import LabelPrompts
from dpfewshot.sampling import PoissonSampler
from dpfewshot.tasks.layout import TextLayout
from tests.support.draws import Written
from tests.support.laws import measured_epsilon

EPSILON = 1.0
DELTA = 0.05
MARK = -1
"""The only record: its prompt, and no other, votes."""

PROMPTS = LabelPrompts(prefix=[0], opener=[0], between=[], opening=[0])


class Audit(NamedTuple):
    """Candidate tokens, tokens a block, votes that count as a hit, noise of the control, runs a data set."""

    tokens: int
    block: int
    wanted: int
    broken: float
    runs: int


class Votes(Scripted):
    """A prompt with the record is certain of the token after the last; the public prompt knows nothing."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._flat = [1 / tokens] * tokens
        self._certain = [[float(i == j) for i in range(tokens)] for j in range(tokens)]
        super().__init__([f"<{i}>" for i in range(tokens)], self.answer)

    def answer(self, prompt: list[int]) -> list[float]:
        return self._certain[self.next(prompt[-1])] if MARK in prompt else self._flat

    def next(self, token: int) -> int:
        return (token + 1) % self.tokens


def count_hits(backend: Votes, units: list[list[list[int]]], noise: float, audit: Audit) -> int:
    """In how many runs enough of the block's tokens follow the one before."""
    loop = TokenLoop(backend, TextLayout(("Text",)))
    draws = Draws(0.5, 1, audit.block, 1, RowChange.ADDED)
    sampler = PoissonSampler(Fraction(1, 2), 1, 1)
    hits = 0
    for _ in range(audit.runs):
        one = Reservation.make(None, Terms(None, None, 1, audit.block, noise, {}))
        release = Gaussian(top_k=None).start(draws, noise)
        request = TextRequest(
            units=Written(units),
            sampler=sampler,
            release=release,
            reservation=one,
            prompts=PROMPTS,
            max_tokens=audit.block,
        )
        released = [0, *loop.tokens(request)]
        follows = sum(backend.next(before) == after for before, after in itertools.pairwise(released))
        hits += follows >= audit.wanted
    return hits


def measured(audit: Audit, noise: float) -> float:
    with_unit, without = (count_hits(Votes(audit.tokens), units, noise, audit) for units in ([[[MARK]]], []))
    return measured_epsilon(with_unit, without, audit.runs, DELTA)


STEP, BLOCK = Audit(24, block=1, wanted=1, broken=0.5, runs=10_000), Audit(12, 4, 2, broken=0.3, runs=4_000)
LESS_NOISE, AS_ONE_TOKEN = STEP._replace(broken=0.7, runs=100_000), BLOCK._replace(broken=0.5, runs=40_000)


@pytest.mark.parametrize(
    "audit",
    [STEP, BLOCK, *(pytest.param(each, marks=pytest.mark.soak) for each in (LESS_NOISE, AS_ONE_TOKEN))],
)
def test_measured_epsilon_is_below_the_claim_and_a_broken_mechanism_is_caught(audit: Audit) -> None:
    def event(multiplier: float) -> PoissonGaussian:
        return PoissonGaussian(0.5, multiplier / math.sqrt(audit.block), 1)

    sigma = calibrate(event, epsilon=EPSILON, delta=DELTA)
    assert measured(audit, sigma) < EPSILON
    assert measured(audit, audit.broken * sigma) > EPSILON
