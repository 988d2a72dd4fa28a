"""The area under an attack's ROC curve, with an interval, and how large differential privacy lets it be.

The area is the chance that a member's score is above a non-member's, ties counting half: Mann and Whitney's U
over the number of pairs. Both are compared under one prompt, which is a trial; the trials' areas are then
averaged. Trials are independent, what is within one is not, so the interval is over trials: Student's t on
the logit scale. Where all trials agree, their spread of 0 says nothing, and it is Clopper and Pearson's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpfewshot.errors import InvalidPlan


@dataclass(frozen=True, slots=True)
class Area:
    """An area under a ROC curve, with its interval.

    Attributes:
        value: in 0..1; one half is guessing.
        low: the lower end of the interval.
        high: the upper end.
    """

    value: float
    low: float
    high: float


def roc_area(members: Sequence[float], non_members: Sequence[float]) -> float:
    """The area under one trial's curve: the share of pairs whose member scores higher, ties counting half.

    Args:
        members: the members' scores, higher for what looks like a member; infinite ones are allowed.
        non_members: the non-members' scores.

    Raises:
        InvalidPlan: there are none of one kind, or a score is no number.
    """
    if len(members) == 0 or len(non_members) == 0:
        raise InvalidPlan("a trial needs a member and a non-member")
    scores = np.concatenate([members, non_members]).astype(np.float64)
    if np.isnan(scores).any():
        raise InvalidPlan("a score is no number")
    ranks = stats.rankdata(scores)[: len(members)]
    wins = float(ranks.sum()) - len(members) * (len(members) + 1) / 2
    return wins / (len(members) * len(non_members))


def average_area(areas: Sequence[float], *, confidence: float = 0.95) -> Area:
    """The trials' mean area with its interval.

    Args:
        areas: of independent trials, each in 0..1.
        confidence: of the interval, in (0, 1).

    Raises:
        InvalidPlan: fewer than two trials.
    """
    if len(areas) < 2:  # noqa: PLR2004 - a spread needs two
        raise InvalidPlan("an interval over trials needs at least two of them")
    array = np.asarray(areas, dtype=np.float64)
    spread = float(array.std(ddof=1))
    interval = _logit_interval if spread > 0 else _exact_interval
    low, high = interval(array, (1 - confidence) / 2)
    return Area(float(array.mean()), low, high)


def largest_area(epsilon: float, delta: float) -> float:
    """The largest expected area that (ε, δ)-differential privacy allows (docs/how-to/attacks.md).

    It is 1 - e^-ε·(1/2 - δ), where neighbours add, remove, zero out or replace one unit, and a fair draw
    decided which of the candidates are members.

    Args:
        epsilon: ε ≥ 0.
        delta: 0 ≤ δ ≤ 1/2.
    """
    return 1 - math.exp(-epsilon) * (0.5 - delta)


def _logit_interval(areas: NDArray[np.float64], tail: float) -> tuple[float, float]:
    mean, trials = float(areas.mean()), len(areas)
    reach = -float(special.stdtrit(trials - 1, tail) * areas.std(ddof=1)) / math.sqrt(trials)
    logit, reach = math.log(mean / (1 - mean)), reach / (mean * (1 - mean))
    return float(special.expit(logit - reach)), float(special.expit(logit + reach))


def _exact_interval(areas: NDArray[np.float64], tail: float) -> tuple[float, float]:
    """Of so many wins in so many trials: for areas that are all 1 it holds whatever is in a trial."""
    trials, wins = len(areas), float(areas.sum())
    low = special.betaincinv(wins, trials - wins + 1, tail) if wins > 0 else 0.0
    high = special.betainccinv(wins + 1, trials - wins, tail) if wins < trials else 1.0
    return float(low), float(high)
