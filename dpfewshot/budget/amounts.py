"""Amounts of (ε, δ) as integers, so that ten times 0.1 can be spent from 1.0 and never a hair more.

ε counts in units of 10⁻¹², δ in units of 10⁻¹⁸. A cost is rounded up to a unit, a budget down. Conversions
are exact fractions: no decimal context of the caller's can round them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final, NamedTuple

from dpfewshot.errors import InvalidPlan
from dpfewshot.values import PrivacyBudget, PrivacySpend, as_float

EPSILON_UNITS: Final = 10**12
"""Units of one ε."""

DELTA_UNITS: Final = 10**18
"""Units of one δ."""


class Units(NamedTuple):
    """(ε, δ) in whole units: sums of these are exact."""

    epsilon: int
    delta: int

    @classmethod
    def of_budget(cls, budget: PrivacyBudget) -> Units:
        """A budget, rounded down to a unit."""
        return cls(*_scaled(budget.epsilon, budget.delta, math.floor))

    @classmethod
    def of_cost(cls, cost: PrivacySpend) -> Units:
        """A cost, rounded up to a unit.

        Raises:
            InvalidPlan: a cost that is negative or not finite, which would give budget back, or no number.
        """
        epsilon, delta = as_float("a cost's epsilon", cost.epsilon), as_float("a cost's delta", cost.delta)
        if not (0 <= epsilon < math.inf and 0 <= delta < math.inf):
            raise InvalidPlan(f"a cost must be finite and at least 0, not ({epsilon}, {delta})")
        return cls(*_scaled(epsilon, delta, math.ceil))

    def as_spend(self) -> PrivacySpend:
        """The nearest floats, for display."""
        return PrivacySpend(self.epsilon / EPSILON_UNITS, self.delta / DELTA_UNITS)

    def plus(self, other: Units) -> Units:
        """The sum of each."""
        return Units(self.epsilon + other.epsilon, self.delta + other.delta)

    def at_least(self, other: Units) -> Units:
        """The greater of each."""
        return Units(max(self.epsilon, other.epsilon), max(self.delta, other.delta))

    def minus(self, other: Units) -> Units:
        """What is left of this after the other, at least zero."""
        return Units(max(self.epsilon - other.epsilon, 0), max(self.delta - other.delta, 0))

    def fits(self, limit: Units) -> bool:
        """Whether neither part is above the limit's."""
        return self.epsilon <= limit.epsilon and self.delta <= limit.delta


def _scaled(epsilon: float, delta: float, rounded: Callable[[Fraction], int]) -> tuple[int, int]:
    # repr is the shortest decimal that names the float: 0.1, as the user wrote, not 0.1000000000000000055
    return (
        rounded(Fraction(repr(epsilon)) * EPSILON_UNITS),
        rounded(Fraction(repr(delta)) * DELTA_UNITS),
    )


def in_whole_units(budget: PrivacyBudget) -> PrivacyBudget:
    """The largest budget whose cost, rounded up, still fits the budget, rounded down.

    A plan that is calibrated to it can be reserved whole: δ = 1/896 has more digits than a unit.
    """
    limit = Units.of_budget(budget)
    epsilon, delta = budget.epsilon, budget.delta
    while Units.of_cost(PrivacySpend(epsilon, 0.0)).epsilon > limit.epsilon:
        epsilon = min(limit.epsilon / EPSILON_UNITS, math.nextafter(epsilon, 0.0))
    while Units.of_cost(PrivacySpend(0.0, delta)).delta > limit.delta:
        delta = min(limit.delta / DELTA_UNITS, math.nextafter(delta, 0.0))
    return PrivacyBudget(epsilon, delta)
