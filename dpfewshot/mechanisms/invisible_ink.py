r"""InvisibleInk (Vinod, Pillutla, Thakurta 2025): clips only what the records add to the public prompt.

The paper's symbols: φ_i are the log-probabilities of the prompt with subset i and φ_pub those of the public
prompt; B is the constant number of prompts; φ̄ = φ_pub + (1/B) Σ clip_[-C,C](φ_i - φ_pub) (DClip). The
candidates are {y: φ_pub(y) ≥ b - 2C/B} with b the k-th largest of φ_pub (Top-k+). The token is a draw from
softmax(φ̄/τ), which is the exponential mechanism.

Noise multiplier (docs/proofs/invisible-ink.md): σ = B·τ/C with one record per prompt, B·τ/(2C) with N > 1, so
that a token costs ρ = 1/(2σ²). τ is given, and C follows from the calibrated σ.

The draw is all the noise there is: a small budget leaves the text as whole as a large one, and only less like
the records. So this is the planner's mechanism, on Poisson draws, which the paper does not have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from dpfewshot import _core
from dpfewshot.backends.protocol import Logprobs
from dpfewshot.exact import RandomSource
from dpfewshot.mechanisms.base import BaseRelease, Draws, Predictions, Release, check_range, likeliest
from dpfewshot.mechanisms.choice import COLDEST, HOTTEST, SoftmaxMechanism, softmax_rate, solved_clip


@dataclass(frozen=True)
class InvisibleInk(SoftmaxMechanism):
    """A draw from the public softmax, shifted by the mean of the clipped differences from it.

    Args:
        top_k: k of Top-k+, which keeps k candidates and those close behind; None is the whole vocabulary.
        temperature: τ in 0.001..1000.
    """

    name: ClassVar[str] = "invisible-ink"
    top_k: int | None = 100
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, COLDEST, HOTTEST)

    def noise_on_mean(self, draws: Draws, noise_multiplier: float) -> float:
        """τ/C: one over the most nats by which the records together can lift a token, or lower it.

        It stands for noise where plans are compared: it falls with M and rises with σ as noise does.
        """
        return noise_multiplier * draws.row_change.rows / draws.prompts

    def start(
        self, draws: Draws, noise_multiplier: float, random_source: RandomSource | None = None
    ) -> Release:
        """See `Mechanism.start`."""
        clip = solved_clip(noise_multiplier, self.temperature, draws.prompts, draws.row_change)
        rate = softmax_rate(Fraction(self.temperature), draws.prompts)
        return _Release(self.top_k, noise_multiplier, random_source, clip, draws.prompts, rate)


@dataclass
class _Release(BaseRelease):
    """Subtracts, clips, sums, adds the public row and draws: compiled, in integers."""

    clip: float
    prompts: int
    rate: Fraction

    def support(self, public_logprobs: Logprobs, excluded: frozenset[int]) -> list[int]:
        """Top-k+: the k likeliest, and those that one prompt could lift to them; at most the core's limit.

        A token without a finite public log-probability is a candidate only if no other is left.
        """
        allowed = np.isfinite(public_logprobs)
        allowed[list(excluded)] = False
        candidates = np.flatnonzero(allowed)
        if not candidates.size:
            return likeliest(public_logprobs, excluded, self.top_k)
        ranked = candidates[np.argsort(-public_logprobs[candidates], kind="stable")]
        bar = -math.inf
        if self.top_k is not None:
            bar = float(public_logprobs[ranked[: self.top_k][-1]]) - 2 * self.clip / self.prompts
        reaching = int((public_logprobs[ranked] >= bar).sum())
        kept: list[int] = np.sort(ranked[: min(reaching, _core.WIDEST)]).tolist()
        return kept

    def choose(self, predictions: Predictions) -> int:
        public, rate = predictions.public, self.rate.as_integer_ratio()
        if not np.isfinite(public).all():  # a candidate without a finite value: a flat row
            public = np.full_like(public, -math.log(len(public)))
        return _core.sample_of_clipped_differences(
            predictions.private, public, self.clip, self.prompts, *rate, self.random_source
        )
