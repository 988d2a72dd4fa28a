"""Tests of the proof's premises: how records are drawn, and that prompts do not affect each other.

The games hardly see a violation of either: if one record moves all other prompts a little, the records'
content hides it. So both are tested directly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from dpfewshot.audit.bounds import Rate
from dpfewshot.backends.conformance import block_answers
from dpfewshot.backends.protocol import Logprobs, Tokens, failing_as_backend
from dpfewshot.errors import BackendError
from dpfewshot.generation.set_up import SetUp
from dpfewshot.mechanisms import Draws
from dpfewshot.mechanisms.base import likeliest
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.values import Record

_LONGEST_BLOCK = 3  # tokens of a draw whose answers are compared


@dataclass(frozen=True, slots=True)
class Expected:
    """An observed rate, and the one that the proof requires."""

    name: str
    rate: Rate
    expected: float

    @property
    def holds(self) -> bool:
        """Whether the interval of the observed rate contains the required one."""
        return self.rate.low <= self.expected * (1 + 1e-12) and self.expected <= self.rate.high * (1 + 1e-12)


class Watch:
    """Counts how units are drawn, as seen by the language model.

    Attributes:
        counts: of all draws, and of those with the first unit ("inside"), with a unit twice ("twice"), with
            two units or more ("pairs"), with the first two of them in one prompt ("together"), compared with
            the one before ("compared"), and equal to it ("equal").
        longest: the most tokens of one draw.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest = self._served = 0
        self._before: AbstractSet[int] = frozenset()

    def drawn(self, prompts: Sequence[Sequence[int]]) -> None:
        """Record the start of a draw, given the numbers of the units in each prompt."""
        prompt_of = {unit: place for place, units in enumerate(prompts) for unit in units}
        self._served = 0
        self.counts["draws"] += 1
        self.counts["inside"] += 0 in prompt_of
        self.counts["twice"] += len(prompt_of) < sum(map(len, prompts))
        if len(prompt_of) > 1:
            first, second = sorted(prompt_of)[:2]
            self.counts["pairs"] += 1
            self.counts["together"] += prompt_of[first] == prompt_of[second]
        if self.counts["draws"] % 2 == 0:  # disjoint pairs of draws are independent
            self.counts["compared"] += 1
            self.counts["equal"] += prompt_of.keys() == self._before
        self._before = prompt_of.keys()

    def served(self) -> None:
        """Record another token of the same draw."""
        self._served += 1
        self.longest = max(self.longest, self._served)

    def against(self, draws: Draws, units: int, beta: float) -> list[Expected]:
        """Compare the counts with what the proof requires.

        A unit is in a draw with probability q, independently of all other units, with one of its records.
        Draws are independent. With N > 1, two drawn units share one of M prompts with probability 1/M, or
        (N-1)/(MN-1) in draws of fixed size; with N = 1 they never do. Slicing a sample by position puts
        neighbours together nearly always. `beta` is the probability that one bound is wrong.
        """
        if draws.fixed_size is None:
            q = draws.sampling_rate
            repeating = float((q**2 + (1 - q) ** 2) ** units)
            sharing = 1 / draws.prompts if draws.row_change.rows > 1 else 0.0
        else:
            size = draws.fixed_size.sample_size
            repeating = 1 / math.comb(draws.fixed_size.population, size)
            sharing = (size // draws.prompts - 1) / (size - 1) if size > 1 else 0.0
        seen = self.counts | Counter(long=int(self.longest > draws.tokens_per_draw), once=1)
        found = [
            ("share of draws that hold a unit", "inside", "draws", draws.sampling_rate),
            ("share of draws that repeat the one before", "equal", "compared", repeating),
            ("share of pairs in one prompt", "together", "pairs", sharing),
            ("share of draws that hold a unit twice", "twice", "draws", 0.0),
            ("longer draws than planned", "long", "once", 0.0),
        ]
        return [
            Expected(name, Rate(seen[event], seen[times], beta), expected)
            for name, event, times, expected in found
            if seen[times]
        ]


def changed_by_company(set_up: SetUp, stratum: StratumPlan, label: str) -> tuple[int, int]:
    """Draw records once, ask their prompts alone and among others, and count the answers whose bits changed.

    The others are two prompts unlike any: one repeated word, and the first tokens of the vocabulary. Each
    step asks for the candidates, as a generation does, and for all tokens as well, with a block of all
    prompts of a draw. Returned are the number of answers that changed, and of those compared.
    """
    backend, writer, cap = set_up.backend, set_up.writer, set_up.plan.settings.record_token_cap
    prompts, bodies = writer.for_label(label), set_up.bodies(stratum, 0)
    subsets = bodies.of(set_up.sampler(stratum).draw(bodies.sizes))
    suffixes = [each for subset in subsets if (each := prompts.suffix(subset, []))]
    odd = ("canary " * cap, backend.detokenize(range(min(cap, backend.vocabulary_size))))
    first, last = (prompts.suffix([writer.body(Record(text, label))], []) for text in odd)
    if first is None or last is None:
        raise BackendError("the backend cannot tokenize plain text")
    length = min(stratum.draws.tokens_per_draw, _LONGEST_BLOCK)
    with failing_as_backend():
        public = block_answers(
            backend, prompts.prefix, [prompts.public_suffix], [0] * (length - 1), public=True
        )
    steps = np.concatenate(public)
    if np.isnan(steps).all(axis=1).any():
        raise BackendError("the backend cannot evaluate a prompt without records")
    said = [int(np.nanargmax(step)) for step in steps[:-1]]
    supports = [likeliest(step, frozenset(), set_up.mechanism.top_k) for step in steps]

    def asked(company: Sequence[Tokens]) -> Logprobs:
        with failing_as_backend():
            return np.concatenate(block_answers(backend, prompts.prefix, company, said, supports), axis=1)

    together = asked(suffixes)
    others: list[Iterable[Logprobs]] = [
        (row for each in suffixes for row in asked([each])),
        asked([first, *suffixes, last])[1:-1],
        asked([last, *suffixes, first])[1:-1],
    ]
    same = [
        np.array_equal(one, other, equal_nan=True)
        for company in others
        for one, other in zip(together, company, strict=True)
    ]
    return same.count(False), len(same)
