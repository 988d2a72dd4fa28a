"""What a report shows of what it was given: released facts, and only when asked for, what is private too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpfewshot.audit import Finding
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.ledger.verification import Snapshot
from dpfewshot.report.accuracy import Panel, panels
from dpfewshot.report.promise import Promise
from dpfewshot.report.sources import PlanDocument
from dpfewshot.report.spending import Spending, spending_of
from dpfewshot.runtime.deprecation import renamed_arguments, renamed_fields
from dpfewshot.values import PrivacySpend

if TYPE_CHECKING:
    from dpfewshot.evaluation import Cell


@dataclass(frozen=True)
class Sources:
    """What a report may be made of; any part may be missing.

    Attributes:
        demonstrations: what was released. Those without a guarantee are private.
        book: of a ledger's account.
        plan: the plan, with what it released where that is known.
        cells: of an evaluation. Each says whether it is private.
        findings: of audits. Each says whether it is private.
    """

    demonstrations: Demonstrations | None = None
    book: Snapshot | None = None
    plan: PlanDocument | None = None
    cells: Sequence[Cell] = ()
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class LeftOut:
    """How many of each were given and are private, and so not in the report."""

    demonstrations: int
    cells: int
    findings: int

    @property
    def any(self) -> bool:
        """Whether anything is left out."""
        return self != LeftOut(0, 0, 0)

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


@renamed_fields(private="confidential", private_cells="confidential_cells")
@dataclass(frozen=True)
class Contents:
    """What stands in a report.

    Attributes:
        confidential: whether it may hold what is for the trusted side alone.
        promise: (ε, δ) of everything released; None where there is no such bound.
        spending: of the ledger's account.
        demonstrations: those that are shown.
        plan: as `dpfewshot plan --json` prints it, with its parts.
        panels: accuracy, one chart each.
        confidential_cells: how many of its cells were measured on private data.
        findings: of audits.
        left_out: what was given and is not shown.
    """

    confidential: bool
    promise: Promise | None
    spending: Spending | None
    demonstrations: Demonstrations
    plan: PlanDocument | None
    panels: Sequence[Panel]
    confidential_cells: int
    findings: Sequence[Finding]
    left_out: LeftOut

    @property
    def loose(self) -> bool:
        """Whether the promise is a sum over demonstrations that may be of one plan."""
        of_lines = self.spending is None and self.demonstrations.plan_spend is None
        return of_lines and len(self.demonstrations) > 1

    @property
    def unprotected(self) -> int:
        """How many of the demonstrations have no guarantee."""
        return sum(not one.private for one in self.demonstrations)

    @property
    def unpaid(self) -> int:
        """How many demonstrations with a guarantee are of no plan of the account, and so not in its bound."""
        if self.spending is None:
            return 0
        return sum(one.private and not self.spending.has_paid_for(one) for one in self.demonstrations)

    @property
    def most_series(self) -> int:
        """Of any chart."""
        return max([2, *(len(panel.series) for panel in self.panels)])


@renamed_arguments(private="confidential")
def select(sources: Sources, *, confidential: bool) -> Contents:
    """Choose what is shown.

    Args:
        sources: what there is.
        confidential: whether what is computed from private records outside of ε is shown too.

    Raises:
        LedgerError: the account does not agree with its history.
    """
    given = _released(sources)
    shown = Demonstrations((one for one in given if confidential or one.private), plan_spend=given.plan_spend)
    public = [cell for cell in sources.cells if cell.confidential is False]
    cells = sources.cells if confidential else public
    findings = [finding for finding in sources.findings if confidential or finding.confidential is False]
    spending = None if sources.book is None else spending_of(sources.book, confidential=confidential)
    return Contents(
        confidential=confidential,
        promise=_promise(spending, shown, sources.plan),
        spending=spending,
        demonstrations=shown,
        plan=sources.plan,
        panels=panels(cells),
        confidential_cells=len(cells) - len(public),
        findings=findings,
        left_out=LeftOut(
            demonstrations=len(given) - len(shown),
            cells=len(sources.cells) - len(cells),
            findings=len(sources.findings) - len(findings),
        ),
    )


def _released(sources: Sources) -> Demonstrations:
    if sources.demonstrations is not None:
        return sources.demonstrations
    if sources.plan is not None and sources.plan.demonstrations is not None:
        return sources.plan.demonstrations
    return Demonstrations()


def _promise(spending: Spending | None, shown: Demonstrations, plan: PlanDocument | None) -> Promise | None:
    """The account's bound, which covers every plan; else the demonstrations'; else the plan's."""
    if spending is not None:
        covers = f"everything that was released on the account of {spending.dataset}"
        return _of(spending.spent, spending.relation, covers)
    released = Demonstrations((one for one in shown if one.private), plan_spend=shown.plan_spend)
    if len(released):
        return _of(released.spent, released.relation, "all demonstrations of this report together")
    if plan is None or plan.plan["epsilon"] is None:
        return None
    covers = "everything that the plan would release; planning itself spends nothing"
    return _of(plan.spend, plan.plan["relation"], covers)


def _of(spend: PrivacySpend | None, relation: str | None, covers: str) -> Promise | None:
    if spend is None or relation is None:
        return None
    return Promise(spend.epsilon, min(spend.delta, 1.0), relation, covers)
