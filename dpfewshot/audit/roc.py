"""The area under an attack's ROC curve with its interval, and the largest area that (ε, δ) allows.

The area is the probability that a member's score exceeds a non-member's, ties counting half: Mann and
Whitney's U divided by the number of pairs. A trial compares both under one prompt; trials are averaged.
Trials are independent, scores within one are not, so the interval is over trials: Student's t on the logit
scale. Where all trials agree, their spread of 0 says nothing, and the interval is Clopper and Pearson's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpfewshot.audit.intervals import clopper_pearson, student_t_reach
from dpfewshot.errors import InvalidPlan


@dataclass(frozen=True, slots=True)
class Area:
    """An area under a ROC curve, with its interval.

    Attributes:
        value: in 0..1; guessing has 1/2.
        low: the interval's lower end.
        high: its upper end.
    """

    value: float
    low: float
    high: float


def roc_area(members: Sequence[float], non_members: Sequence[float]) -> float:
    """Return the area under one trial's curve: the share of pairs whose member scores higher.

    Args:
        members: the members' scores, higher for likelier members; they may be infinite.
        non_members: the non-members' scores.

    Raises:
        InvalidPlan: a list is empty, or a score is NaN.
    """
    if len(members) == 0 or len(non_members) == 0:
        raise InvalidPlan("a trial needs at least one member and one non-member")
    scores = np.concatenate([members, non_members]).astype(np.float64)
    if np.isnan(scores).any():
        raise InvalidPlan("a score is not a number")
    ranks = stats.rankdata(scores)[: len(members)]
    wins = float(ranks.sum()) - len(members) * (len(members) + 1) / 2
    return wins / (len(members) * len(non_members))


def average_area(areas: Sequence[float], *, confidence: float = 0.95) -> Area:
    """Return the mean area of the trials with its interval.

    Args:
        areas: of independent trials, each in 0..1.
        confidence: of the interval, in (0, 1).

    Raises:
        InvalidPlan: fewer than two trials.
    """
    if len(areas) < 2:  # noqa: PLR2004 - a spread needs two
        raise InvalidPlan("an interval over trials needs at least two trials")
    array = np.asarray(areas, dtype=np.float64)
    spread = float(array.std(ddof=1))
    tail = (1 - confidence) / 2
    if spread > 0:
        low, high = _logit_interval(array, tail)
    else:  # exact where all areas are 1: that many wins in that many trials
        low, high = clopper_pearson(float(array.sum()), len(array), tail)
    return Area(float(array.mean()), low, high)


def largest_area(epsilon: float, delta: float) -> float:
    """Return the largest expected area that (ε, δ)-differential privacy allows (docs/how-to/audit.md).

    It is 1 - e^-ε·(1/2 - δ) if neighbours add, remove, zero out or replace one unit and a fair draw chose the
    members among the candidates.

    Args:
        epsilon: ε ≥ 0.
        delta: 0 ≤ δ ≤ 1/2.
    """
    return 1 - math.exp(-epsilon) * (0.5 - delta)


def _logit_interval(areas: NDArray[np.float64], tail: float) -> tuple[float, float]:
    mean = float(areas.mean())
    logit, reach = special.logit(mean), student_t_reach(areas, tail) / (mean * (1 - mean))
    return float(special.expit(logit - reach)), float(special.expit(logit + reach))
