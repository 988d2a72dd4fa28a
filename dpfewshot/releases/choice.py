"""What a choice releases: a prompt, its accuracy, and the accuracy without demonstrations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from dpfewshot.demonstrations import Demonstrations, from_line
from dpfewshot.errors import InvalidPlan
from dpfewshot.icl.calibration import Calibration
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.releases.candidates import Candidate
from dpfewshot.releases.estimates import Estimate
from dpfewshot.values import Demonstration, PrivacySpend, Relation, delta_text, epsilon_text

PROXY_CAVEAT: Final = (
    "a proxy: other models scored than the one that will use the demonstrations, and choices transfer badly "
    "between models (rank correlation 0.14 on TREC, 0.53 on MIT-D)"
)
"""What a choice says that was scored by other models than the one that will use it."""

UNPROTECTED: Final = "what was chosen has no guarantee of its own"
"""What a choice says of demonstrations, or of a calibration, that were made without privacy."""

_NOTHING: Final = PrivacySpend(0.0, 0.0)


@dataclass(frozen=True)
class Choice:
    """The prompt that `dpfewshot.choose` chose. All of it is released: log it, store it, publish it.

    Attributes:
        index: of the chosen candidate, from 0.
        candidate: the chosen prompt.
        accuracy: of the chosen prompt, on other units than those that chose it.
        baseline: without demonstrations, on the same units as `accuracy`.
        balanced: whether both are balanced accuracies: every label counts alike.
        spent: (ε, 0) of the choice; None if `private` is false.
        total: what its account has spent in all, after the choice; None without `ledger=`.
        relation: the neighbouring relation, "add-remove" or "zero-out".
        private: whether (ε, δ) holds. False for seeded runs.
        proxy: whether other models scored than the one that will use the demonstrations.
    """

    index: int
    candidate: Candidate
    accuracy: Estimate
    baseline: Estimate
    spent: PrivacySpend | None
    relation: str
    private: bool
    total: PrivacySpend | None = None
    balanced: bool = False
    proxy: bool = field(default=False)

    @property
    def demonstrations(self) -> Demonstrations:
        """The chosen demonstrations, in prompt order."""
        return Demonstrations(
            self.candidate.demonstrations,
            plan_spend=getattr(self.candidate.demonstrations, "plan_spend", None),
        )

    @property
    def statement(self) -> str:
        """The accuracies and their price, in one sentence."""
        figure = "balanced accuracy " if self.balanced else ""
        calibrated = self.candidate.calibration is not None
        if len(self.demonstrations):
            also = " and their calibration" if calibrated else ""
            found = f"with these demonstrations{also} {figure}{self.accuracy}, without {self.baseline}"
        elif calibrated:
            found = f"with the released calibration {figure}{self.accuracy}, without {self.baseline}"
        else:
            found = f"no demonstrations are chosen: {figure}{self.accuracy}"
        caveats = [UNPROTECTED] * self.unprotected + [PROXY_CAVEAT] * self.proxy
        return "; ".join([f"{found} ({self._price()})", *caveats])

    @property
    def ingredients(self) -> tuple[Demonstration | Calibration, ...]:
        """What the chosen prompt is made of: its demonstrations, and its calibration if it has one."""
        calibration = self.candidate.calibration
        return (*self.demonstrations, *([] if calibration is None else [calibration]))

    @property
    def unprotected(self) -> bool:
        """Whether a chosen demonstration, or the prompt's calibration, has no guarantee of its own."""
        return not all(one.private for one in self.ingredients)

    @property
    def covers_all(self) -> bool:
        """Whether `total` can be what the choice and its ingredients cost together.

        It cannot be if the cost of one of them exceeds it: that was released on another account.
        """
        total = self.total
        return total is not None and all(
            one.spent is not None
            and one.spent.epsilon <= total.epsilon
            and one.spent.delta <= total.delta
            and (one.relation == self.relation or one.spent == _NOTHING)
            for one in self.ingredients
        )

    def _price(self) -> str:
        if self.spent is None:
            return "no guarantee"
        spend, covers = self.spent, " for the choice"
        if self.total is not None and self.covers_all:
            spend, covers = self.total, " in all"
        epsilon = epsilon_text(spend.epsilon).rstrip("0").rstrip(".")
        return f"ε = {epsilon}{covers}, δ = {delta_text(spend.delta)}, neighbours {self.relation}"

    def as_dict(self) -> dict[str, object]:
        """The object that `dpfewshot choose --json` prints."""
        prompt, released = self.candidate.format, self.candidate.calibration
        return {
            "index": self.index,
            "name": self.candidate.name,
            "calibrated": self.candidate.calibrated,
            "calibration": None if released is None else released.as_dict(),
            "format": None if prompt is None else dataclasses.asdict(prompt),
            "demonstrations": self.demonstrations.to_lines(),
            "accuracy": self.accuracy.as_dict(),
            "baseline": self.baseline.as_dict(),
            "balanced": self.balanced,
            "epsilon": self.spent.epsilon if self.spent else None,
            "delta": self.spent.delta if self.spent else None,
            "total": dataclasses.asdict(self.total) if self.total else None,
            "relation": self.relation,
            "private": self.private,
            "proxy": self.proxy,
            "statement": self.statement,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returned.

        Raises:
            InvalidPlan: it is something else.
        """
        try:
            return cls._from_dict(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidPlan("is not a choice, as dpfewshot choose --json prints it") from None

    @classmethod
    def _from_dict(cls, document: Mapping[str, Any]) -> Self:
        prompt, total = document["format"], document["total"]
        released = document.get("calibration")  # choices of older versions have none
        private = document["private"] is True
        candidate = Candidate(
            Demonstrations(from_line(line) for line in document["demonstrations"]),
            name=str(document["name"]),
            calibrated=document["calibrated"] is True,
            format=None if prompt is None else _format(prompt),
            calibration=None if released is None else Calibration.from_dict(released),
        )
        return cls(
            index=int(document["index"]),
            candidate=candidate,
            accuracy=Estimate.from_dict(document["accuracy"]),
            baseline=Estimate.from_dict(document["baseline"]),
            spent=_spend(document) if private else None,
            relation=Relation(document["relation"]),
            private=private,
            total=None if total is None else _spend(total),
            balanced=document["balanced"] is True,
            proxy=document["proxy"] is True,
        )


def _spend(document: Mapping[str, Any]) -> PrivacySpend:
    epsilon, delta = float(document["epsilon"]), float(document["delta"])
    if not (epsilon >= 0 and 0 <= delta < 1):
        raise ValueError("a spend has epsilon >= 0 and delta in [0, 1)")
    return PrivacySpend(epsilon, delta)


def _format(document: Mapping[str, Any]) -> PromptFormat:
    lists = {name: document[name] for name in ("labels", "label_words")}
    return PromptFormat(
        **{**document, **{name: None if value is None else tuple(value) for name, value in lists.items()}}
    )
