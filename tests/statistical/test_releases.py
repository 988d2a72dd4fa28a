"""Choices, labels and calibrations against their exact laws at p < 1e-9, with controls that must fail."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import dpfewshot as dpf
from dpfewshot.account.amounts import Amount
from dpfewshot.account.permit import Permit
from dpfewshot.releases import labels
from dpfewshot.releases.calibration import NoisyMean
from dpfewshot.releases.labels import _NoisyMax, _StabilityHistogram, smallest_threshold
from dpfewshot.releases.selection import GRID, Noise, best_of, estimate, noisy_counts
from tests.support.laws import IMPOSSIBLE, noisy_max, p_value

DRAWS = 40_000

RATE = Fraction(1, 2)
SCORES = [10.0, 8.5, 7.0, 2.0]


def permit(uses: int = DRAWS) -> Permit:
    return Permit(uses, 1 / float(RATE))


def test_the_choice_is_permute_and_flip_at_the_full_rate() -> None:
    steps = np.array([round(score * GRID) for score in SCORES], dtype=np.int64)
    allowed = permit()
    chosen = [best_of(steps, RATE, allowed) for _ in range(DRAWS)]
    observed = np.bincount(chosen, minlength=len(SCORES))

    def fit(rate: Fraction) -> float:
        return p_value(observed, noisy_max(steps, rate / GRID))

    assert fit(RATE) > IMPOSSIBLE
    for wrong in (Fraction(9, 10), Fraction(11, 10), Fraction(1, 2)):  # and the rate with a factor of 2
        assert fit(RATE * wrong) < IMPOSSIBLE


def test_measured_counts_have_discrete_laplace_noise() -> None:
    counts = np.array([[3 * GRID, 0], [7 * GRID, 11]], dtype=np.int64)
    allowed = permit()
    noise = np.array([noisy_counts(counts, RATE, allowed) - counts / GRID for _ in range(5000)])
    for cell in noise.reshape(-1, 4).T:
        assert stats.kstest(cell, stats.laplace(scale=2).cdf).pvalue > IMPOSSIBLE

    def fit(scale: float) -> float:
        """Of the sum of the magnitudes, which are exponential."""
        below = stats.gamma(noise.size, scale=scale).cdf(np.abs(noise).sum())
        return float(2 * min(below, 1 - below))

    assert fit(2.0) > IMPOSSIBLE
    for wrong in (1.8, 2.2, 4.0):
        assert fit(wrong) < IMPOSSIBLE


def test_nothing_is_released_without_leave() -> None:
    counts = np.zeros(2, dtype=np.int64)
    for release in (best_of, noisy_counts):
        for refused in (Permit(1, 1.0), permit(0)):
            with pytest.raises(dpf.BudgetExceeded):
                release(counts, RATE, refused)


CASES = [
    (100, 0.2, 2, 0.7),
    (100, 10.0, 1, 0.97),
    (100, 1.0, 2, 0.99),
    (200, 0.1, 1, 0.5),
    (500, 0.5, 2, 0.9),
    (2000, 1.0, 1, 0.95),
]
TRIALS = 3000


def missed(units: int, epsilon: float, terms: int, accuracy: float, *, width: float = 1.0) -> int:
    """How often the interval does not hold the truth, in a simulation of the units and the noise."""
    random = np.random.default_rng(units)
    right = random.binomial(units, accuracy, TRIALS)
    noises = random.laplace(scale=1 / epsilon, size=(TRIALS, 2, terms)).sum(axis=2)
    misses = 0
    for count, (x, y) in zip(right, noises, strict=True):
        one = estimate(count + x, units - count + y, Noise(1 / epsilon, terms))
        low, high = (one.value + width * (end - one.value) for end in (one.low, one.high))
        misses += not low <= accuracy <= high
    return misses


@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_the_accuracy(case: tuple[int, float, int, float]) -> None:
    assert stats.binomtest(missed(*case), TRIALS, 0.05, alternative="greater").pvalue > IMPOSSIBLE


def test_control_narrower_intervals_do_not() -> None:
    assert (
        stats.binomtest(missed(*CASES[4], width=0.7), TRIALS, 0.05, alternative="greater").pvalue < IMPOSSIBLE
    )


VOTES = {"a": 6, "b": 4, "d": 3, "elsewhere": 9}
CANDIDATES = ("d", "c", "b", "a")


def fit_of_pairs(released: list[tuple[str, ...]], rate: Fraction) -> float:
    """Of all ordered pairs of the first two picks, each by permute-and-flip."""

    def first_pick(left: tuple[str, ...]) -> dict[str, float]:
        wins = noisy_max(np.array([VOTES.get(label, 0) for label in left]), rate)
        return dict(zip(left, map(float, wins), strict=True))

    cells = {}
    for one, two in itertools.permutations(CANDIDATES, 2):
        left = tuple(label for label in CANDIDATES if label != one)
        cells[one, two] = first_pick(CANDIDATES)[one] * first_pick(left)[two]
    assert sum(cells.values()) == pytest.approx(1)
    return p_value([released.count(pair) for pair in cells], list(cells.values()))


def test_peeling_follows_permute_and_flip_round_by_round() -> None:
    epsilon, count = Fraction(3, 2), 2
    mechanism = _NoisyMax(CANDIDATES, count, float(epsilon))
    permit = Permit(DRAWS * count, float(count / epsilon))
    released = [tuple(mechanism.choose(VOTES, permit, None)) for _ in range(DRAWS)]
    assert fit_of_pairs(released, epsilon / count) > IMPOSSIBLE
    assert fit_of_pairs(released, Fraction(9, 10) * epsilon / count) < IMPOSSIBLE
    assert fit_of_pairs(released, epsilon) < IMPOSSIBLE  # every round with the whole ε


def tail(noise: int, epsilon: float) -> float:
    """P(X ≥ noise) for a noise of at least 1."""
    return math.exp(-epsilon * noise) / (1 + math.exp(-epsilon))


def times_released(votes: int, epsilon: float, delta: float, count: int = DRAWS) -> int:
    """Of so many labels with so many votes each, in one release: their noise is independent."""
    alike = {f"label {i}": votes for i in range(count)}
    return len(_StabilityHistogram(count, epsilon, delta).choose(alike, Permit(1, 1 / epsilon), None))


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), pytest.param(0.3, 0.2, marks=pytest.mark.soak)])
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


LABELS = 50_000


def fit_of_variance(noise: np.ndarray, deviation: float) -> float:
    """Of the noise's variance, in both directions."""
    ratio = float((noise**2).sum()) / deviation**2
    return 2 * min(stats.chi2.cdf(ratio, LABELS), stats.chi2.sf(ratio, LABELS))


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 3)])
def test_the_noise_has_the_stated_deviation_and_no_other(rate: Fraction) -> None:
    mean = NoisyMean(rate, 7.5, LABELS, Amount(1, 1))
    population = Fraction(1_000)
    noise = mean.release(np.zeros((0, LABELS)), population, Permit(1, 7.5), None)
    stated = mean.scale * mean.nats(population)
    assert stated == pytest.approx(7.5 * mean.clip / (1_000 * float(rate)), rel=1e-4)
    assert fit_of_variance(noise, stated) > IMPOSSIBLE
    assert stats.kstest(noise / stated, "norm").pvalue > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert fit_of_variance(noise, stated * wrong) < IMPOSSIBLE
