"""The σ = 0 baseline: the token that the prompts together find likeliest. Results say `certified=False`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpfewshot import _core
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Predictions
from dpfewshot.mechanisms.protocol import Draws, Mechanism, Release


@dataclass(frozen=True)
class Noiseless(BaseRelease):
    """What every mechanism is without noise: argmax of the sum of probabilities.

    Attributes:
        top_k: K of the reduced vocabulary; None is the whole vocabulary.
    """

    top_k: int | None
    noise_multiplier: float = field(default=0.0, init=False, repr=False)

    def choose(self, predictions: Predictions) -> int:
        """The likeliest token of the mean; ties go to the lower id."""
        return int(np.argmax(_core.sum_of_probabilities(predictions.private)))


def start_release(
    mechanism: Mechanism, draws: Draws, noise_multiplier: float, random_source: RandomSource | None
) -> Release:
    """The release of one demonstration's tokens: the mechanism's own, or at σ = 0 the common baseline."""
    if noise_multiplier == 0:
        return Noiseless(mechanism.top_k)
    return mechanism.start(draws, noise_multiplier, random_source)
