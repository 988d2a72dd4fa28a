"""From what was counted to a bound: how much less noise than was planned, or how much more ε, must there be?

A plan claims, for neighbours and for every ε' ≥ 0, that P[S | D'] ≤ e^ε'·P[S | D] + δ(ε'), and the same the
other way round. All of that together is the trade-off curve of Dong, Roth, Su (2022): what an attacker may
reach at most. Data sets that differ in m units are m steps of such neighbours apart. Where the counts are
beyond what m steps allow, the claim is refuted (docs/proofs/audit.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfewshot.accounting import Event, delta, epsilon
from dpfewshot.audit.intervals import clopper_pearson
from dpfewshot.errors import InvalidPlan

_POINTS = 7
"""Pairs (ε', δ(ε')) that a curve is made of. With fewer it is less tight, and holds as well."""

_FAR = 1e-3
"""δ at the curve's largest ε': events of a probability that some thousand plays can tell are above it."""

_CLOSE = 0.02
"""Of the logarithm of the noise, as a share of its range: how exactly the bound is found."""

_NO_CLAIM = 10.0
_FARTHEST = 60.0  # no counts speak of an e^ε that is larger

_LEAST, _MOST = 1 / 4, 8.0
"""The range of noise, beside what was planned, in which a bound is looked for."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often an event was seen, and the Clopper-Pearson bounds on its probability.

    Attributes:
        seen: plays in which it happened.
        plays: in all, at least 1.
        beta: the probability that a bound is wrong, each by itself.
    """

    seen: int
    plays: int
    beta: float

    @property
    def share(self) -> float:
        """The estimate."""
        return self.seen / self.plays

    @property
    def low(self) -> float:
        """The lower bound."""
        return clopper_pearson(self.seen, self.plays, self.beta)[0]

    @property
    def high(self) -> float:
        """The upper bound."""
        return clopper_pearson(self.seen, self.plays, self.beta)[1]


@dataclass(frozen=True, slots=True)
class Counts:
    """What an attacker reached, who looks for one outcome.

    Attributes:
        false_positives: how often it happened without the canaries.
        true_positives: how often with them.
        canaries: m, how many units apart the two data sets are.
    """

    false_positives: Rate
    true_positives: Rate
    canaries: int

    def claimed(self, claim: TradeOff) -> float:
        """How often the outcome may happen with the canaries, at most."""
        return claim.most(self.false_positives.high, self.canaries)


class TradeOff:
    """What an event claims: how likely an outcome may be with a unit, given how likely it is without.

    Args:
        event: of a whole plan.
    """

    def __init__(self, event: Event) -> None:
        self._epsilons: NDArray[np.float64] = np.linspace(0.0, epsilon(event, _FAR).upper, _POINTS)
        self._deltas = np.array([delta(event, float(each)).upper for each in self._epsilons])

    def most(self, probability: float, units: int) -> float:
        """The largest probability of an outcome, `units` steps of neighbours away.

        Args:
            probability: of the outcome where nobody was added.
            units: m ≥ 1.
        """
        for _ in range(units):
            probability = self._next(probability)
        return probability

    def _next(self, probability: float) -> float:
        there = np.exp(self._epsilons) * probability + self._deltas
        missed = np.maximum(1 - probability - self._deltas, 0.0)  # not S, with the two data sets exchanged
        return min(float(there.min()), float((1 - np.exp(-self._epsilons) * missed).min()), 1.0)


def noise_at_most(
    event_at: Callable[[float], Event],
    planned: float,
    planned_claim: TradeOff,
    counts: Counts,
) -> float:
    """The least noise multiplier whose claim the counts refute, infinite where they refute none.

    Args:
        event_at: the plan's event at a noise multiplier.
        planned: σ > 0; the answer is looked for around it.
        planned_claim: what the event claims there.
        counts: of one outcome.
    """
    from scipy.optimize import brentq

    def room(noise: float) -> float:
        """How far the counts are below the claim; negative where they refute it."""
        try:
            claim = planned_claim if noise == planned else TradeOff(event_at(noise))
        except InvalidPlan:  # no claim at all
            return _NO_CLAIM
        return _probit(counts.claimed(claim)) - _probit(counts.true_positives.low)

    refuted = room(planned) < 0
    end = planned * (_LEAST if refuted else _MOST)
    if (room(end) < 0) == refuted:
        return end if refuted else math.inf
    share = float(brentq(lambda share: room(planned * (end / planned) ** share), 0.0, 1.0, xtol=_CLOSE))
    share += -_CLOSE if refuted else _CLOSE  # to the side of more noise
    return float(planned * (end / planned) ** max(share, 0.0))


def epsilon_at_least(delta: float, counts: Counts) -> float:
    """The least ε at which (ε, δ)-DP allows the counts: nothing else is assumed.

    m units apart, P[S | D'] ≤ e^{mε}·P[S | D] + δ·(e^{mε} - 1)/(e^ε - 1), and the same for what is not S.

    Args:
        delta: δ in (0, 1).
        counts: of one outcome.
    """
    from scipy.optimize import brentq

    units, false, true = counts.canaries, counts.false_positives.high, counts.true_positives.low
    outcomes = ((false, true), (1 - true, 1 - false))

    def room(epsilon: float) -> float:
        slack = delta * sum(math.exp(step * epsilon) for step in range(units))
        return min(math.exp(units * epsilon) * least + slack - most for least, most in outcomes)

    return 0.0 if room(0.0) >= 0 else float(brentq(room, 0.0, _FARTHEST / units, xtol=1e-6))


def _probit(probability: float) -> float:
    """On this scale a claim is nearly a line in the logarithm of the noise, which saves evaluations."""
    from scipy.special import ndtri

    return float(ndtri(min(max(probability, 1e-9), 1 - 1e-9)))
