"""Exact amounts of (ε, δ), so that ten times 0.1 fit in 1.0 and nothing more does.

An amount counts ε in 10⁻¹² and δ in 10⁻¹⁸. From the plan to the ledger's row it stays an integer. It is
converted once at each border, always to the side that protects:

| from | to | rounded |
|---|---|---|
| a budget | amount | down |
| a certified ε, a cost | amount | up |
| amount | the accountant's target | down |
| amount | a spend, for display and JSON | up |
| amount | a budget or a remainder, for display and JSON | down |

A float that users write or read stands for its shortest decimal: 0.1 is a tenth. A float that the accountant
computes with stands for its exact binary value.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from dpfewshot.errors import InvalidPlan
from dpfewshot.exact import rounded_down, rounded_up
from dpfewshot.values import PrivacyBudget, PrivacySpend, amount_text, as_float

if TYPE_CHECKING:
    from dpfewshot.accounting.events import Event

EPSILON_SCALE: Final = 10**12
"""What an amount counts for ε = 1."""

DELTA_SCALE: Final = 10**18
"""What an amount counts for δ = 1."""

LARGEST: Final = 2**63 - 1
"""The largest count, and the largest sum of counts, that a ledger can store."""


class Amount(NamedTuple):
    """An exact (ε, δ): ε in 10⁻¹², δ in 10⁻¹⁸."""

    epsilon: int
    delta: int

    @classmethod
    def of_budget(cls, budget: PrivacyBudget | PrivacySpend) -> Amount:
        """The budget, of an account or of one release, rounded down."""
        if not isinstance(budget, (PrivacyBudget, PrivacySpend)):
            raise InvalidPlan(f"budget must be a PrivacyBudget, not {type(budget).__name__}")
        epsilon = math.floor(_decimal(budget.epsilon) * EPSILON_SCALE)
        if not epsilon:
            raise InvalidPlan(f"epsilon must be at least 1e-12, not {budget.epsilon}")
        return cls(epsilon, math.floor(_decimal(budget.delta) * DELTA_SCALE))

    @classmethod
    def of_cost(cls, cost: Cost) -> Amount:
        """The cost, rounded up; an amount as it is. The one conversion of costs that users state.

        Raises:
            InvalidPlan: the cost is negative, which would give budget back, or not a finite number.
        """
        cost = cost.amount if isinstance(cost, EventCost) else cost
        if isinstance(cost, Amount):
            epsilon, delta = Fraction(cost.epsilon), Fraction(cost.delta)
        else:
            epsilon = _finite("a cost's epsilon", cost.epsilon) * EPSILON_SCALE
            delta = _finite("a cost's delta", cost.delta) * DELTA_SCALE
        if epsilon < 0 or delta < 0:
            raise InvalidPlan(f"a cost must be at least 0, not ({cost.epsilon}, {cost.delta})")
        return cls(math.ceil(epsilon), math.ceil(delta))

    @classmethod
    def certified(cls, epsilon: float, delta: int) -> Amount:
        """What the accountant certified: its ε ≥ 0, rounded up, at a δ in 10⁻¹⁸."""
        if not math.isfinite(epsilon):
            raise InvalidPlan(f"the certified epsilon is {epsilon}: no account can hold it")
        return cls(math.ceil(Fraction(epsilon) * EPSILON_SCALE), delta)

    def as_target(self) -> PrivacySpend:
        """The largest floats that are not above: what the accountant certifies for them holds here."""
        return PrivacySpend(
            rounded_down(Fraction(self.epsilon, EPSILON_SCALE)),
            rounded_down(Fraction(self.delta, DELTA_SCALE)),
        )

    def as_spend(self) -> PrivacySpend:
        """Floats for display, whose decimals are not below."""
        return PrivacySpend(_not_below(self.epsilon, EPSILON_SCALE), _not_below(self.delta, DELTA_SCALE))

    def as_remainder(self) -> PrivacySpend:
        """Floats for display, whose decimals are not above: what may still be spent."""
        return PrivacySpend(_not_above(self.epsilon, EPSILON_SCALE), _not_above(self.delta, DELTA_SCALE))

    def as_budget(self) -> PrivacyBudget:
        """The limit of an account for display: `of_budget` of it is at most this amount."""
        remainder = self.as_remainder()
        return PrivacyBudget(remainder.epsilon, remainder.delta)

    def plus(self, other: Amount) -> Amount:
        """The sum of each."""
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def at_least(self, other: Amount) -> Amount:
        """The greater of each."""
        return Amount(max(self.epsilon, other.epsilon), max(self.delta, other.delta))

    def minus(self, other: Amount) -> Amount:
        """What remains of this after the other, at least zero of each."""
        return Amount(max(self.epsilon - other.epsilon, 0), max(self.delta - other.delta, 0))

    def fits(self, limit: Amount) -> bool:
        """Whether neither is above the limit's."""
        return self.epsilon <= limit.epsilon and self.delta <= limit.delta


NOTHING: Final = Amount(0, 0)


class EventCost(NamedTuple):
    """A certified (ε, δ), and the event that it was computed for, which an account may bound otherwise."""

    amount: Amount
    event: Event


Cost = Amount | EventCost | PrivacySpend
"""What a plan reserves. Runs of this package pass exact amounts; a caller may pass floats."""


def in_words(spend: PrivacySpend) -> str:
    """An (ε, δ) as a message shows it."""
    return f"epsilon={amount_text(spend.epsilon)}, delta={amount_text(spend.delta)}"


def left_in_words(left: PrivacySpend) -> str:
    """What is left, with ε rounded down: what the rounding of a plan leaves is nothing."""
    left = PrivacySpend(math.floor(_decimal(left.epsilon) * 10**4) / 10**4, left.delta)
    return in_words(left) if left.epsilon or left.delta else "nothing"


def pure_cost(
    cost: Amount, rounds: int = 1, sampling_rate: Fraction = Fraction(1), rate: Fraction | None = None
) -> Amount | EventCost:
    """A cost (ε, 0) with its event: randomised response dominates each of `rounds` equal releases.

    Args:
        cost: of all rounds; returned as it is if δ > 0.
        rounds: at least 1.
        sampling_rate: of the Poisson sample that is released from.
        rate: ε₀ of a round on its sample; None without a sample: an equal share of the cost.
    """
    from dpfewshot.accounting.events import LARGEST_COST, LEAST, PoissonRandomizedResponse  # loads SciPy

    each = rounded_up(rate or Fraction(cost.epsilon, rounds * EPSILON_SCALE))
    if cost.delta or not LEAST <= each <= LARGEST_COST:
        return cost
    return EventCost(cost, PoissonRandomizedResponse(rounded_up(sampling_rate), each, rounds))


def _finite(name: str, number: object) -> Fraction:
    value = as_float(name, number)
    if not math.isfinite(value):
        raise InvalidPlan(f"{name} must be finite, not {value}")
    return _decimal(value)


def _decimal(number: float) -> Fraction:
    """The shortest decimal that names a float: 0.1, as the user wrote, not 0.1000000000000000055."""
    return Fraction(repr(number))


def _not_below(count: int, scale: int) -> float:
    nearest = count / scale
    return nearest if _decimal(nearest) * scale >= count else math.nextafter(nearest, math.inf)


def _not_above(count: int, scale: int) -> float:
    nearest = count / scale
    return nearest if _decimal(nearest) * scale <= count else math.nextafter(nearest, 0.0)
