"""From a noisy mean to a token: the largest, or a draw at a temperature from the nucleus.

A mechanism whose analysis covers the whole noisy vector may do anything with it that does not look at
the records again: post-processing. Where only the winner is covered (report noisy max) or the draw is the
privacy (private prediction, InvisibleInk) there is nothing to decode, and these settings do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.errors import InvalidPlan
from dpfewshot.exact.random_source import RandomSource

_UNIFORM = 2**53


@dataclass(frozen=True)
class Decoding:
    """How a token is taken from a noisy vector.

    Attributes:
        temperature: 0 takes the largest coordinate; above, tokens are drawn with probability
            proportional to their noisy probability to the power of 1/temperature.
        top_p: the nucleus in (0, 1]: the fewest tokens whose noisy probabilities reach this share
            (Holtzman et al. 2020). 1 keeps all.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:  # noqa: PLR2004 - hotter than that is uniform
            raise InvalidPlan(f"temperature must lie between 0 and 100, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InvalidPlan(f"top_p must lie above 0 and be at most 1, not {self.top_p}")

    @property
    def takes_largest(self) -> bool:
        """Whether no draw is needed: the noisy vector need not leave the compiled core."""
        return self.temperature == 0

    def choose(self, noisy: NDArray[np.int64], random_source: RandomSource | None = None) -> int:
        """The index of the token.

        Args:
            noisy: a released vector, shape (support,), in any unit; negative coordinates count as 0.
            random_source: for tests alone.
        """
        if self.takes_largest or noisy.max() <= 0:
            return int(np.argmax(noisy))
        weights = (np.maximum(noisy, 0) / float(noisy.max())) ** (1 / self.temperature)
        order = np.argsort(-weights, kind="stable")
        cumulative = np.cumsum(weights[order])
        kept = int(np.searchsorted(cumulative, self.top_p * cumulative[-1])) + 1
        position = (
            int(_core.uniform_integers(_UNIFORM, 1, random_source)[0]) / _UNIFORM * cumulative[:kept][-1]
        )
        return int(order[min(int(np.searchsorted(cumulative, position, side="right")), kept - 1)])
