"""The calibration's sum of integers: one unit, of whatever answers, changes it by at most the norm."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpfewshot.releases.calibration import GRID, Weights, integers_of
from dpfewshot.values import Record

probabilities = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0.0, 1.0, 1e-300, 5e-324, 1 - 2**-53, math.nan, math.inf]),
)
matrices = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(2, 20)), elements=probabilities)


def clip_of(rows: NDArray[np.float64]) -> float:
    return 2 * math.sqrt(rows.shape[1])


def squared(integers: NDArray[np.int64]) -> int:
    return sum(int(one) ** 2 for one in integers)


@given(matrices, st.integers(0, 11))
def test_a_unit_changes_the_sum_by_at_most_the_norm(rows: NDArray[np.float64], unit: int) -> None:
    clip = clip_of(rows)
    whole = integers_of(rows, clip).sum(axis=0)
    gone = np.delete(rows, unit % len(rows), axis=0)  # the unit is removed
    null = rows.copy()
    null[unit % len(rows)] = 0.0  # or it has no answer
    for neighbour in (gone, null):
        assert squared(whole - integers_of(neighbour, clip).sum(axis=0)) <= GRID**2


@settings(deadline=None)
@given(matrices, st.integers(0, 11), st.lists(st.floats(0, 3), min_size=12, max_size=12))
def test_with_any_weights_too(rows: NDArray[np.float64], unit: int, listed: list[float]) -> None:
    """Even with weights above 1, which no labels have: the integers are compared with the norm."""
    clip, weights, place = clip_of(rows), np.array(listed[: len(rows)]), unit % len(rows)
    whole = integers_of(rows, clip, weights).sum(axis=0)
    gone = integers_of(np.delete(rows, place, axis=0), clip, np.delete(weights, place)).sum(axis=0)
    assert squared(whole - gone) <= GRID**2
    lighter = np.minimum(weights, 1)
    for row, weight in zip(rows, lighter, strict=True):  # and a smaller weight makes a smaller bound
        found = integers_of(row[np.newaxis], clip, np.array([weight]))[0]
        assert squared(found) <= (weight * GRID) ** 2


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 10**9)), st.text(max_size=3))
def test_a_label_weighs_at_most_one_by_public_numbers(counts: dict[str, int], other: str) -> None:
    weights = Weights.of(counts)
    found = weights.each([Record("", label) for label in (*counts, other)])
    assert ((found > 0) & (found <= 1)).all()
    assert 0 < weights.mean <= 1
    assert sum(found[:-1] >= 1) * 2 >= len(counts)  # at least half of the labels weigh 1
    total = sum(weight * count for weight, count in zip(found, counts.values(), strict=False))
    assert total == pytest.approx(float(weights.mean) * (sum(counts.values()) or 0))


@given(matrices)
def test_a_row_depends_on_its_unit_alone(rows: NDArray[np.float64]) -> None:
    clip = clip_of(rows)
    alone = np.concatenate([integers_of(row[np.newaxis], clip) for row in rows])
    assert (integers_of(rows, clip) == alone).all()


@given(matrices)
def test_a_row_without_an_answer_is_zero(rows: NDArray[np.float64]) -> None:
    integers = integers_of(rows, clip_of(rows))
    absent = ~np.isfinite(rows).all(axis=1) | ~rows.any(axis=1)
    assert not integers[absent].any()


@pytest.mark.parametrize("labels", [2, 4, 14])
def test_the_bound_is_reached(labels: int) -> None:
    certain = np.eye(labels)[:1]
    assert squared(integers_of(certain, clip_of(certain))[0]) >= 0.999 * GRID**2


def test_control_without_the_clip_the_bound_breaks() -> None:
    certain = np.eye(4)[:1]
    with pytest.raises(AssertionError):
        assert squared(integers_of(certain, 100.0)[0] * (100.0 / clip_of(certain)).__ceil__()) <= GRID**2


def test_below_the_clip_it_is_the_centred_logarithm() -> None:
    row = np.array([[0.5, 0.3, 0.2]])
    logprobs = np.log(row[0])
    clip = clip_of(row)
    found = integers_of(row, clip)[0] * clip / GRID
    assert found == pytest.approx(logprobs - logprobs.mean(), abs=1e-5)
