"""Running totals: what the entries of each scope cost together, and how many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.tally import EMPTY, Tally

Row = tuple[str | None, int, int, int, int, int, int]
"""A scope, its ε, δ, Rényi divergence, ε and δ of the entries without a divergence, and its entries."""


@dataclass
class Totals:
    """What counts now; entries that were cancelled do not.

    Attributes:
        sums: of each scope that has an entry.
        entries: the number of each scope's entries.
    """

    sums: defaultdict[str | None, Tally] = field(default_factory=lambda: defaultdict(lambda: EMPTY))
    entries: defaultdict[str | None, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, scope: str | None, tally: Tally, entries: int = 1) -> None:
        """Count one entry, or several that cost this together."""
        self.sums[scope] = self.sums[scope].plus(tally)
        self.entries[scope] += entries

    def remove(self, scope: str | None, tally: Tally) -> None:
        """Count an entry no more."""
        self.sums[scope] = self.sums[scope].minus(tally)
        self.entries[scope] -= 1
        if not self.entries[scope]:
            del self.sums[scope], self.entries[scope]

    @property
    def count(self) -> int:
        """The number of entries."""
        return sum(self.entries.values())

    @property
    def total(self) -> Tally:
        """What all scopes cost together."""
        return Tally.over_scopes(self.sums)

    def rows(self) -> list[Row]:
        """One row for each scope, the whole data set first."""
        return [
            (scope, *self.sums[scope].cost, self.sums[scope].renyi, *self.sums[scope].rest, count)
            for scope, count in sorted(self.entries.items(), key=_order)
        ]

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> Totals:
        """The totals that gave these rows."""
        totals = cls()
        for scope, epsilon, delta, renyi, rest_epsilon, rest_delta, count in rows:
            totals.add(scope, Tally(Amount(epsilon, delta), renyi, Amount(rest_epsilon, rest_delta)), count)
        return totals


def _order(item: tuple[str | None, int]) -> tuple[bool, str]:
    return item[0] is not None, item[0] or ""
