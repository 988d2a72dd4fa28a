"""Selects what a report shows: released facts, and confidential ones only on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpfewshot.account.amounts import Amount
from dpfewshot.account.verification import Snapshot
from dpfewshot.audit import Finding
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.releases.choice import Choice
from dpfewshot.report.accuracy import Panel, panels
from dpfewshot.report.promise import Promise
from dpfewshot.report.sources import PlanDocument
from dpfewshot.report.spending import Spending, spending_of
from dpfewshot.values import PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.evaluation import Cell


@dataclass(frozen=True)
class Sources:
    """The inputs of a report; each may be missing.

    Attributes:
        demonstrations: the released demonstrations. Those without a guarantee are confidential.
        snapshot: the stored state of a ledger account.
        plan: the plan, with its demonstrations if known.
        cells: an evaluation's cells.
        findings: the findings of audits.
        choice: which demonstrations were chosen, and their accuracy. One without a guarantee is confidential.
    """

    demonstrations: Demonstrations | None = None
    snapshot: Snapshot | None = None
    plan: PlanDocument | None = None
    cells: Sequence[Cell] = ()
    findings: Sequence[Finding] = ()
    choice: Choice | None = None


@dataclass(frozen=True)
class LeftOut:
    """The number of confidential inputs that the report leaves out."""

    demonstrations: int
    cells: int
    findings: int
    choices: int = 0

    @property
    def any(self) -> bool:
        """Whether anything is left out."""
        return self != LeftOut(0, 0, 0)

    def as_dict(self) -> dict[str, int]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Contents:
    """The contents of a report.

    Attributes:
        confidential: whether it may show what is for the trusted side alone.
        promise: (ε, δ) of everything released; None if there is no such bound.
        spending: the ledger account's spending.
        demonstrations: the demonstrations to show.
        plan: as `dpfewshot plan --json` prints it.
        panels: accuracies, one chart each.
        confidential_cells: the number of cells measured on private data.
        findings: the findings to show.
        choice: the choice to show.
        left_out: the number of inputs not shown.
    """

    confidential: bool
    promise: Promise | None
    spending: Spending | None
    demonstrations: Demonstrations
    plan: PlanDocument | None
    panels: Sequence[Panel]
    confidential_cells: int
    findings: Sequence[Finding]
    choice: Choice | None
    left_out: LeftOut

    @property
    def loose(self) -> bool:
        """Whether the promise is a sum over demonstrations that may share a plan."""
        of_lines = self.spending is None and self.demonstrations.plan_spend is None
        return of_lines and len(self.demonstrations) > 1

    @property
    def unprotected(self) -> int:
        """The number of demonstrations without a guarantee."""
        return sum(not one.certified for one in self.demonstrations)

    @property
    def unpaid(self) -> int:
        """The number of demonstrations with a guarantee that no plan of the account covers."""
        if self.spending is None:
            return 0
        return sum(one.certified and not self.spending.has_paid_for(one) for one in self.demonstrations)

    @property
    def most_series(self) -> int:
        """The largest number of series in a chart."""
        return max([2, *(len(panel.series) for panel in self.panels)])


def select(sources: Sources, *, confidential: bool) -> Contents:
    """Select what the report shows.

    Args:
        sources: the inputs.
        confidential: whether to show what was computed from private records outside the budget too.

    Raises:
        LedgerError: the account does not agree with its history.
    """
    given = _released(sources)
    shown = Demonstrations(
        (one for one in given if confidential or one.certified), plan_spend=given.plan_spend
    )
    public = [cell for cell in sources.cells if cell.confidential is False]
    cells = sources.cells if confidential else public
    findings = [finding for finding in sources.findings if confidential or finding.confidential is False]
    choice = sources.choice if confidential or (sources.choice and sources.choice.certified) else None
    spending = None if sources.snapshot is None else spending_of(sources.snapshot, confidential=confidential)
    return Contents(
        confidential=confidential,
        promise=_promise(spending, shown, sources.plan, choice),
        spending=spending,
        demonstrations=shown,
        plan=sources.plan,
        panels=panels(cells),
        confidential_cells=len(cells) - len(public),
        findings=findings,
        choice=choice,
        left_out=LeftOut(
            demonstrations=len(given) - len(shown),
            cells=len(sources.cells) - len(cells),
            findings=len(sources.findings) - len(findings),
            choices=int(sources.choice is not choice),
        ),
    )


def _released(sources: Sources) -> Demonstrations:
    if sources.demonstrations is not None:
        return sources.demonstrations
    if sources.plan is not None and sources.plan.demonstrations is not None:
        return sources.plan.demonstrations
    return sources.choice.demonstrations if sources.choice is not None else Demonstrations()


def _promise(
    spending: Spending | None, shown: Demonstrations, plan: PlanDocument | None, choice: Choice | None
) -> Promise | None:
    """The account's bound, which covers every plan; or else that of what is shown."""
    if spending is not None:
        covers = f"everything released on the account of {spending.dataset}"
        return _of(spending.spent, spending.relation, covers)
    shows = any(one.certified for one in shown)
    found = _promise_of(shown, plan)
    if choice is None or choice.spent is None or (shows and found is None):
        return found
    chosen = _of_choice(choice)
    if chosen is None or found is None or not (found.epsilon or found.delta):
        return chosen
    if found.relation != chosen.relation:
        return None
    together = _sum(PrivacySpend(found.epsilon, found.delta), PrivacySpend(chosen.epsilon, chosen.delta))
    return _of(together, chosen.relation, f"{chosen.covers}, and {found.covers}")


def _of_choice(choice: Choice) -> Promise | None:
    """The bound of a choice, and of the calibration that it chose."""
    calibration = choice.candidate.calibration
    if choice.spent is None or calibration is None:
        return _of(choice.spent, choice.relation, "the choice")
    if calibration.spent is None or calibration.relation != choice.relation:
        return None
    return _of(_sum(choice.spent, calibration.spent), choice.relation, "the choice and its calibration")


def _sum(one: PrivacySpend, other: PrivacySpend) -> PrivacySpend:
    return Amount.of_cost(one).plus(Amount.of_cost(other)).as_spend()


def _promise_of(shown: Demonstrations, plan: PlanDocument | None) -> Promise | None:
    """The demonstrations' bound, or else the plan's."""
    released = Demonstrations((one for one in shown if one.certified), plan_spend=shown.plan_spend)
    if len(released):
        return _of(released.spent, released.relation, "all demonstrations of this report together")
    if plan is None or plan.plan["epsilon"] is None:
        return None
    covers = "everything that the plan would release; planning spends nothing"
    return _of(plan.spend, plan.plan["relation"], covers)


def _of(spend: PrivacySpend | None, relation: str | None, covers: str) -> Promise | None:
    if spend is None or relation is None:
        return None
    return Promise(spend.epsilon, min(spend.delta, 1.0), relation, covers)
