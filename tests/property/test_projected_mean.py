"""The summed form of AdaDPSyn's projected mean: centred it has sensitivity R, as printed it does not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

Vector = NDArray[np.float64]
RADIUS = 0.1


def distributions(count: st.SearchStrategy[int]) -> st.SearchStrategy[Vector]:
    weights = st.floats(0, 1).map(lambda w: w**8)  # often nearly certain
    return count.flatmap(lambda n: npst.arrays(np.float64, (n, 5), elements=weights)).map(normalised)


def normalised(weights: Vector) -> Vector:
    total = weights.sum(axis=1, keepdims=True)
    return np.where(total > 1e-9, weights / np.maximum(total, 1e-9), 0.2)


def clip(difference: Vector) -> Vector:
    norm = np.linalg.norm(difference, axis=-1, keepdims=True)
    return difference * np.minimum(1.0, RADIUS / np.maximum(norm, 1e-300))


def centred(rows: Vector, centre: Vector) -> Vector:
    return clip(rows - centre).sum(axis=0)


def naive(rows: Vector, centre: Vector) -> Vector:
    return (centre + clip(rows - centre)).sum(axis=0)


pairs = st.tuples(distributions(st.integers(1, 8)), distributions(st.just(1)))


@given(pairs)
def test_the_centred_sum_moves_by_at_most_the_radius(pair: tuple[Vector, Vector]) -> None:
    rows, centre = pair
    change = centred(rows, centre[0]) - centred(rows[1:], centre[0])
    assert np.linalg.norm(change) <= RADIUS * (1 + 1e-9)


@given(pairs)
def test_one_row_changed_into_another_moves_it_by_at_most_two_radii(pair: tuple[Vector, Vector]) -> None:
    rows, centre = pair
    other = np.roll(rows, 1, axis=1)
    change = centred(rows[:1], centre[0]) - centred(other[:1], centre[0])
    assert np.linalg.norm(change) <= 2 * RADIUS * (1 + 1e-9)


def test_control_the_naive_sum_breaks_the_bound_by_an_order_of_magnitude() -> None:
    centre = np.array([1.0, 0, 0, 0, 0])
    rows = np.array([[1.0, 0, 0, 0, 0], [0.9, 0.1, 0, 0, 0]])
    change = naive(rows, centre) - naive(rows[1:], centre)
    assert np.linalg.norm(change) > 9 * RADIUS
