"""The vocabulary of privacy events: what mechanisms say and accountants understand.

An event names a random computation on private data by the parameters of its dominating pair. It
holds no data. It says for which neighbours it is stated, and a plan does not mix them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol, runtime_checkable

from dpfewshot.errors import InvalidPlan

WIDEST_RANGE = 200.0
"""Of privacy losses, in nats: e^this is a float."""


LEAST_NOISE = 2.0**-6
MOST_NOISE = 2.0**20
"""Noise multipliers of one draw for which the tests hold ε against independent calculations."""


LARGEST_COST = 1e6
"""Of a step that is ε₀-DP, in nats: likewise."""


class Relation(Enum):
    """Neighbouring data sets: which change of one unit an event's guarantee covers."""

    ADD_REMOVE = "add-remove or zero-out"
    """One unit is added, removed, or becomes a null: the same pairs (docs/proofs/sampling.md)."""

    REPLACE_ONE = "replace-one"
    """One unit becomes another, and the number of units is public."""


@runtime_checkable
class Event(Protocol):
    """A privacy event. `steps` independent repetitions of one dominating pair, composed adaptively."""

    @property
    def steps(self) -> int:
        """How many draws are composed, at least 1."""
        ...

    @property
    def relation(self) -> Relation:
        """The neighbours for which the event is stated."""
        ...


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    """A Poisson-subsampled Gaussian mechanism, composed.

    Dominating pair of a step: N(0, σ²) against (1-q)·N(0, σ²) + q·N(1, σ²), both directions
    (Zhu, Dong, Wang 2022, Theorem 11).

    Args:
        sampling_rate: q in (0, 1], each unit's probability of being in a step's draw.
        noise_multiplier: σ in 2⁻⁶..2²⁰, noise standard deviation over the L2 sensitivity of the step. R
            tokens on one draw are one step at σ/√R.
        steps: T ≥ 1, how many times a fresh draw is made.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_noise(self.noise_multiplier)
        _check_steps(self.steps)


@dataclass(frozen=True, slots=True)
class PoissonRandomizedResponse:
    """A Poisson-subsampled pure-DP mechanism, composed: report noisy max, or a block of such releases.

    Dominating pair of a step: RR₀ against (1-q)·RR₀ + q·RR₁, both directions, where RR_b says b with
    probability e^ε₀ / (1 + e^ε₀) and 1-b otherwise (Kairouz, Oh, Viswanath 2015; Zhu, Dong, Wang 2022,
    Theorem 11). R tokens on one draw are one step at R·ε₀.

    Args:
        sampling_rate: q in (0, 1], each unit's probability of being in a step's draw.
        epsilon: ε₀ in (0, 10⁶] of a step, in nats, before subsampling.
        steps: T ≥ 1, how many times a fresh draw is made.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sampling_rate: float
    epsilon: float
    steps: int
    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_cost(self.epsilon, LARGEST_COST)
        _check_steps(self.steps)


