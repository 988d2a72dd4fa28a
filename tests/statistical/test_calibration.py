"""A calibration's noise at p < 1e-9; 10 % off in its scale is caught."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfewshot.account.amounts import Amount
from dpfewshot.account.permit import Permit
from dpfewshot.releases.calibration import NoisyMean

IMPOSSIBLE = 1e-9
LABELS = 50_000


def p_value(noise: np.ndarray, deviation: float) -> float:
    """Of the noise's variance, in both directions."""
    ratio = float((noise**2).sum()) / deviation**2
    return 2 * min(stats.chi2.cdf(ratio, LABELS), stats.chi2.sf(ratio, LABELS))


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 3)])
def test_the_noise_has_the_stated_deviation_and_no_other(rate: Fraction) -> None:
    mean = NoisyMean(rate, 7.5, LABELS, Amount(1, 1))
    population = Fraction(1_000)
    noise = mean.release(np.zeros((0, LABELS)), population, Permit.unpaid(1, 7.5), None)
    stated = mean.scale * mean.nats(population)
    assert stated == pytest.approx(7.5 * mean.clip / (1_000 * float(rate)), rel=1e-4)
    assert p_value(noise, stated) > IMPOSSIBLE
    assert stats.kstest(noise / stated, "norm").pvalue > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert p_value(noise, stated * wrong) < IMPOSSIBLE
