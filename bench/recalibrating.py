"""A prompt is chosen, then its calibration is released: on kept log-probabilities, by the package's own release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bench.choosing import DRAWS, Items, Sample, halves, selected
from dpfewshot.account.amounts import Amount
from dpfewshot.account.permit import Permit
from dpfewshot.accounting import PoissonGaussian, calibrate
from dpfewshot.exact.rounding import rounded_up
from dpfewshot.releases.calibration import NoisyMean
from dpfewshot.values import PrivacyBudget

CALIBRATION_EPSILON = 0.2
"""Of a released calibration; the choice before it has the rest."""

DELTA = 1e-6
"""Its δ."""

SCORE = "likelihood"
"""What chooses: the probability of the label, after contextual calibration."""


@dataclass(frozen=True)
class Recalibrated:
    """Prompts, one of which is chosen and calibrated.

    Attributes:
        logprobs: each prompt's, of the scored records, without calibration: shape (scored, labels).
        scores: what chooses, by kind: shape (options, scored). The options are all prompts with one calibration, then
            all with the next.
        sample: the scored records.
        epsilon: of the choice and the calibration together.
    """

    logprobs: Mapping[str, NDArray[np.float64]]
    scores: Mapping[str, Items]
    sample: Sample
    epsilon: float

    def released(self, tests: Mapping[str, NDArray[np.float64]], truth: Items) -> list[int]:
        """In how many draws each test item is right: one half of the records chooses, all of them calibrate."""
        right = np.zeros(len(truth), dtype=np.int64)
        for _ in range(DRAWS):
            name = self._chosen(SCORE, halves(self.sample.scored)[0])
            bias = self._bias(self.logprobs[name])
            right += (tests[name] - bias).argmax(axis=1) == truth
        return [int(count) for count in right]

    def by_score(self, truth: Items) -> dict[str, float]:
        """The accuracy of what one half of the records chooses and calibrates, on the other half."""
        achieved: dict[str, list[float]] = {kind: [] for kind in self.scores}
        for _ in range(DRAWS):
            selects, uses = halves(self.sample.scored)
            for kind, found in achieved.items():
                logprobs = self.logprobs[self._chosen(kind, selects)]
                labelled = (logprobs[uses] - self._bias(logprobs[selects])).argmax(axis=1)
                found.append(float((labelled == truth[uses]).mean()))
        return {kind: round(float(np.mean(each)), 4) for kind, each in achieved.items()}

    def _chosen(self, kind: str, items: Items) -> str:
        names = list(self.logprobs)
        rate = self.sample.rate(self.epsilon - CALIBRATION_EPSILON)
        return names[selected(self.scores[kind], items, rate) % len(names)]

    def _bias(self, logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
        sample = Sample(len(logprobs), self.sample.population)
        return released_bias(np.exp(logprobs), sample, CALIBRATION_EPSILON)


@cache
def noisy_mean(sample: Sample, epsilon: float, labels: int) -> NoisyMean:
    """The release of a calibration, as `dpf.release_calibration` plans it."""
    rate = rounded_up(sample.sampling_rate)
    sigma = calibrate(lambda noise: PoissonGaussian(rate, noise, 1), epsilon=epsilon, delta=DELTA)
    return NoisyMean(sample.sampling_rate, sigma, labels, Amount.of_budget(PrivacyBudget(epsilon, DELTA)))


def released_bias(probabilities: NDArray[np.float64], sample: Sample, epsilon: float) -> NDArray[np.float64]:
    """Each label's released bias in nats, shape (labels,).

    Args:
        probabilities: of the records that were scored, shape (scored, labels).
        sample: those records.
        epsilon: of the release.
    """
    mean = noisy_mean(sample, epsilon, probabilities.shape[1])
    permit = Permit.unpaid(1, mean.noise_multiplier)
    return mean.release(probabilities, Fraction(sample.population), permit, None)