@dataclass(frozen=True, slots=True)
class PoissonBoundedRange:
    """A Poisson-subsampled mechanism of bounded range, composed: draws from a softmax.

    All privacy losses of a step lie within an interval of length ε₀, wherever that is (Durfee, Rogers
    2019), as the exponential mechanism's do. That is ε₀-DP, and less. Dominating pair: that of
    `bounded_range`, both directions (docs/proofs/bounded-range.md).

    Args:
        sampling_rate: q in (0, 1], each unit's probability of being in a step's draw.
        epsilon: ε₀ in (0, 200], the range of a step's losses in nats, before subsampling.
        steps: T ≥ 1. With q = 1 all of them may share one draw.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sampling_rate: float
    epsilon: float
    steps: int
    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_cost(self.epsilon, WIDEST_RANGE)
        _check_steps(self.steps)


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian:
    """A Gaussian mechanism on draws of fixed size without replacement, composed. To reproduce papers.

    The guarantee is for replacing one unit, and Poisson accounting does not cover it. Curve of a step:
    the one with the unit removed at q = m/n for ε ≥ 0, and its mirror image below
    (docs/proofs/accounting.md, 8; after Balle, Barthe, Gaboardi 2018).

    Args:
        sample_size: m ≥ 1, how many units a draw takes.
        population: n ≥ m, public.
        noise_multiplier: σ in 2⁻⁶..2²⁰, noise standard deviation over the L2 sensitivity when one unit of
            the draw is replaced: √2 for sums of probabilities, 2C for vectors clipped to C.
        steps: T ≥ 1, how many times a fresh draw is made.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sample_size: int
    population: int
    noise_multiplier: float
    steps: int
    relation: ClassVar[Relation] = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        if not 1 <= self.sample_size <= self.population:
            raise InvalidPlan(
                f"sample_size must lie between 1 and the population {self.population}, not {self.sample_size}"
            )
        _check_noise(self.noise_multiplier)
        _check_steps(self.steps)

    @property
    def sampling_rate(self) -> float:
        """m/n, the probability that a unit is in a draw, rounded up."""
        rate = self.sample_size / self.population
        return rate if self.sample_size == self.population else min(math.nextafter(rate, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class ZeroConcentrated:
    """Steps that are ρ-zCDP each: D_α ≤ ρ·α for every order α > 1 (Bun and Steinke 2016), composed.

    Private prediction and InvisibleInk are stated this way (docs/proofs/zcdp.md). Nothing is subsampled.

    Args:
        rho: ρ > 0 of a step, in nats.
        steps: T ≥ 1; their ρ add.

    Raises:
        InvalidPlan: a value outside its range.
    """

    rho: float
    steps: int
    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_positive("rho", self.rho)
        _check_steps(self.steps)


@dataclass(frozen=True, slots=True)
class Composition:
    """Several events in one plan, composed adaptively in any order. All of them are fixed beforehand.

    Args:
        events: at least one event, all for the same neighbours; a Composition among them stands for
            its own events.

    Raises:
        InvalidPlan: no event, or events for different neighbours.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))  # a list of the caller's could change
        if not self.events:
            raise InvalidPlan("a composition needs at least one event")
        relations = sorted({event.relation.value for event in self.events})
        if len(relations) > 1:
            raise InvalidPlan(f"events for different neighbours do not compose: {' and '.join(relations)}")

    @property
    def steps(self) -> int:
        """How many steps the events take together."""
        return sum(event.steps for event in self.events)

    @property
    def relation(self) -> Relation:
        """The neighbours of all of its events."""
        return self.events[0].relation


@dataclass(frozen=True, slots=True)
class Tightest:
    """One computation that several events describe: each holds by itself, so the least ε counts.

    The upper bound is the computation's; the lower one is only that of the event which gave it.

    Private prediction is both a subsampled pure-DP mechanism and a zCDP one that is not amplified.

    Args:
        events: at least one, all for the same neighbours.

    Raises:
        InvalidPlan: no event, or events for different neighbours.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        # the same two conditions, and a tuple
        object.__setattr__(self, "events", Composition(self.events).events)

    @property
    def steps(self) -> int:
        """The least number of steps that one of the events counts."""
        return min(event.steps for event in self.events)

    @property
    def relation(self) -> Relation:
        """The neighbours of all of its events."""
        return self.events[0].relation


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise InvalidPlan(f"sampling_rate must lie in (0, 1], not {rate}")


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidPlan(f"{name} must be a positive number, not {value}")


def _check_cost(epsilon: float, largest: float) -> None:
    _check_positive("epsilon", epsilon)
    if epsilon > largest:
        raise InvalidPlan(f"epsilon must be at most {largest:g}, not {epsilon}")


def _check_noise(multiplier: float) -> None:
    if not LEAST_NOISE <= multiplier <= MOST_NOISE:
        raise InvalidPlan(
            f"the noise multiplier of a draw must lie between {LEAST_NOISE} and {MOST_NOISE:.0f}, for which "
            f"the accounting is tested, not {multiplier}; for R tokens on one draw it is sigma / sqrt(R)"
        )


def _check_steps(steps: int) -> None:
    if not steps >= 1 or steps % 1:
        raise InvalidPlan(f"steps must be a whole number of at least 1, not {steps}")
