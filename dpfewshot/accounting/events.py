"""The vocabulary of privacy events: mechanisms state them, accountants price them.

An event describes a random computation on private data by the parameters of its dominating pair, and names
the neighbouring relations that its guarantee covers. It holds no data. Every event is frozen, and checks its
values once. Docstrings give each parameter's unit and range; ε, ρ and privacy losses are in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, runtime_checkable

from dpfewshot.errors import InvalidPlan
from dpfewshot.runtime.deprecation import warn_renamed
from dpfewshot.values import Relation, check_whole

WIDEST_RANGE = 200.0
"""Largest range of one step's privacy losses, in nats: e^200 is still a float."""

LEAST_NOISE = 2.0**-6
MOST_NOISE = 2.0**20
"""Noise multipliers of one draw for which the tests check ε against independent calculations."""

LARGEST_COST = 1e6
"""Largest ε₀ of one pure-DP step, in nats, for which the tests check ε."""

_ADD_OR_REMOVE: Final = frozenset({Relation.ADD_REMOVE, Relation.ZERO_OUT})
"""One set, because a null contributes nothing to a draw: both relations have the same dominating pairs
(docs/proofs/sampling.md)."""


class PublishedAccounting(Enum):
    """How a paper accounts for its fixed-size draws: for `accounting="published"` alone, never certified."""

    AS_IF_POISSON = "the Poisson accountant at q = m/n"
    """Tang et al. (ICLR 2024) analyse Poisson draws and ran fixed-size ones."""

    RENYI = "Rényi moments of fixed-size draws, at integer orders"
    """Gao et al. (AdaDPSyn, ICLR 2025)."""


@runtime_checkable
class Event(Protocol):
    """A privacy event: `steps` independent repetitions of one dominating pair, composed adaptively."""

    @property
    def steps(self) -> int:
        """How many draws are composed, at least 1."""
        ...

    @property
    def relations(self) -> frozenset[Relation]:
        """The neighbouring relations that the event's guarantee covers."""
        ...


class _OldAttribute:
    """Answers for `relation`, the former attribute, with a warning that names `relations`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers should find every other missing attribute

        def __getattr__(self, name: str) -> Relation:
            owner = type(self).__name__
            if name != "relation":
                raise AttributeError(f"{owner!r} object has no attribute {name!r}")
            warn_renamed(f"{owner}.relation", f"{owner}.relations")
            return Relation.REPLACE_ONE if Relation.REPLACE_ONE in self.relations else Relation.ADD_REMOVE


@dataclass(frozen=True, slots=True)
class PoissonGaussian(_OldAttribute):
    """A Poisson-subsampled Gaussian mechanism, composed.

    Dominating pair of a step: N(0, σ²) against (1-q)·N(0, σ²) + q·N(1, σ²), in both directions
    (Zhu, Dong, Wang 2022, Theorem 11).

    Args:
        sampling_rate: q in (0, 1], the probability that a unit is in a step's draw.
        noise_multiplier: σ in 2⁻⁶..2²⁰, the noise's standard deviation over the step's L2 sensitivity. R
            tokens on one draw are one step at σ/√R.
        steps: T ≥ 1, the number of fresh draws.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_noise(self.noise_multiplier)
        _check_count("steps", self.steps)


