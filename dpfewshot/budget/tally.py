"""What a plan costs in each way in which an account may count it, and what several plans cost together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Self

from dpfewshot.budget.amounts import EPSILON_SCALE, NOTHING, Amount
from dpfewshot.budget.scopes import total_over_scopes
from dpfewshot.exact.rounding import rounded_up

if TYPE_CHECKING:
    from dpfewshot.accounting.events import Event


class EventCost(Amount):
    """A certified (ε, δ) with the event that it was computed for, which an account may bound otherwise.

    Wherever the event does not matter, and in comparisons, it is the plain `Amount`. Copies keep the event;
    `_replace` returns a plain `Amount`, since the event certifies these numbers alone.
    """

    event: Event

    def __new__(cls, amount: Amount, event: Event) -> Self:
        """An amount, and the event that costs at most that."""
        cost = super().__new__(cls, *amount)
        cost.event = event
        return cost

    def __reduce__(self) -> tuple[type[Self], tuple[Amount, Event]]:
        """Copies and pickles are made of the amount and the event."""
        return type(self), (Amount(*self), self.event)

    @classmethod
    def _make(cls, iterable: Iterable[int]) -> Amount:  # type: ignore[override]
        """A plain amount: other numbers lack the event."""
        return Amount(*iterable)


def pure_cost(cost: Amount, rounds: int = 1) -> Amount:
    """A cost (ε, 0) that `rounds` releases share equally; randomised response dominates each of them.

    Args:
        cost: of all rounds, with δ = 0.
        rounds: at least 1.
    """
    from dpfewshot.accounting.events import LARGEST_COST, PoissonRandomizedResponse  # loads SciPy

    each = rounded_up(Fraction(cost.epsilon, rounds * EPSILON_SCALE))
    if not 0 < each <= LARGEST_COST:
        return cost
    return EventCost(cost, PoissonRandomizedResponse(1.0, each, rounds))


class Tally(NamedTuple):
    """The cost of one entry, or of several together.

    Attributes:
        cost: the sum of all (ε, δ).
        renyi: the sum of the entries' Rényi divergences at the account's order, in 10⁻¹², rounded up.
        rest: the sum of (ε, δ) of the entries without such a bound.
    """

    cost: Amount
    renyi: int
    rest: Amount

    @classmethod
    def of(cls, cost: Amount, renyi: int | None) -> Tally:
        """One entry; `renyi` is None or 0 if it has no bound."""
        return cls(cost, renyi, NOTHING) if renyi else cls(cost, 0, cost)

    @property
    def stated(self) -> int | None:
        """The bound of one entry; None if it has none."""
        return self.renyi or None

    def plus(self, other: Tally) -> Tally:
        """The sum of each."""
        return Tally(self.cost.plus(other.cost), self.renyi + other.renyi, self.rest.plus(other.rest))

    def minus(self, other: Tally) -> Tally:
        """What remains without the other, at least zero of each."""
        return Tally(
            self.cost.minus(other.cost), max(self.renyi - other.renyi, 0), self.rest.minus(other.rest)
        )

    def times(self, count: int) -> Tally:
        """The cost of `count` such entries."""
        return Tally(
            Amount(count * self.cost.epsilon, count * self.cost.delta),
            count * self.renyi,
            Amount(count * self.rest.epsilon, count * self.rest.delta),
        )

    @classmethod
    def over_scopes(cls, tallies: Mapping[str | None, Tally]) -> Tally:
        """What all scopes cost together: `total_over_scopes` of each sum (docs/proofs/filter.md, 4)."""
        return cls(
            total_over_scopes({scope: tally.cost for scope, tally in tallies.items()}),
            total_over_scopes({scope: Amount(tally.renyi, 0) for scope, tally in tallies.items()}).epsilon,
            total_over_scopes({scope: tally.rest for scope, tally in tallies.items()}),
        )


EMPTY = Tally(NOTHING, 0, NOTHING)
