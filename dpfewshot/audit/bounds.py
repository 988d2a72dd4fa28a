"""Bounds from counts: the most noise, and the least ε, that an attacker's success is consistent with.

A plan claims P[S | D'] ≤ e^ε'·P[S | D] + δ(ε') for neighbours, in both directions and for every ε' ≥ 0.
Together these claims are the trade-off curve of Dong, Roth, Su (2022), which bounds every attacker. Data sets
that differ in m units are m neighbouring steps apart. Counts beyond what m steps allow refute the claim
(docs/proofs/audit.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from dpfewshot.accounting import Event, delta, epsilon
from dpfewshot.errors import InvalidPlan

_POINTS = 7
"""Pairs (ε', δ(ε')) of a curve. Fewer pairs make it looser; it stays valid."""

_FAR = 1e-3
"""δ at the curve's largest ε': below the probability of any event that a few thousand plays can resolve."""

_CLOSE = 0.02
"""Tolerance of the bound, as a share of the range of the logarithm of the noise."""

_NO_CLAIM = 10.0
_LARGEST_EPSILON = 60.0  # no counts can support a larger e^ε

_LEAST, _MOST = 1 / 4, 8.0
"""The searched range of noise, as multiples of the planned noise."""


def clopper_pearson(successes: float, trials: int, tail: float) -> tuple[float, float]:
    """Return bounds on a binomial probability (Clopper and Pearson 1934), each wrong with probability `tail`.

    `scipy.stats.binomtest` finds the same bounds to 5e-10, not to round-off. `successes` may be a fraction.
    """
    failures = trials - successes
    low = special.betaincinv(successes, failures + 1, tail) if successes > 0 else 0.0
    high = special.betainccinv(successes + 1, failures, tail) if failures > 0 else 1.0
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Rate:
    """The frequency of an event in `plays` ≥ 1, with Clopper-Pearson bounds on its probability."""

    seen: int
    plays: int
    beta: float

    @property
    def estimate(self) -> float:
        """The observed frequency."""
        return self.seen / self.plays

    @property
    def low(self) -> float:
        """The lower bound, wrong with probability β."""
        return clopper_pearson(self.seen, self.plays, self.beta)[0]

    @property
    def high(self) -> float:
        """The upper bound, likewise."""
        return clopper_pearson(self.seen, self.plays, self.beta)[1]


@dataclass(frozen=True, slots=True)
class Counts:
    """How often an attacker saw the outcome that it takes for canaries, without them and with them.

    `canaries` is m, the number of units in which the two data sets differ.
    """

    false_positives: Rate
    true_positives: Rate
    canaries: int

    def claimed(self, claim: TradeOff) -> float:
        """The largest true-positive rate that the claim allows."""
        return claim.most(self.false_positives.high, self.canaries)


class TradeOff:
    """The claim of a whole plan: the largest probability of an outcome, given the one without a unit."""

    def __init__(self, event: Event) -> None:
        self._epsilons = np.linspace(0.0, epsilon(event, _FAR).upper, _POINTS)
        self._deltas = np.array([delta(event, float(each)).upper for each in self._epsilons])

    def most(self, probability: float, units: int) -> float:
        """Return the largest probability of an outcome after `units` ≥ 1 neighbouring steps."""
        for _ in range(units):
            there = np.exp(self._epsilons) * probability + self._deltas
            missed = np.maximum(1 - probability - self._deltas, 0.0)  # of the complement, D and D' exchanged
            probability = min(float(there.min()), float((1 - np.exp(-self._epsilons) * missed).min()), 1.0)
        return probability


trade_off = lru_cache(maxsize=64)(TradeOff)
"""Return the claim of a plan. It takes a second, and games of one plan ask for it again."""


def noise_at_most(event_at: Callable[[float], Event], planned: float, counts: Counts) -> float:
    """Return the least noise multiplier whose claim the counts refute, or infinity if they refute none.

    The search is around `planned` > 0.
    """

    def room(noise: float) -> float:
        """Negative if the counts refute the claim."""
        try:
            claim = trade_off(event_at(noise))
        except InvalidPlan:  # this little noise has no claim
            return _NO_CLAIM
        return _probit(counts.claimed(claim)) - _probit(counts.true_positives.low)

    refuted = room(planned) < 0
    end = planned * (_LEAST if refuted else _MOST)
    if (room(end) < 0) == refuted:
        return end if refuted else math.inf
    share = optimize.brentq(lambda share: room(planned * (end / planned) ** share), 0.0, 1.0, xtol=_CLOSE)
    share += -_CLOSE if refuted else _CLOSE  # round towards more noise
    return float(planned * (end / planned) ** max(share, 0.0))


def most_probable(before: float, epsilon: float, delta: float, units: int) -> float:
    """Return the largest probability that (ε, δ) allows an outcome once k units are added or changed.

    Group privacy gives P ≤ e^{kε}·P₀ + δ_k and, for the complement, 1 - P₀ ≤ e^{kε}·(1 - P) + δ_k, where
    δ_k = δ·(e^{kε} - 1)/(e^ε - 1). `before` is P₀, and `units` is k ≥ 1.
    """
    growth = math.exp(units * epsilon)
    slack = delta * sum(math.exp(step * epsilon) for step in range(units))
    return min(growth * before + slack, 1 - (1 - before - slack) / growth, 1.0)


def epsilon_at_least(delta: float, counts: Counts) -> float:
    """Return the least ε at which (ε, δ)-DP allows the counts, from the definition alone."""
    units, false, true = counts.canaries, counts.false_positives.high, counts.true_positives.low

    def room(epsilon: float) -> float:
        return most_probable(false, epsilon, delta, units) - true

    return 0.0 if room(0.0) >= 0 else float(optimize.brentq(room, 0.0, _LARGEST_EPSILON / units, xtol=1e-6))


def _probit(probability: float) -> float:
    """On this scale a claim is nearly linear in the logarithm of the noise, which saves evaluations."""
    return float(special.ndtri(min(max(probability, 1e-9), 1 - 1e-9)))
