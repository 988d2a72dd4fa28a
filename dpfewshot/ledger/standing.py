"""What an account holds and what is left of it, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from dpfewshot.budget.amounts import Amount
from dpfewshot.budget.rule import Rule
from dpfewshot.budget.tally import Tally
from dpfewshot.budget.totals import Totals


@dataclass(frozen=True)
class Standing:
    """An account at one moment: its limit, its running totals, its newest entry, and its history's tip."""

    rule: Rule
    limit: Amount
    totals: Totals
    last: tuple[str | None, Tally] | None
    partition: str | None
    chain_tip: str

    @property
    def entries(self) -> int:
        """The number of plans; cancelled ones do not count."""
        return self.totals.count

    @property
    def spent(self) -> Amount:
        """What counts as spent."""
        return self.rule.spent(self.totals.total, self.limit)

    @property
    def spent_by_scope(self) -> dict[str | None, Amount]:
        """What the plans of each scope have spent by themselves, the whole data set first."""
        sums = self.totals.sums
        ordered = sorted(sums, key=lambda scope: scope or "")
        return {scope: self.rule.spent(sums[scope], self.limit) for scope in ordered}

    @property
    def left(self) -> Amount:
        """What a plan over the whole data set may still cost."""
        return self.rule.left(self.totals.sums, self.limit)

    @property
    def plans_left(self) -> int | None:
        """How many more plans like the last one fit; None before the first plan."""
        return None if self.last is None else self.plans_left_in(self.last[0])

    def left_in(self, scope: str | None) -> Amount:
        """What a plan over one scope may still cost."""
        return self.rule.left(self.totals.sums, self.limit, scope)

    def plans_left_in(self, scope: str | None) -> int | None:
        """How many more plans over one scope that cost what the last one did fit; None before the first."""
        if self.last is None:
            return None
        return self.rule.plans_left(self.totals.sums, (scope, self.last[1]), self.limit)
