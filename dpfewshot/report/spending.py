"""The spending of a ledger account, plan by plan, from its history.

Released facts are the plans that count, in order of reservation, with their public settings and costs, and
all budgets. Times, cancelled plans, and the hashes, which cover the times, are for the operator alone
(docs/decisions/certificates.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from dpfewshot.account.amounts import Amount
from dpfewshot.account.history import CANCELLED, CHANGE_BUDGET, CREATE, RESERVE, plan_facts
from dpfewshot.account.rule import Rule
from dpfewshot.account.verification import Snapshot, amount_of, check, tally_of
from dpfewshot.certificates import Provenance, line_hash
from dpfewshot.errors import LedgerError
from dpfewshot.values import Demonstration, PrivacySpend


@dataclass(frozen=True)
class ReservedPlan:
    """A reserved plan.

    Attributes:
        number: its position in order of reservation, from 1.
        scope: the stratum of the data set that it draws from; None for all of it.
        divergence: its Rényi divergence at the account's order; None if it counts by (ε, δ).
    """

    number: int
    scope: str | None
    spend: PrivacySpend
    divergence: float | None
    details: Mapping[str, object]
    at: datetime
    state: str


@dataclass(frozen=True)
class Spending:
    """An account as a report shows it.

    Attributes:
        parallel: whether plans over different strata compose in parallel.
        order: α, if the account counts by Rényi divergences; None if it counts by sums of (ε, δ) alone.
        provenances: what read the records of these plans: each model and tokenizer once,
            with the prompt if the plan states it (else each line does).
        spent: what is reserved or charged.
        budgets: all of them, in order.
        released: the hashes of demonstrations.
    """

    dataset: str
    relation: str
    unit: str | None
    parallel: bool
    order: int | None
    plans: tuple[ReservedPlan, ...]
    provenances: tuple[Provenance, ...]
    spent: PrivacySpend
    budgets: tuple[PrivacySpend, ...]
    versions: tuple[str, ...]
    chain_tip: str
    released: frozenset[str]

    def has_paid_for(self, one: Demonstration) -> bool:
        """Whether a plan of the account released exactly this demonstration."""
        return line_hash(one.as_line()) in self.released

    @property
    def budget(self) -> PrivacySpend:
        """The current budget."""
        return self.budgets[-1]

    @property
    def given_back(self) -> int:
        """The number of plans that were cancelled before drawing."""
        return sum(plan.state == CANCELLED for plan in self.plans)


def spending_of(snapshot: Snapshot, *, confidential: bool) -> Spending:
    """Return an account's spending, with cancelled plans if `confidential`; `LedgerError` if it is broken."""
    found = check(snapshot)
    if not found.ok:
        raise LedgerError(
            f"the account of {found.dataset!r} contradicts its history and cannot be reported: "
            "dpfewshot ledger verify says what is wrong"
        )
    states = {row["id"]: row["state"] for row in snapshot.entries}
    history = [row for row in snapshot.history if confidential or states.get(row["entry"]) != CANCELLED]
    rule = Rule(snapshot.account.get("renyi_order"))
    changes = (amount_of(row) for row in history if row["act"] in {CREATE, CHANGE_BUDGET})
    budgets = [budget for budget, _ in groupby(changes)]
    plans = tuple(_plans(history, states))
    provenances = dict.fromkeys(Provenance.of(plan.details) for plan in plans)
    return Spending(
        dataset=found.dataset,
        relation=snapshot.account["relation"],
        unit=snapshot.account["unit"],
        parallel=bool(snapshot.account["parallel"]),
        order=rule.order,
        plans=plans,
        provenances=tuple(one for one in provenances if one != Provenance()),
        spent=rule.spent(found.totals.total, budgets[-1]).as_spend(),
        budgets=tuple(one.as_remainder() for one in budgets),
        versions=tuple(dict.fromkeys(row["package_version"] for row in history)),
        chain_tip=snapshot.chain_tip,
        released=frozenset().union(*snapshot.released.values()),
    )


def _plans(history: Iterable[Mapping[str, Any]], states: Mapping[int, str]) -> Iterator[ReservedPlan]:
    reserved = (row for row in history if row["act"] == RESERVE)
    for number, row in enumerate(reserved, start=1):
        tally = tally_of(row)
        yield ReservedPlan(
            number=number,
            scope=row["scope"],
            spend=tally.cost.as_spend(),
            divergence=Amount(tally.stated, 0).as_spend().epsilon if tally.stated else None,
            details=plan_facts(json.loads(row["details"])),
            at=datetime.fromisoformat(row["at"]),
            state=states[row["entry"]],
        )
