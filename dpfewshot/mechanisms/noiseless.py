"""The σ=0 baseline: the token that the prompts together hold likeliest. It says `private=False`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.budget.permit import Permit
from dpfewshot.exact.random_source import RandomSource
from dpfewshot.mechanisms.protocol import Draws, Mechanism, Release
from dpfewshot.mechanisms.vocabulary import likeliest


@dataclass(frozen=True)
class Noiseless:
    """What every mechanism becomes without noise: argmax of the sum of probabilities.

    Attributes:
        top_k: K of the reduced vocabulary; None is the whole vocabulary.
    """

    top_k: int | None

    def support(self, public_logprobs: NDArray[np.float32], excluded: frozenset[int]) -> list[int]:
        """The K likeliest public tokens."""
        return likeliest(public_logprobs, excluded, self.top_k)

    def token(
        self,
        logprobs: NDArray[np.float32],
        public_logprobs: NDArray[np.float32],  # noqa: ARG002 - not every mechanism needs it
        permit: Permit,
    ) -> int:
        """The likeliest token of the mean; ties go to the lower id."""
        permit.use(0.0)
        return int(np.argmax(_core.sum_of_probabilities(logprobs)))


def started(
    mechanism: Mechanism, draws: Draws, noise_multiplier: float, random_source: RandomSource | None
) -> Release:
    """The mechanism at work on one demonstration; without noise, the baseline that all share."""
    if noise_multiplier == 0:
        return Noiseless(mechanism.top_k)
    return mechanism.start(draws, noise_multiplier, random_source)
