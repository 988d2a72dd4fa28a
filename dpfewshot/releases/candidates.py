"""What may be chosen, prompts of public parts, and what a choice releases: one of them, and accuracies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

from dpfewshot.demonstrations import Demonstrations, from_line
from dpfewshot.errors import InvalidPlan, InvalidTask
from dpfewshot.icl.calibration import Calibration
from dpfewshot.planning import document
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.releases.selection import Estimate
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, PrivacySpend, counted, delta_text, epsilon_text

MOST_CANDIDATES: Final = 1024
"""Every candidate is scored on every sampled record."""


@dataclass(frozen=True)
class Candidate:
    """A prompt that may be chosen. All of it must be public: nothing here is protected by the choice.

    Args:
        demonstrations: in prompt order; none is zero-shot.
        name: for reports; by default the number of demonstrations.
        calibrated: whether labels are calibrated with content-free texts, as in `icl.Classifier`. Ignored if
            labels are free.
        format: the prompt's wording; None is the task's (`icl.prompt_format`).
        calibration: what `dpf.release_calibration` released for this prompt, instead of content-free texts.
    """

    demonstrations: Sequence[Demonstration] = field(default=(), repr=False)
    name: str = ""
    calibrated: bool = True
    format: PromptFormat | None = None
    calibration: Calibration | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "demonstrations", Demonstrations(self.demonstrations))
        if not all(isinstance(one, Demonstration) for one in self.demonstrations):
            raise InvalidPlan("a candidate's demonstrations must be Demonstration objects")
        if not self.name:
            count = len(self.demonstrations)
            name = counted(count, "demonstration") if count else "no demonstrations"
            released = ", released calibration" if self.calibration else ""
            object.__setattr__(self, "name", name + released)


def checked_candidates(task: Task, candidates: Iterable[Any]) -> tuple[Candidate, ...]:
    """Return candidates, of which a plain sequence of demonstrations is one, or refuse with `InvalidPlan`."""
    if not isinstance(candidates, Iterable):
        raise InvalidPlan(f"candidates must be a list of prompts, not {type(candidates).__name__}")
    listed = tuple(one if isinstance(one, Candidate) else Candidate(_sequence(one)) for one in candidates)
    if not 1 <= len(listed) <= MOST_CANDIDATES:
        raise InvalidPlan(f"there are {len(listed)} candidates: give 1 to {MOST_CANDIDATES}")
    if any(one.format is not None and one.format.labels != task.labels for one in listed):
        raise InvalidPlan(f"a candidate's format must have the labels of task {task.name!r}")
    if task.labels is None and any(one.calibration is not None for one in listed):
        raise InvalidPlan(f"the labels of task {task.name!r} are free: a candidate cannot have a calibration")
    return listed


def _sequence(one: object) -> Sequence[Demonstration]:
    if isinstance(one, (str, Demonstration)) or not isinstance(one, Iterable):
        raise InvalidPlan("a candidate is a sequence of demonstrations, or a Candidate")
    return tuple(one)


PROXY_CAVEAT: Final = (
    "a proxy: other models scored than the one that will use the demonstrations, and choices transfer badly "
    "between models (rank correlation 0.14 on TREC, 0.53 on MIT-D)"
)
UNPROTECTED: Final = "what was chosen has no guarantee of its own"

_NOTHING: Final = PrivacySpend(0.0, 0.0)

_MEMBERS: Final[Mapping[str, tuple[type, ...]]] = {
    "index": (int,),
    "name": (str,),
    "calibrated": (bool,),
    "calibration": (object,),
    "format": (Mapping, type(None)),
    "demonstrations": (list,),
    "accuracy": (Mapping,),
    "baseline": (Mapping,),
    "balanced": (bool,),
    **document.SPEND,
    "total": (Mapping, type(None)),
    "relation": (str,),
    "unit": document.MAYBE_TEXT,
    "certified": (bool,),
    "proxy": (bool,),
}
_FORMAT: Final[Mapping[str, tuple[type, ...]]] = {
    "instruction": (str,),
    "text_field": (str,),
    "label_field": (str,),
    "labels": (list, tuple, type(None)),
    "label_words": (list, tuple, type(None)),
    "text_fields": (list, tuple),
    "multiline": (bool,),
    "chat": (bool,),
}


@dataclass(frozen=True)
class Choice:
    """The prompt that `dpfewshot.choose` chose. All of it is released: log it, store it, publish it.

    Attributes:
        index: of the chosen candidate, from 0; in a search, among all that were scored.
        accuracy: of the chosen prompt, on other units than those that chose it.
        baseline: without demonstrations, on the same units as `accuracy`.
        balanced: whether both are balanced accuracies: every label counts alike.
        spent: (ε, 0) of the choice; None if not certified.
        total: what its account has spent in all, after the choice; None without `account=`.
        relation, unit, certified: as in `icl.Calibration`.
        proxy: whether other models scored than the one that will use the demonstrations.
    """

    index: int
    candidate: Candidate
    accuracy: Estimate
    baseline: Estimate
    spent: PrivacySpend | None
    relation: str
    unit: str | None
    certified: bool
    total: PrivacySpend | None = None
    balanced: bool = False
    proxy: bool = False

    @property
    def demonstrations(self) -> Demonstrations:
        """The chosen demonstrations, in prompt order."""
        return cast("Demonstrations", self.candidate.demonstrations)  # `Candidate` made it one

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
        return not all(one.certified for one in self.ingredients)

    @property
    def covers_all(self) -> bool:
        """Whether `total` can be what the choice and its ingredients cost together.

        It cannot be if the cost of one of them exceeds it: that was released on another account. A smaller
        cost may be another account's, too, so the statement says whose total it is.
        """
        total = self.total
        return total is not None and all(
            one.spent is not None
            and one.spent.epsilon <= total.epsilon
            and one.spent.delta <= total.delta
            and ((one.relation, one.unit) == (self.relation, self.unit) or one.spent == _NOTHING)
            for one in self.ingredients
        )

    def _price(self) -> str:
        if self.spent is None:
            return "no guarantee"
        spend, covers = self.spent, " for the choice"
        if self.total is not None and self.covers_all:
            spend, covers = self.total, " in all on this account"
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
            "unit": self.unit,
            "certified": self.certified,
            "proxy": self.proxy,
            "statement": self.statement,
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returned, or raise `InvalidPlan`, which names the member."""
        where = "the choice"
        told = document.check(where, told, _MEMBERS)
        total, of_total = told["total"], "the choice's 'total'"
        if total is not None:
            total = document.check(of_total, total, document.SPEND)
        if told["index"] < 0:
            raise InvalidPlan("the choice has an 'index' below 0")
        return cls(
            index=told["index"],
            candidate=_candidate(told),
            accuracy=Estimate.from_dict(told["accuracy"]),
            baseline=Estimate.from_dict(told["baseline"]),
            spent=document.spend(where, told, certified=told["certified"]),
            relation=document.relation(where, told["relation"]),
            unit=told["unit"],
            certified=told["certified"],
            total=None if total is None else document.spend(of_total, total, certified=True),
            balanced=told["balanced"],
            proxy=told["proxy"],
        )


def _candidate(told: Mapping[str, Any]) -> Candidate:
    try:
        shown = [from_line(line) for line in told["demonstrations"]]
    except (TypeError, ValueError):
        raise InvalidPlan("the choice has 'demonstrations' of the wrong type") from None
    calibration, prompt = told["calibration"], told["format"]
    return Candidate(
        shown,
        name=told["name"],
        calibrated=told["calibrated"],
        format=None if prompt is None else _format(prompt),
        calibration=None if calibration is None else Calibration.from_dict(calibration),
    )


def _format(told: object) -> PromptFormat:
    words = document.check("the choice's 'format'", told, _FORMAT)
    lists = {
        name: None if words[name] is None else tuple(words[name])
        for name in ("labels", "label_words", "text_fields")
    }
    try:
        return PromptFormat(**{name: words[name] for name in _FORMAT} | lists)
    except InvalidTask as error:
        raise InvalidPlan(f"the choice's 'format': {error}") from None
