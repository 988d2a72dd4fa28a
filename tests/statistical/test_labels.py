"""Releases of labels against their exact probabilities at p < 1e-9, with controls that must be rejected."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from scipy import stats

from dpfewshot.account.permit import Permit
from dpfewshot.releases import labels
from dpfewshot.releases.labels import _NoisyMax, _StabilityHistogram, smallest_threshold

IMPOSSIBLE = 1e-9
DRAWS = 20_000
VOTES = {"a": 6, "b": 4, "d": 3, "elsewhere": 9}
CANDIDATES = ("d", "c", "b", "a")


def first_pick(left: tuple[str, ...], rate: float) -> dict[str, float]:
    """Permute-and-flip: p_i ∫ Π_{j≠i} (1 - p_j t) dt over 0..1."""
    best = max(VOTES.get(label, 0) for label in left)
    heads = {label: math.exp(-rate * (best - VOTES.get(label, 0))) for label in left}
    return {
        label: heads[label]
        * math.prod((Polynomial([1, -heads[j]]) for j in left if j != label), start=Polynomial([1])).integ()(
            1
        )
        for label in left
    }


def pairs_p_value(released: list[tuple[str, ...]], rate: float) -> float:
    """Chi-square over all ordered pairs of the first two picks."""
    cells = {}
    for one, two in itertools.permutations(CANDIDATES, 2):
        left = tuple(label for label in CANDIDATES if label != one)
        cells[one, two] = first_pick(CANDIDATES, rate)[one] * first_pick(left, rate)[two]
    assert sum(cells.values()) == pytest.approx(1)
    observed = [released.count(pair) for pair in cells]
    return float(stats.chisquare(observed, np.array(list(cells.values())) * len(released)).pvalue)


def test_peeling_follows_permute_and_flip_round_by_round() -> None:
    epsilon, count = 1.5, 2
    mechanism = _NoisyMax(CANDIDATES, count, epsilon)
    permit = Permit(DRAWS * count, count / epsilon)
    released = [tuple(mechanism.choose(VOTES, permit, None)) for _ in range(DRAWS)]
    assert pairs_p_value(released, epsilon / count) > IMPOSSIBLE
    assert pairs_p_value(released, 0.9 * epsilon / count) < IMPOSSIBLE
    assert pairs_p_value(released, epsilon) < IMPOSSIBLE  # every round with the whole ε


def tail(noise: int, epsilon: float) -> float:
    """P(X ≥ noise) for a noise of at least 1."""
    return math.exp(-epsilon * noise) / (1 + math.exp(-epsilon))


def times_released(votes: int, epsilon: float, delta: float, count: int = DRAWS) -> int:
    """Of so many labels with so many votes each, in one release: their noise is independent."""
    alike = {f"label {i}": votes for i in range(count)}
    return len(_StabilityHistogram(count, epsilon, delta).choose(alike, Permit(1, 1 / epsilon), None))


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), (0.3, 0.2)])
def test_a_label_of_one_unit_comes_out_with_probability_delta_at_most(epsilon: float, delta: float) -> None:
    noise = smallest_threshold(Fraction(epsilon), Fraction(delta)) - 1
    assert tail(noise, epsilon) <= delta < tail(noise - 1, epsilon)
    released = times_released(1, epsilon, delta)
    assert stats.binomtest(released, DRAWS, delta, alternative="greater").pvalue > IMPOSSIBLE
    assert stats.binomtest(released, DRAWS, tail(noise, epsilon)).pvalue > IMPOSSIBLE


def test_control_a_threshold_one_lower_releases_it_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "smallest_threshold", lambda *given: smallest_threshold(*given) - 1)
    released = times_released(1, 1.0, 0.05)
    assert stats.binomtest(released, DRAWS, 0.05, alternative="greater").pvalue < IMPOSSIBLE


def test_a_label_of_several_units_comes_out_as_often_as_the_noise_says() -> None:
    epsilon, delta, noise, count = 0.1, 1e-3, 20, 50_000
    votes = smallest_threshold(Fraction(epsilon), Fraction(delta)) - noise
    released = times_released(votes, epsilon, delta, count)
    assert stats.binomtest(released, count, tail(noise, epsilon)).pvalue > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert stats.binomtest(released, count, tail(noise, epsilon * wrong)).pvalue < IMPOSSIBLE
