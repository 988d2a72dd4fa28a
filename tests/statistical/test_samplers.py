"""The samplers' distributions at p < 1e-9, and controls that the same tests must reject."""

import functools
import math
import os

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.exact.normal import Uniform, decide
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import FixedSizeSampler, disjoint_parts
from tests.support.laws import IMPOSSIBLE

DRAWS = 200_000
FINE = 8 * 2**27


def continuous_p_value(draws: NDArray[np.float64]) -> float:
    return float(stats.kstest(draws, "norm").pvalue)


def discrete_p_value(draws: NDArray[np.int64], scale: float) -> float:
    """Chi-square against round(N(0, scale²)), for scales of a few grid steps."""
    edge = math.ceil(3 * scale)
    inner = np.arange(-edge, edge + 1)
    upper = stats.norm.cdf((inner + 0.5) / scale)
    cells = np.diff(np.concatenate(([0.0], upper, [1.0])))
    observed = np.bincount(np.clip(draws, -edge, edge + 1) + edge, minlength=len(cells))
    return float(stats.chisquare(observed, cells * len(draws)).pvalue)


def independence_p_value(draws: NDArray[np.float64]) -> float:
    """Whether neighbours are correlated, in value or in size."""
    values = [stats.pearsonr(f(draws[:-1]), f(draws[1:])).pvalue for f in (np.asarray, np.abs)]
    return float(min(values))


@pytest.mark.parametrize("scale", [8, 16, 40])
def test_coarse_normals(scale: int) -> None:
    assert discrete_p_value(_core.rounded_normals(scale, DRAWS), scale) > IMPOSSIBLE


def test_fine_normals() -> None:
    draws = _core.rounded_normals(FINE, DRAWS) / FINE
    assert continuous_p_value(draws) > IMPOSSIBLE
    assert independence_p_value(draws) > IMPOSSIBLE


def sampled_by_the_twin(scale: int, digits: int) -> int:
    while True:
        u, x, v = (Uniform.draw(os.urandom, digits) for _ in range(3))
        magnitude = decide(u, x, v, scale // 8)
        if magnitude is not None:
            return -magnitude if os.urandom(1)[0] & 1 else magnitude


@pytest.mark.parametrize("digits", [3, 8, 16])
def test_twin_with_few_first_digits(digits: int) -> None:
    """Almost every decision needs further digits here: the lazy path has the right distribution too."""
    draws = np.array([sampled_by_the_twin(16, digits) for _ in range(4_000)])
    assert discrete_p_value(draws, 16) > IMPOSSIBLE


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_control_wrong_scale_is_rejected(wrong: float) -> None:
    fine = _core.rounded_normals(FINE, DRAWS) / FINE * wrong
    assert continuous_p_value(fine) < IMPOSSIBLE
    assert discrete_p_value(_core.rounded_normals(40, DRAWS), 40 * wrong) < IMPOSSIBLE


def test_control_shift_is_rejected() -> None:
    """The distance is 0.008 and known to 0.0006; 0.0037 is rejected: it fails once in 10^14 runs."""
    assert continuous_p_value(_core.rounded_normals(FINE, 4 * DRAWS) / FINE + 0.02) < IMPOSSIBLE


def test_control_correlated_coordinates_are_rejected() -> None:
    draws = _core.rounded_normals(FINE, DRAWS) / FINE
    mixed = draws.copy()
    mixed[1:] = 0.998 * draws[1:] + math.sqrt(1 - 0.998**2) * draws[:-1]
    assert independence_p_value(mixed) < IMPOSSIBLE


def test_control_discrete_gaussian_is_not_rounded_gaussian() -> None:
    """A wrong sampler with the right scale: a Laplace of equal variance."""
    uniform = (_core.uniform_integers(2**53, DRAWS) + 0.5) / 2**53
    laplace = stats.laplace.ppf(uniform, scale=FINE / math.sqrt(2)) / FINE
    assert continuous_p_value(laplace) < IMPOSSIBLE


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 100, 835])
def test_uniform_integers(bound: int) -> None:
    draws = _core.uniform_integers(bound, DRAWS).astype(np.int64)
    observed = np.bincount(draws, minlength=bound)
    assert len(observed) == bound
    if bound > 1:
        assert stats.chisquare(observed).pvalue > IMPOSSIBLE


def test_uniform_integers_near_the_word_size() -> None:
    """Where taking a remainder would be off by a third."""
    bound = 3 * 2**62
    draws = _core.uniform_integers(bound, DRAWS)
    assert int(draws.max()) < bound
    assert stats.kstest(draws / bound, "uniform").pvalue > IMPOSSIBLE
    remainder = _core.uniform_integers(2**63, DRAWS).astype(np.float64) * 2 % bound
    assert stats.kstest(remainder / bound, "uniform").pvalue < IMPOSSIBLE


