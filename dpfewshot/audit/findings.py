"""What an audit found: the values that every audit returns, the command line prints and the report draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_args

from dpfewshot.runtime.deprecation import renamed_fields

Kind = Literal["membership", "influence", "private-prediction", "canary", "leak"]
Verdict = Literal["passed", "failed", "informative"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured, in the field's terms.
        value: the estimate, finite.
        low: the lower end of its interval or confidence bound, where it has one.
        high: the upper end.
        reference: what it is held against: the paper's figure, or the theoretical one.

    Raises:
        ValueError: a number that is not finite, which no JSON can carry.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    reference: float | None = None

    def __post_init__(self) -> None:
        numbers = (self.value, self.low, self.high, self.reference)
        if not all(number is None or math.isfinite(number) for number in numbers):
            raise ValueError(f"the figure {self.name!r} has a number that is not finite")


@renamed_fields(private="confidential")
@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one audit.

    Attributes:
        kind: which audit it was.
        title: of a section or a table, for people.
        statement: what was found, in one sentence for people.
        verdict: "passed" or "failed" where the audit tests a claim; "informative" where it measures.
        confidential: whether it was computed from private records: then it is for the operator alone.
        figures: the numbers.
        details: what else there is to know, of a kind that JSON carries.

    Raises:
        ValueError: a kind or a verdict that there is not.
    """

    kind: Kind
    title: str
    statement: str
    verdict: Verdict
    confidential: bool
    figures: tuple[Figure, ...]
    details: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("kind", self.kind, get_args(Kind)),
            ("verdict", self.verdict, get_args(Verdict)),
        ):
            if value not in known:
                raise ValueError(f"the {name} of a finding is one of {', '.join(known)}, not {value!r}")

    def figure(self, name: str) -> Figure:
        """The figure of that name.

        Raises:
            KeyError: there is none.
        """
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(name)

    def as_dict(self) -> dict[str, object]:
        """For JSON; `from_dict` reads it again."""
        return {
            "kind": self.kind,
            "title": self.title,
            "statement": self.statement,
            "verdict": self.verdict,
            "private": self.confidential,
            "figures": [asdict(figure) for figure in self.figures],
            "details": dict(self.details),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The finding that `as_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: the mapping is not one.
        """
        fields = dict(document)
        figures = tuple(Figure(**figure) for figure in fields.pop("figures"))
        return cls(confidential=fields.pop("private"), figures=figures, **fields)


def as_document(findings: Iterable[Finding]) -> dict[str, object]:
    """What `dpfewshot audit --json` prints: private as soon as one finding is."""
    listed = list(findings)
    return {
        "findings": [finding.as_dict() for finding in listed],
        "private": any(finding.confidential for finding in listed),
    }
