"""The vocabulary of privacy events: mechanisms state them, the accountant prices them.

An event describes a random computation on private data by the parameters of its dominating pair, and names
the neighbouring relations that its guarantee covers. It holds no data, and is frozen. A value outside its
stated range is refused with InvalidPlan. ε, ρ and privacy losses are in nats.

Stability: plans are stored with their events, by class and field. A released event keeps its meaning and its
fields; another computation gets a class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from numbers import Real
from typing import ClassVar, Final, Protocol, TypeVar

from dpfewshot.errors import InvalidPlan
from dpfewshot.values import Relation, as_float, check_whole

T = TypeVar("T")

WIDEST_RANGE: Final = 200.0
"""Largest range of one step's privacy losses, in nats: e^200 is still a float."""

LEAST_NOISE: Final = 2.0**-6
MOST_NOISE: Final = 2.0**20
"""Noise multipliers of one draw for which the tests check ε against independent calculations."""

MOST_QUERIES: Final = 10**6
"""The most queries of a product, whose noises are added up one by one."""

LARGEST_COST: Final = 1e6
"""Largest ε₀ of one pure-DP step, in nats, for which the tests check ε."""

LEAST: Final = 1e-30
"""Least sampling rate, and least ε₀ of a step: the squares of much smaller ones are below any float."""

_ADD_OR_REMOVE: Final = frozenset({Relation.ADD_REMOVE, Relation.ZERO_OUT})
"""One set, because a null contributes nothing to a draw: both relations have the same dominating pairs
(docs/proofs/sampling.md)."""


class PublishedAccounting(Enum):
    """How a paper accounts for its fixed-size draws: for `accounting="published"` alone, never certified."""

    AS_IF_POISSON = "the Poisson accountant at q = m/n"
    """Tang et al. (ICLR 2024) analyse Poisson draws and ran fixed-size ones."""

    RENYI = "Rényi moments of fixed-size draws, at integer orders"
    """Gao et al. (AdaDPSyn, ICLR 2025)."""


class Event(Protocol):
    """A privacy event: `steps` independent repetitions of one dominating pair, composed adaptively."""

    @property
    def steps(self) -> int:
        """How many draws are composed, at least 1."""

    @property
    def relations(self) -> frozenset[Relation]:
        """The neighbouring relations that the event's guarantee covers."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    """A Poisson-subsampled Gaussian mechanism, composed.

    Dominating pair of a step: N(0, σ²) against (1-q)·N(0, σ²) + q·N(1, σ²), in both directions
    (Zhu, Dong, Wang 2022, Theorem 11).

    Args:
        sampling_rate: q in 10⁻³⁰..1, the probability that a unit is in a step's draw.
        noise_multiplier: σ in 2⁻⁶..2²⁰, the noise's standard deviation over the step's L2 sensitivity. R
            tokens on one draw are one step at σ/√R.
        steps: T ≥ 1, the number of fresh draws.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_noise(self.noise_multiplier)
        _store_floats(self, "sampling_rate", "noise_multiplier")
        _store_count(self, "steps")


@dataclass(frozen=True, slots=True)
class PoissonRandomizedResponse:
    """A Poisson-subsampled pure-DP mechanism, composed: report noisy max, or several such releases on a draw.

    Dominating pair of a step: RR₀ against (1-q)·RR₀ + q·RR₁, in both directions. RR_b answers b with
    probability e^ε₀ / (1 + e^ε₀) and 1-b otherwise (Kairouz, Oh, Viswanath 2015; Zhu, Dong, Wang 2022,
    Theorem 11). R tokens on one draw are one step at R·ε₀.

    Args:
        sampling_rate, steps: as in `PoissonGaussian`.
        epsilon: ε₀ in 10⁻³⁰..10⁶ of a step, in nats, before subsampling.
    """

    sampling_rate: float
    epsilon: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_cost(self.epsilon, LARGEST_COST)
        _store_floats(self, "sampling_rate", "epsilon")
        _store_count(self, "steps")


@dataclass(frozen=True, slots=True)
class PoissonBoundedRange:
    """A Poisson-subsampled mechanism of bounded range, composed: draws from a softmax.

    All privacy losses of a step lie in some interval of length ε₀ (Durfee, Rogers 2019), as those of the
    exponential mechanism do. Bounded range implies ε₀-DP and is stronger. `curves.RangePair` is the
    dominating pair without sampling (docs/proofs/bounded-range.md).

    Args:
        sampling_rate: q in 10⁻³⁰..1, the probability that a unit is in a step's draw.
        epsilon: ε₀ in 10⁻³⁰..200, the range of a step's losses in nats, before subsampling.
        steps: T ≥ 1. With q = 1 all steps may share one draw.
    """

    sampling_rate: float
    epsilon: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _check_cost(self.epsilon, WIDEST_RANGE)
        _store_floats(self, "sampling_rate", "epsilon")
        _store_count(self, "steps")


