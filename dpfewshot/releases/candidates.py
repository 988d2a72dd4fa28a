"""What may be chosen: prompts, made of released demonstrations and public settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpfewshot.demonstrations import Demonstrations
from dpfewshot.errors import InvalidPlan
from dpfewshot.icl.calibration import Calibration
from dpfewshot.prompts.few_shot import PromptFormat
from dpfewshot.tasks import Task
from dpfewshot.values import Demonstration, counted

MOST_CANDIDATES = 1024
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
        if not isinstance(self.demonstrations, Demonstrations):
            object.__setattr__(self, "demonstrations", Demonstrations(self.demonstrations))
        if not all(isinstance(one, Demonstration) for one in self.demonstrations):
            raise InvalidPlan("a candidate's demonstrations must be Demonstration objects")
        if not self.name:
            count = len(self.demonstrations)
            name = counted(count, "demonstration") if count else "no demonstrations"
            released = ", released calibration" if self.calibration else ""
            object.__setattr__(self, "name", name + released)


def checked_candidates(task: Task, candidates: Iterable[Any]) -> tuple[Candidate, ...]:
    """Return candidates, of which a plain sequence of demonstrations is one.

    Raises:
        InvalidPlan: there are none or too many, one is something else, its wording has other labels than
            the task, or it has a calibration and the task's labels are free.
    """
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


def baseline_of(candidates: Sequence[Candidate]) -> Candidate:
    """The first candidate that needs no release; else the task's own prompt without demonstrations."""
    plain = (one for one in candidates if not len(one.demonstrations) and one.calibration is None)
    return next(plain, Candidate())


def _sequence(one: object) -> Sequence[Demonstration]:
    if isinstance(one, Demonstrations):
        return one
    if isinstance(one, (str, Demonstration)) or not isinstance(one, Iterable):
        raise InvalidPlan("a candidate is a sequence of demonstrations, or a Candidate")
    return tuple(one)