@dataclass(frozen=True, slots=True)
class PoissonRandomizedResponse(_OldAttribute):
    """A Poisson-subsampled pure-DP mechanism, composed: report noisy max, or several such releases on a draw.

    Dominating pair of a step: RR₀ against (1-q)·RR₀ + q·RR₁, in both directions. RR_b answers b with
    probability e^ε₀ / (1 + e^ε₀) and 1-b otherwise (Kairouz, Oh, Viswanath 2015; Zhu, Dong, Wang 2022,
    Theorem 11). R tokens on one draw are one step at R·ε₀.

    Args:
        sampling_rate: q in (0, 1], the probability that a unit is in a step's draw.
        epsilon: ε₀ in (0, 10⁶] of a step, in nats, before subsampling.
        steps: T ≥ 1, the number of fresh draws.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sampling_rate: float
    epsilon: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_cost(self.epsilon, LARGEST_COST)
        _check_count("steps", self.steps)


@dataclass(frozen=True, slots=True)
class PoissonBoundedRange(_OldAttribute):
    """A Poisson-subsampled mechanism of bounded range, composed: draws from a softmax.

    All privacy losses of a step lie in some interval of length ε₀ (Durfee, Rogers 2019), as those of the
    exponential mechanism do. Bounded range implies ε₀-DP and is stronger. `pairs.bounded_range` has the
    dominating pair, in both directions (docs/proofs/bounded-range.md).

    Args:
        sampling_rate: q in (0, 1], the probability that a unit is in a step's draw.
        epsilon: ε₀ in (0, 200], the range of a step's losses in nats, before subsampling.
        steps: T ≥ 1. With q = 1 all steps may share one draw.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sampling_rate: float
    epsilon: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_cost(self.epsilon, WIDEST_RANGE)
        _check_count("steps", self.steps)


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(_OldAttribute):
    """A Gaussian mechanism on fixed-size draws without replacement, composed: to reproduce the papers.

    The guarantee is for replacing one unit; Poisson accounting does not cover it. Curve of a step: that of
    removing the unit at q = m/n for ε ≥ 0, mirrored below (docs/proofs/accounting.md, 8; after Balle,
    Barthe, Gaboardi 2018).

    Args:
        sample_size: m ≥ 1, units in a draw.
        population: n ≥ m, public.
        noise_multiplier: σ in 2⁻⁶..2²⁰, the noise's standard deviation over the L2 sensitivity to replacing
            one unit of the draw: √2 for sums of probabilities, 2C for vectors clipped to C.
        steps: T ≥ 1, the number of fresh draws.

    Raises:
        InvalidPlan: a value outside its range.
    """

    sample_size: int
    population: int
    noise_multiplier: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = frozenset({Relation.REPLACE_ONE})

    def __post_init__(self) -> None:
        _check_count("sample_size", self.sample_size)
        if self.sample_size > self.population:
            raise InvalidPlan(
                f"sample_size must lie between 1 and the population {self.population}, not {self.sample_size}"
            )
        _check_count("population", self.population)
        _check_noise(self.noise_multiplier)
        _check_count("steps", self.steps)

    @property
    def sampling_rate(self) -> float:
        """m/n, the probability that a unit is in a draw, rounded up."""
        rate = self.sample_size / self.population
        return rate if self.sample_size == self.population else min(math.nextafter(rate, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class ZeroConcentrated(_OldAttribute):
    """ρ-zCDP steps, composed: D_α ≤ ρ·α for every order α > 1 (Bun and Steinke 2016).

    Describes private prediction and InvisibleInk without amplification by sampling (docs/proofs/zcdp.md).

    Args:
        rho: ρ > 0 of a step, in nats.
        steps: T ≥ 1. The steps' ρ add up.

    Raises:
        InvalidPlan: a value outside its range.
    """

    rho: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_positive("rho", self.rho)
        _check_count("steps", self.steps)


@dataclass(frozen=True, slots=True)
class Composition(_OldAttribute):
    """Several events of one plan, composed adaptively in any order, and all fixed beforehand.

    Compositions nest, as dp-accounting's ComposedDpEvent does: an inner one stands for its events.

    Args:
        events: at least one, with a neighbouring relation in common.

    Raises:
        InvalidPlan: no event, or events for different neighbours.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _checked(self.events))

    @property
    def steps(self) -> int:
        """The sum of the events' steps."""
        return sum(event.steps for event in self.events)

    @property
    def relations(self) -> frozenset[Relation]:
        """The relations that every event covers."""
        return _shared_relations(self.events)


@dataclass(frozen=True, slots=True)
class Tightest(_OldAttribute):
    """Several descriptions of one computation. Each holds by itself, so the smallest ε counts.

    Private prediction, for example, is subsampled and pure DP, and also zCDP without amplification.

    The upper bound holds for the computation; the lower bound only for the description that gave it.

    Args:
        events: at least one, with a neighbouring relation in common.

    Raises:
        InvalidPlan: no event, or events for different neighbours.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _checked(self.events))

    @property
    def steps(self) -> int:
        """The smallest number of steps of a description."""
        return min(event.steps for event in self.events)

    @property
    def relations(self) -> frozenset[Relation]:
        """The relations that every description covers."""
        return _shared_relations(self.events)


def flattened(event: Event) -> list[Event]:
    """The events of a composition, nested ones included; any other event by itself."""
    if isinstance(event, Composition):
        return [leaf for each in event.events for leaf in flattened(each)]
    return [event]


def check_relation(event: Event, relation: Relation) -> None:
    """Refuse to state an event's ε for a neighbouring relation that the event does not cover.

    Raises:
        InvalidPlan: names the relation and those that the event covers.
    """
    if relation not in event.relations:
        raise InvalidPlan(f"the event covers {_in_words(event.relations)} neighbours, not {relation}")


def _checked(events: tuple[Event, ...]) -> tuple[Event, ...]:
    events = tuple(events)  # the caller may have passed a list, and change it later
    if not events:
        raise InvalidPlan("a composition needs at least one event")
    if not _shared_relations(events):
        different = " and ".join(sorted({_in_words(event.relations) for event in events}))
        raise InvalidPlan(f"events for different neighbours do not compose: {different}")
    return events


def _shared_relations(events: tuple[Event, ...]) -> frozenset[Relation]:
    return frozenset.intersection(*(event.relations for event in events))


def _in_words(relations: frozenset[Relation]) -> str:
    return " or ".join(sorted(relations))


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
            f"the noise multiplier of a draw must lie between {LEAST_NOISE} and {MOST_NOISE:.0f}, the range "
            f"that the accounting is tested for, not {multiplier}; R tokens on one draw have sigma / sqrt(R)"
        )


def _check_count(name: str, number: float) -> None:
    """As `check_whole`, but a reviewer's 15.0 or NumPy integer is a whole number too."""
    check_whole(name, int(number) if number % 1 == 0 else number)