Query = PoissonGaussian | PoissonRandomizedResponse | PoissonBoundedRange
"""Events that may share a draw with others."""


@dataclass(frozen=True, slots=True)
class PoissonProduct:
    """Several queries on each Poisson draw, chosen adaptively: tokens that share it, tests, mixed rounds.

    Dominating pair of a step: with (A, B) the product of the queries' own pairs, (1-q)·B + q·A against B,
    in both directions (docs/proofs/product.md). It is tighter than adding the queries' ε before sampling.

    Args:
        sampling_rate, steps: as in `PoissonGaussian`.
        queries: at least one PoissonGaussian, PoissonRandomizedResponse or PoissonBoundedRange, each with
            sampling_rate 1. A query's own `steps` say how often each draw answers it: 10⁶ queries at most.
    """

    sampling_rate: float
    queries: tuple[Query, ...]
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_rate(self.sampling_rate)
        _store_floats(self, "sampling_rate")
        _store_count(self, "steps")
        object.__setattr__(self, "queries", _in_tuple("queries", self.queries))
        if not self.queries or not all(isinstance(query, Query) for query in self.queries):
            raise InvalidPlan("a product needs Gaussian, randomised-response or bounded-range queries")
        if any(query.sampling_rate != 1 for query in self.queries):
            raise InvalidPlan(
                "the queries of a product have sampling_rate 1: its own rate samples them together"
            )
        if sum(each.steps for each in self.queries) > MOST_QUERIES:
            raise InvalidPlan(f"a product has at most {MOST_QUERIES:,} queries on a draw")
        pure = [each.steps * each.epsilon for each in self.merged if not isinstance(each, PoissonGaussian)]
        if pure:
            _check_cost(sum(pure), LARGEST_COST)

    @property
    def merged(self) -> tuple[Query, ...]:
        """The queries with all Gaussians in one, which is exact (docs/proofs/accounting.md, 9)."""
        gaussian = [each for each in self.queries if isinstance(each, PoissonGaussian)]
        others = tuple(each for each in self.queries if not isinstance(each, PoissonGaussian))
        if sum(each.steps for each in gaussian) <= 1:
            return (*gaussian, *others)
        noises = (each.noise_multiplier for each in gaussian for _ in range(each.steps))
        return (PoissonGaussian(1.0, combined_multiplier(noises), 1), *others)


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian:
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
    """

    sample_size: int
    population: int
    noise_multiplier: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = frozenset({Relation.REPLACE_ONE})

    def __post_init__(self) -> None:
        for name in ("sample_size", "population", "steps"):
            _store_count(self, name)
        if self.sample_size > self.population:
            raise InvalidPlan(
                f"sample_size must lie between 1 and the population {self.population}, not {self.sample_size}"
            )
        _check_noise(self.noise_multiplier)
        _store_floats(self, "noise_multiplier")

    @property
    def sampling_rate(self) -> float:
        """m/n, the probability that a unit is in a draw, rounded up."""
        return math.nextafter(self.sample_size / self.population, 1.0)


@dataclass(frozen=True, slots=True)
class ZeroConcentrated:
    """ρ-zCDP steps, composed: D_α ≤ ρ·α for every order α > 1 (Bun and Steinke 2016).

    Describes private prediction and InvisibleInk without amplification by sampling (docs/proofs/zcdp.md).

    Args:
        rho: ρ > 0 of a step, in nats.
        steps: T ≥ 1. The steps' ρ add up.
    """

    rho: float
    steps: int
    relations: ClassVar[frozenset[Relation]] = _ADD_OR_REMOVE

    def __post_init__(self) -> None:
        _check_positive("rho", self.rho)
        _store_floats(self, "rho")
        _store_count(self, "steps")


@dataclass(frozen=True, slots=True)
class _Several:
    """At least one event; all have a neighbouring relation in common."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _in_tuple("events", self.events))
        if not self.events or not all(hasattr(event, "relations") for event in self.events):
            raise InvalidPlan("a composition needs at least one event, and events alone")
        if not self.relations:
            different = " and ".join(sorted({_in_words(event.relations) for event in self.events}))
            raise InvalidPlan(f"events for different neighbours do not compose: {different}")

    @property
    def relations(self) -> frozenset[Relation]:
        """The relations that every event covers."""
        return frozenset.intersection(*(event.relations for event in self.events))


@dataclass(frozen=True, slots=True)
class Composition(_Several):
    """Several events of one plan, at least one, composed adaptively in any order, and all fixed beforehand.

    Compositions nest: an inner one stands for its events.
    """

    @property
    def steps(self) -> int:
        """The sum of the events' steps."""
        return sum(event.steps for event in self.events)


