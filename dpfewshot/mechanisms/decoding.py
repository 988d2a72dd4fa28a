"""From a noisy vector to a token: the largest coordinate, or a draw at a temperature from the nucleus.

A mechanism whose analysis covers the whole noisy vector may apply any post-processing to it. Where the
analysis covers only the winner (report noisy max), or the draw itself gives the privacy (private prediction,
InvisibleInk), there is nothing to decode and these settings do not exist.
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
    """How a token follows from a noisy vector.

    Attributes:
        temperature: in 0..100. 0 takes the largest coordinate; above 0, tokens are drawn with probability
            proportional to their noisy probability to the power 1/temperature.
        top_p: the nucleus in (0, 1]: the fewest tokens whose noisy probabilities reach this share (Holtzman
            et al. 2020). 1 keeps all.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:  # noqa: PLR2004 - hotter is uniform
            raise InvalidPlan(f"temperature must lie between 0 and 100, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InvalidPlan(f"top_p must lie above 0 and be at most 1, not {self.top_p}")

    @property
    def takes_largest(self) -> bool:
        """Whether the noisy vector can stay in the compiled core, since nothing is drawn from it."""
        return self.temperature == 0

    def choose(self, noisy: NDArray[np.int64], random_source: RandomSource | None = None) -> int:
        """The index of the token.

        Args:
            noisy: a released vector, shape (support,), on any scale; negative coordinates count as 0.
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
