"""Accuracies from noisy counts, with intervals that cover the noise and the sampling of the units.

Let p be the accuracy in the population that the units come from, A the units' total weight, and R and W the
noisy counts of right and wrong. T(p) = (1 - p)R - pW has mean 0. Its variance is at most p(1 - p)A for the
sampling, plus the noise's. The interval holds every p for which |T(p)| is not too large, as Wilson's does,
with a continuity correction (docs/proofs/choice.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from dpfewshot.errors import InvalidPlan
from dpfewshot.planning.document import NUMBER, check

CONFIDENCE: Final = 0.95

_Z_COUNT: Final = 2.5758
"""The normal quantile of 1 - 0.005: the true weight exceeds its upper bound with probability 0.5 %."""

_Z_ACCURACY: Final = 2.0047
"""The normal quantile of 1 - 0.0225: T(p) is too large with probability 4.5 %."""

_CONTINUITY: Final = 0.5
_BISECTIONS: Final = 40


@dataclass(frozen=True, slots=True)
class Estimate:
    """An accuracy in 0..1, with its 95 % confidence interval. Released: publish it.

    Attributes:
        value: the estimate.
        low: the interval's lower end.
        high: the interval's upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The percentage and a symmetric interval that contains `low` and `high`: "84 ± 2 %"."""
        percent, low, high = 100 * self.value, 100 * self.low, 100 * self.high
        digits = 0 if max(high - percent, percent - low) >= 1 else 1
        shown = round(percent, digits)
        margin = max(high - shown, shown - low) * 10**digits
        return f"{shown:.{digits}f} ± {math.ceil(round(margin, 6)) / 10**digits:.{digits}f} %"

    def as_dict(self) -> dict[str, float]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returned.

        Raises:
            InvalidPlan: a value is missing, or not in 0 ≤ low ≤ value ≤ high ≤ 1.
        """
        told = check("an estimate", document, dict.fromkeys(("value", "low", "high"), NUMBER))
        value, low, high = float(told["value"]), float(told["low"]), float(told["high"])
        if not 0 <= low <= value <= high <= 1:
            raise InvalidPlan("an estimate has 0 <= low <= value <= high <= 1")
        return cls(value, low, high)


@dataclass(frozen=True)
class Noise:
    """The noise of a count of right or of wrong.

    Attributes:
        scale: of each Laplace variable, in units: 1/ε of the release.
        terms: how many independent ones the count sums.
    """

    scale: float
    terms: int

    def quantile(self, z: float, right: float, wrong: float) -> float:
        """Return a quantile of right·X + wrong·Y for the noise X and Y of the two counts.

        Cornish and Fisher's expansion, from the normal quantile z, to the fourth cumulant.
        """
        variance = 2 * self.terms * self.scale**2 * (right**2 + wrong**2)
        if variance == 0:
            return 0.0
        fourth = 12 * self.terms * self.scale**4 * (right**4 + wrong**4)
        return math.sqrt(variance) * (z + (z**3 - 3 * z) * fourth / variance**2 / 24)


def estimate(right: float, wrong: float, noise: Noise) -> Estimate:
    """Estimate an accuracy from noisy counts.

    Args:
        right: the noisy weight of right answers, in units; it may be negative.
        wrong: that of wrong answers.
        noise: of both.

    Returns:
        The accuracy right/(right + wrong), clipped to [0, 1], with its 95 % interval; ½ in [0, 1] if no unit
        is seen above the noise.
    """
    if right + wrong <= 0:
        return Estimate(0.5, 0.0, 1.0)
    # No count is below 0. As |T(p)| falls and A grows, no p leaves the interval.
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    total = right + wrong
    value = right / total
    most = total + noise.quantile(_Z_COUNT, 1.0, 1.0)

    def possible(p: float) -> bool:
        sampling = _Z_ACCURACY**2 * most * p * (1 - p)
        noisy = noise.quantile(_Z_ACCURACY, 1 - p, p) ** 2
        return abs(right - p * total) <= _CONTINUITY + math.sqrt(sampling + noisy)

    return Estimate(value, _end(possible, value, 0.0), _end(possible, value, 1.0))


def _end(possible: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the end of the interval between a value inside and a bound, not on the inner side of it."""
    if possible(outside):
        return outside
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if possible(middle) else (inside, middle)
    return outside