@dataclass(frozen=True, slots=True)
class Tightest(_Several):
    """Several descriptions of one computation, at least one. Each holds by itself, so the smallest ε counts.

    Private prediction, for example, is subsampled and pure DP, and also zCDP without amplification. The upper
    bound holds for the computation; the lower bound only for the description that gave it.
    """

    @property
    def steps(self) -> int:
        """The smallest number of steps of a description."""
        return min(event.steps for event in self.events)


def flattened(event: Event) -> list[Event]:
    """The events of a composition, nested ones included; any other event by itself.

    A product whose draws hold every unit is the composition of its queries.
    """
    if isinstance(event, Composition):
        return [leaf for each in event.events for leaf in flattened(each)]
    if isinstance(event, PoissonProduct) and event.sampling_rate == 1:
        return [replace(query, steps=query.steps * event.steps) for query in event.queries]
    return [event]


def check_relation(event: Event, relation: Relation) -> None:
    """Refuse with `InvalidPlan` to state an ε for a neighbouring relation that the event does not cover."""
    if relation not in event.relations:
        raise InvalidPlan(f"the event covers {_in_words(event.relations)} neighbours, not {relation}")


# ---- several Gaussian queries on one draw -----------------------------------------------------------------


def combined_multiplier(multipliers: Iterable[float]) -> float:
    """(Σ σᵢ⁻²)^-½: one Gaussian that dominates queries with multipliers σᵢ, each over its own sensitivity.

    A query changes by at most its sensitivity, so in units of its noise the vector of all answers moves by
    at most √(Σ σᵢ⁻²). This holds for adaptive queries too, if their multipliers are constants (Dong, Roth,
    Su 2022, Corollary 2).

    Args:
        multipliers: σᵢ > 0, at least one. Count a query that is sometimes not asked: that is post-processing.

    Raises:
        InvalidPlan: no query, or a multiplier that is not a positive number.
    """
    noises = tuple(multipliers)
    for noise in noises:
        _check_positive("a noise multiplier", noise)
    if not noises:
        raise InvalidPlan("there is no query to combine")
    squares = math.fsum(float(noise) ** -2 for noise in noises)
    rounded_up = squares * (1 + 1e-15 * (len(noises) + 2))  # never more noise than is added
    return (1 - 1e-15) / math.sqrt(rounded_up)


def common_factor(multipliers: Sequence[float], target: float) -> float:
    """The least factor, up to rounding, that scales σᵢ > 0 to a combined multiplier of at least `target` > 0.

    It is checked on the products factor · σᵢ as floats. Refuses what `combined_multiplier` refuses.
    """
    target = float(target)
    factor = target / combined_multiplier(multipliers)
    while combined_multiplier(factor * float(multiplier) for multiplier in multipliers) < target:
        factor *= 1 + 2.0**-51
    return factor


# ---- checks -----------------------------------------------------------------------------------------------


def _check_rate(rate: float) -> None:
    if not LEAST <= as_float("sampling_rate", rate) <= 1:
        raise InvalidPlan(f"sampling_rate must lie between {LEAST:g} and 1, not {rate}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < as_float(name, value) < math.inf:
        raise InvalidPlan(f"{name} must be a positive number, not {value}")


def _check_cost(epsilon: float, largest: float) -> None:
    if not LEAST <= as_float("epsilon", epsilon) <= largest:
        raise InvalidPlan(f"epsilon must lie between {LEAST:g} and {largest:g}, not {epsilon}")


def _check_noise(multiplier: float) -> None:
    if not LEAST_NOISE <= as_float("the noise multiplier", multiplier) <= MOST_NOISE:
        raise InvalidPlan(
            f"the noise multiplier of a draw must lie between {LEAST_NOISE} and {MOST_NOISE:.0f}, the range "
            f"that the accounting is tested for, not {multiplier}; R tokens on one draw have sigma / sqrt(R)"
        )


def _store_floats(event: Event, *names: str) -> None:
    """Store numbers that were checked as floats: NumPy would compute in the precision of its own types."""
    for name in names:
        object.__setattr__(event, name, float(getattr(event, name)))


def _store_count(event: Event, name: str) -> None:
    """As `check_whole`, but a reviewer's 15.0 or NumPy integer is a whole number too: stored as an int."""
    number = getattr(event, name)
    real = not isinstance(number, bool) and isinstance(number, Real)
    if real and number % 1 == 0:
        number = int(number)
    check_whole(name, number)
    object.__setattr__(event, name, number)


def _in_tuple(name: str, several: Iterable[T]) -> tuple[T, ...]:
    """A tuple of several: the caller may have passed a list, and change it later."""
    if not isinstance(several, Iterable):
        raise InvalidPlan(f"{name} must be several events, not {type(several).__name__}")
    return tuple(several)


def _in_words(relations: frozenset[Relation]) -> str:
    return " or ".join(sorted(relations))
