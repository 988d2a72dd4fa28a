"""What (ε, δ) means for somebody who sees the releases: exact consequences, every figure rounded up.

Let S be any rule by which an attacker accuses, f = P[S | D'] its rate of false alarms and t = P[S | D] its
rate of detection, for neighbours D and D'. (ε, δ) in both directions says exactly (Wasserman and Zhou 2010;
Kairouz, Oh and Viswanath 2015)

    t ≤ e^ε·f + δ   and   1 - f ≤ e^ε·(1 - t) + δ.

So what is drawn and printed here holds for every attacker, whatever else he knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Final

from dpfewshot.values import UNNAMED_UNIT, Relation, own_context, to_digits

_LARGEST_EXPONENT: Final = 700.0
_MANY: Final = 1_000_000_000

OTHER_WORLD: Final[dict[str, str]] = {
    Relation.ADD_REMOVE: "is not there; how many there are in all is stated as a public number",
    Relation.ZERO_OUT: "is blanked out: it keeps its place in the count (and its label, unless labels are "
    "free text), and nothing of it is read. Counts are treated as public",
    Relation.REPLACE_ONE: "is exchanged for another with the same label. Counts are public",
}
"""What has become of a unit in the other of two worlds that nobody can tell apart beyond (ε, δ)."""

UNKNOWN_UNIT: Final = "one record, or one unit if the records had a unit column"


@dataclass(frozen=True)
class Promise:
    """(ε, δ) of everything that it covers together.

    Attributes:
        epsilon: ε ≥ 0, an upper bound.
        delta: 0 ≤ δ < 1, an upper bound.
        relation: the neighbouring relation.
        covers: what it is the bound of, in words.
    """

    epsilon: float
    delta: float
    relation: str
    covers: str

    @property
    def odds_factor(self) -> float:
        """e^ε: what odds are multiplied or divided by, at most, but for δ."""
        return math.exp(min(self.epsilon, _LARGEST_EXPONENT))

    @property
    def best_guess(self) -> float:
        """The share of right guesses between two worlds that are equally likely: (e^ε + δ)/(e^ε + 1)."""
        return (self.odds_factor + self.delta) / (self.odds_factor + 1)

    @property
    def corner(self) -> tuple[float, float]:
        """(f, t) of the rule that guesses right most often: where the two bounds meet."""
        return (1 - self.delta) / (1 + self.odds_factor), self.best_guess

    def belief(self, prior: float) -> float:
        """The greatest belief afterwards of who held `prior` before, but for δ: odds times e^ε."""
        return self.odds_factor * prior / (1 - prior + self.odds_factor * prior)

    def detection(self, false_alarms: float) -> float:
        """The greatest rate of detection t at a rate of false alarms f."""
        first = self.odds_factor * false_alarms + self.delta
        second = 1 - (1 - self.delta - false_alarms) / self.odds_factor
        return max(0.0, min(1.0, first, second))


def factor_text(factor: float) -> str:
    """A factor to three digits, rounded up."""
    if factor > _MANY:
        return "more than a thousand million"
    with localcontext(own_context()):
        rounded = to_digits(Decimal(repr(factor)), 3, ROUND_CEILING)
        return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded.normalize():f}"  # noqa: PLR2004 - no digits after the point


def percent_text(share: float) -> str:
    """A share as a percentage, rounded up; what is close to 1 shows how close."""
    share = min(max(share, 0.0), 1.0)
    with localcontext(own_context()):
        exact = Decimal(repr(share)) * 100
        if share <= 0.5:  # noqa: PLR2004 - half
            rounded = to_digits(exact, 3, ROUND_CEILING)
        else:
            rounded = 100 - to_digits(100 - exact, 3, ROUND_FLOOR)
        return f"{rounded.normalize():f} %"


def other_world(relation: str) -> str:
    """What has become of a unit in the other world, in words."""
    return OTHER_WORLD.get(relation, f"differs, in the sense of {relation!r}")


def unit_text(unit: str | None) -> str:
    """The privacy unit in words; `unit` as an account keeps it."""
    if unit is None:
        return "one record"
    return f"everything of one unit ({'a customer, say' if unit == UNNAMED_UNIT else f'one {unit!r}'})"
