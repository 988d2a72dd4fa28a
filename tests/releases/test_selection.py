"""One unit moves a choice's integers by at most the grid's 1, upwards alone. Amplified rates are sound."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.releases.selection import (
    GRID,
    Estimate,
    Noise,
    Outcomes,
    amplified,
    cells_of,
    estimate,
    scores_of,
    weights_of,
)
from dpfewshot.values import Record

probabilities = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 1 - 2**-53, 1 + 1e-9])


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[list[int], list[Outcomes], np.ndarray]:
    """The sizes of some units, two candidates' outcomes on their records by some models, and the weights."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    models, count = draw(st.integers(1, 3)), sum(sizes)

    def table(values: st.SearchStrategy) -> np.ndarray:
        cells = draw(st.lists(values, min_size=count * models, max_size=count * models))
        return np.array(cells).reshape(count, models)

    answers = st.sampled_from([-1, 0, 1])
    outcomes = [Outcomes(table(answers).astype(np.int8), table(probabilities)) for _ in range(2)]
    weights = draw(st.lists(st.integers(0, GRID), min_size=count, max_size=count))
    return sizes, outcomes, np.array(weights, dtype=np.int64)


def without_first(
    sizes: list[int], outcomes: list[Outcomes], weights: np.ndarray
) -> tuple[list[int], list[Outcomes], np.ndarray]:
    kept = [Outcomes(each.right[sizes[0] :], each.likelihood[sizes[0] :]) for each in outcomes]
    return sizes[1:], kept, weights[sizes[0] :]


@given(st.dictionaries(st.sampled_from("abc"), st.fractions()))
def test_a_weight_lies_within_the_grid_whatever_the_mapping(by_label: dict[str, Fraction]) -> None:
    weights = weights_of([Record("x", label) for label in "abc"], by_label)
    assert ((weights >= 0) & (weights <= GRID)).all()
    within = [math.floor(by_label.get(label, 1) * GRID) for label in "abc"]
    assert all(weights[i] == within[i] for i in range(3) if 0 <= within[i] <= GRID)


@given(data_sets())
def test_a_unit_moves_every_sum_of_scores_upwards_by_one_at_most(data_set) -> None:
    for likelihood in (False, True):
        (sizes, outcomes, weights), fewer = data_set, without_first(*data_set)
        for one, other in zip(outcomes, fewer[1], strict=True):
            change = scores_of(one, weights, sizes, likelihood=likelihood) - scores_of(
                other, fewer[2], fewer[0], likelihood=likelihood
            )
            assert 0 <= change <= GRID


@given(data_sets(), st.integers(1, 2))
def test_a_unit_moves_all_cells_together_by_one_at_most(data_set, candidates: int) -> None:
    (sizes, outcomes, weights), fewer = data_set, without_first(*data_set)
    change = cells_of(outcomes[:candidates], weights, sizes) - cells_of(
        fewer[1][:candidates], fewer[2], fewer[0]
    )
    assert change.shape == (2,) * candidates
    assert (change >= 0).all()
    assert change.sum() <= GRID


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_a_record_that_cannot_be_read_adds_nothing_and_stays_in_its_units_size(
    sizes: list[int], data: st.DataObject
) -> None:
    """Every other record is right, so a unit's score is the share of its records that can be read."""
    count = sum(sizes)
    read = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    weights = weights_of([Record("x", "a") if each else None for each in read], {})
    right = np.where(read, 1, -1).astype(np.int8)[:, None]
    outcomes, starts = Outcomes(right, np.where(right == 1, 1.0, 0.0)), np.cumsum([0, *sizes])
    shares = [
        sum(read[start : start + size]) * GRID // size for start, size in zip(starts, sizes, strict=False)
    ]
    assert scores_of(outcomes, weights, sizes, likelihood=False) == sum(shares)
    assert scores_of(outcomes, weights, sizes, likelihood=True) == sum(shares)
    assert cells_of([outcomes], weights, sizes).tolist() == [0, sum(shares)]


def test_control_a_sum_over_records_moves_by_more() -> None:
    """What the mean over a unit's records is for."""
    right = np.ones((3, 1), dtype=np.int8)
    of_records = [
        scores_of(Outcomes(right[:n], right[:n] * 1.0), np.full(n, GRID), [1] * n, likelihood=False)
        for n in (0, 3)
    ]
    assert of_records[1] - of_records[0] > GRID
    of_unit = scores_of(Outcomes(right, right * 1.0), np.full(3, GRID), [3], likelihood=False)
    assert of_unit == GRID


def test_a_record_without_an_answer_counts_for_nothing() -> None:
    right = np.array([[1], [-1], [0]], dtype=np.int8)
    outcomes = Outcomes(right, np.array([[0.75], [0.0], [0.25]]))
    weights = np.full(3, GRID)
    assert scores_of(outcomes, weights, [1, 1, 1], likelihood=False) == GRID
    assert scores_of(outcomes, weights, [1, 1, 1], likelihood=True) == GRID
    assert cells_of([outcomes], weights, [1, 1, 1]).tolist() == [GRID, GRID]
    assert cells_of([outcomes], weights, [3]).tolist() == [GRID // 3, GRID // 3]
    other = Outcomes(np.array([[-1], [1], [0]], dtype=np.int8), outcomes.likelihood)
    assert cells_of([outcomes, other], weights, [1, 1, 1]).tolist() == [[GRID, 0], [0, 0]]


@given(st.floats(1e-9, 20), st.floats(1e-6, 1))
def test_an_amplified_rate_costs_what_was_asked_for_and_hardly_less(epsilon: float, q: float) -> None:
    rate = amplified(Fraction(epsilon), Fraction(q))
    with mpmath.workdps(60):
        inner = mpmath.mpf(rate.numerator) / rate.denominator
        cost = mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(inner))
        assert cost <= epsilon
        assert cost >= epsilon * (1 - 1e-9)
    assert rate >= Fraction(epsilon)


def test_without_sampling_or_with_a_huge_epsilon_nothing_is_amplified() -> None:
    assert amplified(Fraction(1, 3), Fraction(1)) == Fraction(1, 3)
    assert amplified(Fraction(100), Fraction(1, 2)) == 100
    assert math.isclose(amplified(Fraction(1), Fraction(1, 10)), math.log(1 + 10 * math.expm1(1)))


# ---- Estimates of an accuracy: their words, their range, and intervals that have a width -----------------


def test_estimates_in_words() -> None:
    assert str(Estimate(0.842, 0.83, 0.86)) == "84 ± 2 %"
    assert str(Estimate(0.842, 0.8371, 0.8469)) == "84.2 ± 0.5 %"
    assert str(Estimate(1.0, 0.97, 1.0)) == "100 ± 3 %"


def test_estimates_stay_in_range_and_have_a_width() -> None:
    noise = Noise(5.0, 2)
    assert estimate(-3.0, 2.0, noise) == Estimate(0.5, 0.0, 1.0)
    for right, wrong in ((-3.0, 40.0), (40.0, -3.0), (0.5, 0.1), (60.0, 20.0), (192.7, -32.5), (-22.5, 26.7)):
        one = estimate(right, wrong, noise)
        assert 0 <= one.low <= one.value <= one.high <= 1
        assert one.high - one.low > 0.05
        assert one == estimate(max(right, 0.0), max(wrong, 0.0), noise)
    with pytest.raises(ValueError, match="low"):
        Estimate.from_dict({"value": 0.5, "low": 0.6, "high": 0.7})
