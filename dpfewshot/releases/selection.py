"""The two releases of a choice: which candidate, and how many units it gets right. Both are exact and (ε, 0).

Proofs: docs/proofs/choice.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.permit import Permit
from dpfewshot.exact import RandomSource
from dpfewshot.exact.choice import discrete_laplace
from dpfewshot.exact.normal import exponential_of_minus
from dpfewshot.exact.rounding import rounded_down, rounded_up
from dpfewshot.releases.scores import GRID, Integers

_NO_AMPLIFICATION: Final = 32
"""From this ε on, amplification by any q gains next to nothing for its price, and e^ε is large."""


@dataclass(frozen=True)
class Selection:
    """Releases the candidate with the largest noisy sum of scores, by permute-and-flip.

    Scores rise or fall together when one unit is added or removed, so no factor 2 is needed.

    Args:
        rate: ε of the release, exact.
    """

    rate: Fraction

    def release(self, scores: Integers, permit: Permit, random_source: RandomSource | None = None) -> int:
        """Return the index of the chosen candidate.

        Args:
            scores: the candidates' sums in steps of 1/GRID, int64, which one unit moves by 0 to GRID.
            permit: of the charge, for the noise scale 1/ε.
            random_source: for tests alone; None is the operating system's generator.
        """
        permit.use(scale_of(self.rate))
        return int(_core.permute_and_flip(scores, *(self.rate / GRID).as_integer_ratio(), random_source))


@dataclass(frozen=True)
class Measurement:
    """Releases counts of units, of which one unit moves all by 1 together: the discrete Laplace mechanism.

    Args:
        rate: ε of the release, exact.
    """

    rate: Fraction

    def release(
        self, cells: Integers, permit: Permit, random_source: RandomSource | None = None
    ) -> NDArray[np.float64]:
        """Return the noisy counts, in units.

        Args:
            cells: sums in steps of 1/GRID, of any shape; one unit moves them by at most GRID in all.
            permit: of the charge, for the noise scale 1/ε.
            random_source: for tests alone; None is the operating system's generator.
        """
        permit.use(scale_of(self.rate))
        rate = (self.rate / GRID).as_integer_ratio()
        noisy = [count + discrete_laplace(*rate, random_source) for count in cells.ravel().tolist()]
        return np.array(noisy, dtype=np.float64).reshape(cells.shape) / GRID


def scale_of(rate: Fraction) -> float:
    """The noise's scale in units."""
    return float(1 / rate)


def sampled_cost(cost: Amount, sampling_rate: Fraction, rate: Fraction) -> Amount:
    """A cost (ε, 0) with its event: randomised response at ε₀ from a sample dominates the release.

    Args:
        cost: of the release.
        sampling_rate: q in (0, 1].
        rate: ε₀ of a release from the sample.
    """
    from dpfewshot.accounting.events import LARGEST_COST, PoissonRandomizedResponse  # loads SciPy

    largest = rounded_up(rate)
    if largest > LARGEST_COST:
        return cost
    return EventCost(cost, PoissonRandomizedResponse(rounded_up(sampling_rate), largest, 1))


def amplified(epsilon: Fraction, sampling_rate: Fraction) -> Fraction:
    """The largest ε₀ whose release from a Poisson sample is (ε, 0), rounded down to a float.

    log(1 + q(exp(ε₀) - 1)) ≤ ε, decided with integer enclosures of exp(-ε₀) and exp(-ε).

    Args:
        epsilon: ε > 0 of the release.
        sampling_rate: q in (0, 1]: each unit is sampled with this probability, by itself.
    """
    if sampling_rate == 1 or epsilon >= _NO_AMPLIFICATION:
        return epsilon
    near = float(epsilon)
    guess = near + math.log1p(float((1 - sampling_rate) / sampling_rate) * -math.expm1(-near))
    candidate = rounded_down(Fraction(guess))
    while not _holds(Fraction(candidate), epsilon, sampling_rate):
        candidate = math.nextafter(candidate, 0.0)
    return max(Fraction(candidate), epsilon)


def _holds(inner: Fraction, outer: Fraction, q: Fraction) -> bool:
    """Whether exp(-outer)·(exp(-inner)·(1 - q) + q) ≤ exp(-inner) for sure."""
    digits = 256 + 2 * math.ceil(inner)
    low, high = exponential_of_minus(*inner.as_integer_ratio(), digits)
    most = exponential_of_minus(*outer.as_integer_ratio(), digits)[1]
    one = 1 << digits
    return most * (high * (1 - q) + q * one) <= low * one
