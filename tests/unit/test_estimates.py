"""Estimates of an accuracy: their words, their range, and intervals that have a width."""

import pytest

from dpfewshot.releases.selection import Estimate, Noise, estimate


def test_estimates_in_words() -> None:
    assert str(Estimate(0.842, 0.83, 0.86)) == "84 ± 2 %"
    assert str(Estimate(0.842, 0.8371, 0.8469)) == "84.2 ± 0.5 %"
    assert str(Estimate(1.0, 0.97, 1.0)) == "100 ± 3 %"


def test_noise_below_zero_leaves_no_interval_without_a_width() -> None:
    noise = Noise(5.0, 2)
    for right, wrong in ((192.7, -32.5), (-22.5, 26.7)):
        one = estimate(right, wrong, noise)
        assert one.high - one.low > 0.05
        assert one == estimate(max(right, 0.0), max(wrong, 0.0), noise)


def test_estimates_stay_in_range() -> None:
    noise = Noise(5.0, 2)
    assert estimate(-3.0, 2.0, noise) == Estimate(0.5, 0.0, 1.0)
    for right, wrong in ((-3.0, 40.0), (40.0, -3.0), (0.5, 0.1), (60.0, 20.0)):
        one = estimate(right, wrong, noise)
        assert 0 <= one.low <= one.value <= one.high <= 1
    with pytest.raises(ValueError, match="low"):
        Estimate.from_dict({"value": 0.5, "low": 0.6, "high": 0.7})
