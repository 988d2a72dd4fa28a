"""Selects what a report shows: released facts, and confidential ones only on request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfewshot.account.verification import Snapshot
from dpfewshot.audit import AuditFinding
from dpfewshot.certificates import WRITER
from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import InvalidPlan, InvalidReport
from dpfewshot.releases.candidates import Choice
from dpfewshot.report.promise import Promise
from dpfewshot.report.spending import Spending, spending_of
from dpfewshot.runtime.files import read_text
from dpfewshot.values import Demonstration, PrivacySpend


def read_choice(path: str | os.PathLike[str]) -> Choice:
    """Read what `dpfewshot choose --json` prints; `InvalidReport` names a file that is something else."""
    try:
        return Choice.from_dict(_json(path, "choose"))
    except InvalidPlan as error:
        raise InvalidReport(f"{path}: {error}") from None


def read_findings(path: str | os.PathLike[str]) -> list[AuditFinding]:
    """Read what `dpfewshot audit --json` prints. A finding that does not say so is confidential."""
    document = _json(path, "audit")
    try:
        findings = [AuditFinding.from_dict(each) for each in document["findings"]]
    except (KeyError, TypeError, ValueError):
        findings = None
    if findings is None or not all(_is_text(finding) for finding in findings):
        raise InvalidReport(f"{path}: is not what dpfewshot audit --json prints")
    return findings


def _is_text(finding: AuditFinding) -> bool:
    words = [finding.title, finding.statement, *(figure.name for figure in finding.figures)]
    return all(isinstance(each, str) for each in words) and isinstance(finding.details, dict)


def _json(path: str | os.PathLike[str], command: str) -> dict[str, Any]:
    text = read_text(path, InvalidReport)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidReport(f"{path}: is not what dpfewshot {command} --json prints")
    return document


@dataclass(frozen=True)
class Sources:
    """The inputs of a report; each may be missing.

    Demonstrations, and a choice, without a guarantee are confidential.
    """

    demonstrations: Demonstrations | None = None
    snapshot: Snapshot | None = None
    findings: Sequence[AuditFinding] = ()
    choice: Choice | None = None


@dataclass(frozen=True)
class Contents:
    """The contents of a report, which may show what is for the trusted side alone if it is confidential."""

    confidential: bool
    promise: Promise | None
    """(ε, δ) of everything released; None if there is no such bound."""

    spending: Spending | None
    demonstrations: Demonstrations
    findings: Sequence[AuditFinding]
    choice: Choice | None
    left_out: Mapping[str, int]
    """The number of confidential inputs, of each kind, that the report leaves out."""

    @property
    def loose(self) -> bool:
        """Whether the promise is a sum over demonstrations that may share a plan: no certificate says so."""
        nothing = (None, PrivacySpend(0.0, 0.0))
        bare = [one for one in self.demonstrations if one.certificate is None and one.spent not in nothing]
        return self.spending is None and len(bare) > 1

    @property
    def chosen_are_shown(self) -> bool:
        """Whether the report shows the demonstrations that the choice speaks of."""
        return self.choice is None or all(one in self.demonstrations for one in self.choice.demonstrations)

    @property
    def text_writers(self) -> list[str]:
        """The models that wrote demonstrations and read no record, by the names that they claim."""
        stated = {one.certificate.model or "" for one in self.demonstrations if one.certificate is not None}
        return sorted(one for one in stated if one.startswith(WRITER))

    @property
    def unprotected(self) -> int:
        """The number of demonstrations without a guarantee."""
        return sum(not one.certified for one in self.demonstrations)

    @property
    def unpaid(self) -> int:
        """The number of demonstrations with a guarantee that no plan of the account covers."""
        return sum(
            one.certified and not (self.covers(one) or self.says_free(one)) for one in self.demonstrations
        )

    @property
    def free(self) -> int:
        """The number of demonstrations that state that no record was read."""
        return sum(map(self.says_free, self.demonstrations))

    def covers(self, one: Demonstration) -> bool:
        """Whether a demonstration has a guarantee, which the account paid for if the report is of one."""
        return one.certified and (self.spending is None or self.spending.has_paid_for(one))

    def says_free(self, one: Demonstration) -> bool:
        """Whether it states that no record was read, ε = 0, which the report's account cannot check."""
        bare = one.certified and one.certificate is None and one.spent == PrivacySpend(0.0, 0.0)
        return bare and self.spending is not None


def select(sources: Sources, *, confidential: bool) -> Contents:
    """Select released facts; with `confidential`, also what was computed from private records unpaid.

    Raises:
        LedgerError: the account does not agree with its history.
    """
    choice, given = sources.choice, sources.demonstrations
    if given is None:
        given = Demonstrations() if choice is None else choice.demonstrations
    shown = Demonstrations(one for one in given if confidential or one.certified)
    findings = [finding for finding in sources.findings if confidential or finding.confidential is False]
    if choice is not None and not (confidential or choice.certified):
        choice = None
    spending = None if sources.snapshot is None else spending_of(sources.snapshot, confidential=confidential)
    return Contents(
        confidential=confidential,
        promise=_promise(spending, shown, choice),
        spending=spending,
        demonstrations=shown,
        findings=findings,
        choice=choice,
        left_out={
            "demonstrations": len(given) - len(shown),
            "findings": len(sources.findings) - len(findings),
            "choices": int(sources.choice is not choice),
        },
    )


def _promise(spending: Spending | None, shown: Demonstrations, choice: Choice | None) -> Promise | None:
    """The account's bound, which covers every plan; or else that of what is shown."""
    if spending is not None:
        covers = f"everything released on the account of {spending.dataset}"
        return Promise.of(spending.spent, spending.relation, spending.unit, covers)
    if choice is None or choice.spent is None:
        return _of_demonstrations(shown)
    other = (one for one in choice.demonstrations if one not in shown)  # its accuracies depend on them
    released = Demonstrations(one for one in (*shown, *other) if one.certified)
    found = _of_demonstrations(released)
    if len(released) and found is None:
        return None
    chosen = _of_choice(choice)
    if chosen is None or found is None or not (found.epsilon or found.delta):
        return chosen
    return chosen.plus(found, f"{chosen.covers}, and {found.covers}")


def _of_choice(choice: Choice) -> Promise | None:
    """The bound of a choice, and of the calibration that it chose."""
    alone = Promise.of(choice.spent, choice.relation, choice.unit, "the choice")
    calibration = choice.candidate.calibration
    if choice.unprotected:  # the accuracies depend on what was chosen
        return None
    if calibration is None or alone is None:
        return alone
    further = Promise.of(calibration.spent, calibration.relation, calibration.unit, "its calibration")
    return further and alone.plus(further, f"{alone.covers} and {further.covers}")


def _of_demonstrations(shown: Demonstrations) -> Promise | None:
    """The bound of the demonstrations that have one."""
    released = Demonstrations(one for one in shown if one.certified)
    unit = next(iter(released.units), None)  # there is no sum if there are several
    return Promise.of(released.spent, released.relation, unit, "all demonstrations of this report together")