def poisson_p_value(counts: NDArray[np.number], q: float, units: int, subsets: int) -> float:
    """Chi-square of whole draws against independent coins: a unit is in each subset with q/M, or in none."""
    alone = np.array([1 - q] + [q / subsets] * subsets)
    law = functools.reduce(np.kron, [alone] * units)
    return float(stats.chisquare(counts, law * counts.sum()).pvalue)


def poisson_counts(
    units: int, numerator: int, denominator: int, subsets: int, draws: int
) -> NDArray[np.int64]:
    """How often each assignment of all units was drawn."""
    places = (subsets + 1) ** np.arange(units)[::-1]
    counts = np.zeros((subsets + 1) ** units, dtype=np.int64)
    for _ in range(draws):
        drawn, assigned = _core.poisson_subsets(units, numerator, denominator, subsets)
        counts[(places[drawn] * (assigned + 1)).sum()] += 1
    return counts


@pytest.mark.parametrize(
    ("units", "numerator", "denominator", "subsets"), [(3, 2, 5, 2), (5, 1, 4, 1), (4, 5, 6, 1), (2, 1, 3, 4)]
)
def test_a_poisson_draw_has_the_law_of_independent_coins(
    units: int, numerator: int, denominator: int, subsets: int
) -> None:
    counts = poisson_counts(units, numerator, denominator, subsets, 60_000)
    q = numerator / denominator
    assert poisson_p_value(counts, q, units, subsets) > IMPOSSIBLE
    for wrong in (0.9 * q, 1.1 * q):  # controls
        assert poisson_p_value(counts, wrong, units, subsets) < IMPOSSIBLE
    agreeing = 0.95 * counts
    agreeing[[0, -1]] += 0.05 * counts.sum() * np.array([1 - q, q])
    assert poisson_p_value(agreeing, q, units, subsets) < IMPOSSIBLE, "control: one coin for all at times"


def test_a_poisson_draw_of_many_units_takes_them_from_everywhere() -> None:
    units, subsets = 1_000_000, 16
    drawn, assigned = _core.poisson_subsets(units, 80, 835, subsets)
    assert stats.binomtest(len(drawn), units, 80 / 835).pvalue > IMPOSSIBLE
    for wrong in (0.9, 1.1):
        assert stats.binomtest(len(drawn), units, wrong * 80 / 835).pvalue < IMPOSSIBLE
    assert (np.diff(drawn) > 0).all(), "no unit twice"
    assert stats.chisquare(np.bincount(assigned, minlength=subsets)).pvalue > IMPOSSIBLE
    for places in (drawn // 10_000, drawn % 64):  # far and near
        assert stats.chisquare(np.bincount(places)).pvalue > IMPOSSIBLE
    neighbours = int((np.diff(drawn) == 1).sum())
    assert stats.binomtest(neighbours, units - 1, (80 / 835) ** 2).pvalue > IMPOSSIBLE
    skewed = drawn[: len(drawn) // 2] // 2  # a control: the first half is taken twice as densely
    assert stats.chisquare(np.bincount(np.concatenate([skewed, drawn]) // 10_000)).pvalue < IMPOSSIBLE


def test_everyone_is_drawn_at_rate_one() -> None:
    assert _core.poisson_subsets(1_000, 7, 7, 3)[0].tolist() == list(range(1_000))


def fixed_size_counts(sampler: FixedSizeSampler, units: int, draws: int) -> np.ndarray:
    """How often each unit sat in each subset."""
    counts = np.zeros((units, sampler.subsets))
    for _ in range(draws):
        for number, subset in enumerate(sampler.draw([1] * units)):
            for unit, _ in subset:
                counts[unit, number] += 1
    return counts


def test_a_fixed_size_draw_puts_every_unit_everywhere_alike() -> None:
    counts = fixed_size_counts(FixedSizeSampler(subsets=3, records_per_prompt=2), 12, 4_000)
    assert counts.sum() == 4_000 * 6
    assert stats.chisquare(counts.ravel()).pvalue > IMPOSSIBLE
    skewed = counts.copy()
    skewed[0] *= 0.6
    skewed[1] += counts[0].sum() * 0.4 / 3
    assert stats.chisquare(skewed.ravel()).pvalue < IMPOSSIBLE, "the control: one unit drawn less often"


def test_disjoint_parts_are_uniform_and_independent() -> None:
    texts = [dpf.Record(f"ticket {number}", "refund") for number in range(20_000)]
    sizes = np.array([len(part) for part in disjoint_parts(each_a_unit(texts), 5)])
    assert stats.chisquare(sizes).pvalue > IMPOSSIBLE
    assert len({*sizes.tolist()}) > 1, "sizes vary: no equal cut"
    assert stats.chisquare(sizes * np.array([0.9, 1.1, 1, 1, 1])).pvalue < IMPOSSIBLE
