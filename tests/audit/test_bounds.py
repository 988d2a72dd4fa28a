"""Clopper and Pearson's bounds, to the last digits that mean anything."""

import pytest
from scipy import stats

from dpfewshot.audit.bounds import Rate


@pytest.mark.parametrize(
    ("seen", "plays", "beta", "low", "high"),
    [
        (0, 1000, 8e-5, 0.0, 0.009389128199736557),
        (1, 1000, 8e-5, 8.000319697042097e-08, 0.011932548063013939),
        (37, 1000, 8e-5, 0.018468518982265997, 0.06484385298863493),
        (500, 1000, 0.025, 0.46854917297179194, 0.5314508270282081),
        (999, 1000, 1e-3, 0.9908045023646124, 0.9999989995001669),
        (1000, 1000, 8e-5, 0.9906108718002634, 1.0),
        (1, 100_000, 1e-9, 1.000000000499995e-14, 0.00023936982214649532),
        (3, 7, 0.1, 0.16963841739720056, 0.7213979514182869),
    ],
)
def test_clopper_pearson_bounds(seen: int, plays: int, beta: float, low: float, high: float) -> None:
    rate = Rate(seen, plays, beta)
    assert rate.low == pytest.approx(low, rel=1e-12, abs=1e-300)
    assert rate.high == pytest.approx(high, rel=1e-12, abs=1e-300)
    if seen:  # what the bounds mean
        assert stats.binom.sf(seen - 1, plays, rate.low) == pytest.approx(beta)
    if seen < plays:
        assert stats.binom.cdf(seen, plays, rate.high) == pytest.approx(beta)
