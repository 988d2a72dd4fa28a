"""Findings: the values that audits return, the command line prints and the report draws."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_args

Kind = Literal["membership", "influence", "private-prediction", "canary", "leak"]
Verdict = Literal["passed", "failed", "informative"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        low: lower end of its interval, or lower bound, if any.
        high: upper end, or upper bound, if any.
        reference: the theoretical or published value to compare with.

    Raises:
        ValueError: a number is not finite, which JSON cannot carry.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    reference: float | None = None

    def __post_init__(self) -> None:
        optional = (one for one in (self.low, self.high, self.reference) if one is not None)
        numbers: list[object] = [self.value, *optional]  # of a file
        if any(not isinstance(one, (int, float)) or not abs(one) <= sys.float_info.max for one in numbers):
            raise ValueError(f"the figure {self.name!r} has a number that is not finite")

    @property
    def interval(self) -> str:
        """The interval in words, which may be open at one end; empty if there is none."""
        if self.low is None:
            return "" if self.high is None else f"at most {self.high:.4g}"
        return f"at least {self.low:.4g}" if self.high is None else f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The outcome of one audit.

    Attributes:
        statement: the outcome in one sentence.
        verdict: "passed" or "failed" if the audit tests a claim; "informative" if it only measures.
        confidential: whether it was computed from private records, and so is for the operator alone; it is,
            unless something says otherwise.
        details: further facts, as JSON values.

    Raises:
        ValueError: an unknown kind or verdict.
    """

    kind: Kind
    title: str
    statement: str
    verdict: Verdict
    confidential: bool = True
    figures: tuple[Figure, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (("kind", get_args(Kind)), ("verdict", get_args(Verdict))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"a finding's {name} must be one of {', '.join(known)}, not {value!r}")

    def figure(self, name: str) -> Figure:
        """Return the figure with this name, or raise KeyError."""
        return {figure.name: figure for figure in self.figures}[name]

    def as_dict(self) -> dict[str, object]:
        """Return JSON values, which `from_dict` reads."""
        return asdict(self) | {"figures": [asdict(figure) for figure in self.figures]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read what `as_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: the mapping is not a finding.
        """
        figures = tuple(Figure(**figure) for figure in document["figures"])
        return cls(**{**document, "figures": figures})


def as_document(findings: Iterable[AuditFinding]) -> dict[str, object]:
    """Return what `dpfewshot audit --json` prints. It is confidential if any finding is."""
    listed = list(findings)
    return {
        "findings": [finding.as_dict() for finding in listed],
        "confidential": any(finding.confidential for finding in listed),
    }
