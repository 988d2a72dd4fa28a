"""What a ledger's account spent, plan by plan, from its history.

Released facts are the plans that count, in the order in which they were reserved, their public settings and
costs, and the budgets there were. When something happened, which plans were given back, and the hashes, which
cover the times, are for the operator alone (docs/decisions/report.md).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpfewshot.budget.amounts import NOTHING, Amount
from dpfewshot.budget.scopes import total_over_scopes
from dpfewshot.errors import LedgerError
from dpfewshot.ledger import LedgerAccount
from dpfewshot.ledger.counting import LEASE
from dpfewshot.ledger.history import CANCEL, CANCELLED, CHANGE_BUDGET, CREATE, RESERVE
from dpfewshot.ledger.verification import Snapshot, check
from dpfewshot.values import Demonstration, PrivacySpend

History = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ReservedPlan:
    """One plan that was reserved.

    Attributes:
        number: its place in that order, from 1.
        scope: the part of the data set that it drew from, or None for all of it.
        spend: its whole cost.
        details: mechanism, σ, q, steps: public settings.
        at: when.
        state: what became of it: "reserved", "charged", "settled" or "cancelled".
    """

    number: int
    scope: str | None
    spend: PrivacySpend
    details: Mapping[str, object]
    at: datetime
    state: str


@dataclass(frozen=True)
class Moment:
    """The account after an act that changed what is spent, or what may be.

    Attributes:
        plans: how many plans were reserved by then.
        at: when.
        spent: of the budget.
        budget: as it was then.
    """

    plans: int
    at: datetime
    spent: PrivacySpend
    budget: PrivacySpend


@dataclass(frozen=True)
class Part:
    """All plans over one part of the data set, or over all of it: how many, and the sum of their costs."""

    scope: str | None
    plans: int
    spend: PrivacySpend


@dataclass(frozen=True)
class Spending:
    """An account as a report shows it.

    Attributes:
        dataset: its name.
        relation: the neighbouring relation of every plan.
        unit: the column that names whom a record belongs to; None where each stands for itself.
        parallel: whether plans over different parts run side by side.
        budget: what may be spent in all.
        spent: what is reserved or charged.
        plans: in the order in which they were reserved.
        moments: the same, as sums.
        parts: the sums that count towards what is spent, the largest first.
        versions: of dpfewshot, which wrote the history.
        head: the hash of the last act.
        costs: of the plans that count, as their demonstrations state them.
    """

    dataset: str
    relation: str
    unit: str | None
    parallel: bool
    budget: PrivacySpend
    spent: PrivacySpend
    plans: tuple[ReservedPlan, ...]
    moments: tuple[Moment, ...]
    parts: tuple[Part, ...]
    versions: tuple[str, ...]
    head: str
    costs: frozenset[PrivacySpend]

    def has_paid_for(self, one: Demonstration) -> bool:
        """Whether a plan of the account cost what the demonstration says that its plan cost."""
        if one.spent is None:
            return False
        free = one.spent == PrivacySpend(0.0, 0.0)
        # a line of an older version may have been rounded to the nearest float
        paid = one.spent in self.costs or Amount.of_cost(one.spent).as_spend() in self.costs
        return free or (one.relation == self.relation and paid)

    @property
    def given_back(self) -> int:
        """How many of the plans were given back, without having drawn."""
        return sum(plan.state == CANCELLED for plan in self.plans)

    @property
    def budgets(self) -> list[PrivacySpend]:
        """Every budget there was, in order."""
        found: list[PrivacySpend] = []
        for moment in self.moments:
            if found[-1:] != [moment.budget]:
                found.append(moment.budget)
        return found


def read_book(account: LedgerAccount) -> Snapshot:
    """Everything that is stored of an account, at one moment.

    Raises:
        LedgerError: it cannot be read.
    """
    exported: dict[str, Any] = account.export()
    return Snapshot(exported["account"], exported["entries"], exported["history"])


def spending_of(book: Snapshot, *, confidential: bool) -> Spending:
    """What an account spent.

    Args:
        book: everything that is stored of it.
        confidential: whether plans that were given back are shown too.

    Raises:
        LedgerError: it does not agree with its history.
    """
    if not check(book).ok:
        raise LedgerError(
            f"the account of {book.account['dataset']!r} does not agree with its history, so nothing can be "
            "reported of it: dpfewshot ledger verify says what is wrong"
        )
    states = {row["id"]: row["state"] for row in book.entries}
    history = [row for row in book.history if confidential or states.get(row["entry"]) != CANCELLED]
    moments = tuple(_moments(history))
    return Spending(
        dataset=book.account["dataset"],
        relation=book.account["relation"],
        unit=book.account["unit"],
        parallel=bool(book.account["parallel"]),
        budget=moments[-1].budget,
        spent=moments[-1].spent,
        plans=tuple(_plans(history, states)),
        moments=moments,
        parts=_parts(book),
        versions=tuple(dict.fromkeys(row["package_version"] for row in history)),
        head=book.chain_tip,
        costs=frozenset(_amount(entry).as_spend() for entry in book.entries if entry["state"] != CANCELLED),
    )


def _plans(history: History, states: Mapping[int, str]) -> Iterator[ReservedPlan]:
    reserved = (row for row in history if row["act"] == RESERVE)
    for number, row in enumerate(reserved, start=1):
        yield ReservedPlan(
            number=number,
            scope=row["scope"],
            spend=_amount(row).as_spend(),
            details={name: value for name, value in json.loads(row["details"]).items() if name != LEASE},
            at=datetime.fromisoformat(row["at"]),
            state=states[row["entry"]],
        )


def _moments(history: History) -> Iterator[Moment]:
    costs: dict[int, Amount] = {}
    sums: dict[str | None, Amount] = defaultdict(lambda: NOTHING)
    budget = NOTHING
    for row in history:
        act, scope = row["act"], row["scope"]
        if act in {CREATE, CHANGE_BUDGET}:
            budget = _amount(row)
        elif act == RESERVE:
            costs[row["entry"]] = _amount(row)
            sums[scope] = sums[scope].plus(_amount(row))
        elif act == CANCEL:
            sums[scope] = sums[scope].minus(costs[row["entry"]])
        else:
            continue
        spent = total_over_scopes(sums).as_spend()
        yield Moment(len(costs), datetime.fromisoformat(row["at"]), spent, budget.as_remainder())


def _parts(book: Snapshot) -> tuple[Part, ...]:
    counts: dict[str | None, int] = defaultdict(int)
    sums: dict[str | None, Amount] = defaultdict(lambda: NOTHING)
    for entry in book.entries:
        if entry["state"] != CANCELLED:
            counts[entry["scope"]] += 1
            sums[entry["scope"]] = sums[entry["scope"]].plus(_amount(entry))
    parts = [Part(scope, counts[scope], amount.as_spend()) for scope, amount in sums.items()]
    return tuple(sorted(parts, key=lambda part: -part.spend.epsilon))


def _amount(row: Mapping[str, Any]) -> Amount:
    return Amount(row["epsilon"], row["delta"])
