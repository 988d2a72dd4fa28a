"""What (ε, δ) means for observers of the releases: exact consequences, every figure rounded up.

Let S be an attacker's rule for accusing, f = P[S | D'] its false-alarm rate and t = P[S | D] its detection
rate, for neighbours D and D'. (ε, δ) in both directions is equivalent to (Wasserman and Zhou 2010; Kairouz,
Oh and Viswanath 2015)

    t ≤ e^ε·f + δ   and   1 - f ≤ e^ε·(1 - t) + δ.

So every figure here holds for all attackers, whatever else they know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from typing import Final

from dpfewshot.account.amounts import Amount
from dpfewshot.audit.bounds import most_probable
from dpfewshot.exact import own_context, to_digits
from dpfewshot.values import PrivacySpend, Relation

_LARGEST_EXPONENT: Final = 700.0
_MANY: Final = 1_000_000_000

_OTHER_WORLD: Final[dict[str, str]] = {
    Relation.ADD_REMOVE: "is absent; the total number is a stated, public constant",
    Relation.ZERO_OUT: "is blanked out: it keeps its place in the count (and its label, unless labels are "
    "free text), but nothing of it is read. Counts are treated as public",
    Relation.REPLACE_ONE: "is replaced by another with the same label. Counts are public",
}


@dataclass(frozen=True)
class Promise:
    """(ε, δ) of several releases together: upper bounds, δ ≤ 1.

    Attributes:
        unit: the column of whom a record belongs to; None for each record alone, or where nothing says.
        covers: the releases, in words.
    """

    epsilon: float
    delta: float
    relation: str
    unit: str | None
    covers: str

    @classmethod
    def of(
        cls, spend: PrivacySpend | None, relation: str | None, unit: str | None, covers: str
    ) -> Promise | None:
        """The promise of a spend; None if there is none, or no one relation."""
        if spend is None or relation is None:
            return None
        return cls(spend.epsilon, min(spend.delta, 1.0), relation, unit, covers)

    def plus(self, other: Promise, covers: str) -> Promise | None:
        """Both together; None if neighbours or units differ, whose ε do not add up."""
        if (self.relation, self.unit) != (other.relation, other.unit):
            return None
        one, more = (Amount.of_cost(PrivacySpend(each.epsilon, each.delta)) for each in (self, other))
        return Promise.of(one.plus(more).as_spend(), self.relation, self.unit, covers)

    @property
    def odds_factor(self) -> float:
        """e^ε, the largest change of any odds, apart from δ."""
        return math.exp(min(self.epsilon, _LARGEST_EXPONENT))

    @property
    def best_guess(self) -> float:
        """The largest rate of right guesses between two equally likely worlds: (e^ε + δ)/(e^ε + 1)."""
        return (self.odds_factor + self.delta) / (self.odds_factor + 1)

    @property
    def one_in(self) -> int:
        """The largest whole number n with δ ≤ 1/n, for δ > 0."""
        return math.floor(1 / Fraction(repr(self.delta)))

    @property
    def other_world(self) -> str:
        """What differs in the second of two worlds that observers cannot tell apart beyond (ε, δ)."""
        return _OTHER_WORLD.get(self.relation, f"differs, in the sense of {self.relation!r}")

    def detection(self, false_alarms: float) -> float:
        """The largest detection rate t at a false-alarm rate f."""
        return most_probable(false_alarms, min(self.epsilon, _LARGEST_EXPONENT), self.delta, 1)


def factor_text(factor: float) -> str:
    """Write a factor to three digits, rounded up."""
    if factor > _MANY:
        return "more than a billion"
    with localcontext(own_context()):
        rounded = to_digits(Decimal(repr(factor)), 3, ROUND_CEILING)
        return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded.normalize():f}"  # noqa: PLR2004 - no digits after the point
