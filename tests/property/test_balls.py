"""Counts in balls and GoodRadius' score, in integers: their bounds, inputs that reach them, and the twin."""

import functools
import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dpfewshot import _core
from tests.support import sensitivity, twins
from tests.support.sensitivity import GRID, INF, Matrix, adversarial, cores, stacked

RADII = (0.0, 1e-9, 0.05, 0.35, 0.5, math.sqrt(2) / 2, 1.0, math.sqrt(2))
WIDTH = 5
certain = functools.partial(sensitivity.certain, width=20)


def rows() -> st.SearchStrategy[Matrix]:
    """Any floats, a certain token, or one of a few nearby answers: balls hold some rows and not others."""
    floats = npst.arrays(np.float32, WIDTH, elements=adversarial | st.floats(-3, 0, width=32))
    tokens = st.integers(0, WIDTH - 1).map(lambda token: sensitivity.certain(token, width=WIDTH)[0])
    near = npst.arrays(np.int8, WIDTH, elements=st.integers(-3, 3)).map(lambda row: np.float32(0.4) * row)
    return st.sampled_from([floats, tokens, near, near]).flatmap(lambda shape: shape)


matrices = st.lists(rows(), max_size=8).map(lambda m: np.array(m, dtype=np.float32).reshape(-1, WIDTH))
centres = rows().map(lambda row: _core.sum_of_probabilities(row[np.newaxis]))
neighbours = st.tuples(matrices, rows(), rows())
radii = st.sampled_from(RADII)
sizes = st.integers(1, 9)


def score(core: ModuleType, matrix: Matrix, radius: float, size: int) -> int:
    return core.Distances(matrix).scores([radius], size)[0]


@given(matrices, centres, radii, sizes)
@settings(max_examples=200)
def test_compiled_is_the_twin(matrix: Matrix, centre, radius: float, size: int) -> None:
    assert _core.count_within(matrix, centre, radius) == twins.count_within(matrix, centre, radius)
    assert _core.Distances(matrix).scores(RADII, size) == twins.Distances(matrix).scores(RADII, size)


@pytest.mark.parametrize(("count", "width"), [(12, 1), (40, 100), (9, 1024), (7, 2049), (3, 49_152)])
def test_compiled_is_the_twin_at_other_sizes(count: int, width: int) -> None:
    generator = np.random.default_rng(width)
    matrix = (generator.normal(0, 3, width) + generator.normal(0, 0.4, (count, width))).astype(np.float32)
    matrix[count // 2, 0] = np.nan
    centre = _core.sum_of_probabilities(matrix[:1])
    steps = [math.sqrt(twins.squared_norm(v - centre)) / GRID for v in twins.present(matrix)]
    middle = sorted(steps)[len(steps) // 2]
    for radius in (middle * 0.999, min(middle, math.sqrt(2)), 0.3):
        assert _core.count_within(matrix, centre, radius) == twins.count_within(matrix, centre, radius)
        assert score(_core, matrix, radius, 5) == score(twins, matrix, radius, 5)


@cores
@given(neighbours, centres, radii)
@settings(max_examples=100)
def test_one_row_moves_a_count_by_one(core: ModuleType, case, centre, radius: float) -> None:
    matrix, row, other = case

    def count(*more: Matrix) -> int:
        return core.count_within(stacked(matrix, *more), centre, radius)

    assert 0 <= count(row) - count() <= 1
    assert abs(count(row) - count(other)) <= 1


@cores
@given(neighbours, radii, sizes)
@settings(max_examples=200)
def test_one_row_moves_the_score_by_less_than_twice_the_size(
    core: ModuleType, case, radius: float, size: int
) -> None:
    matrix, row, other = case
    without = score(core, matrix, radius, size)
    one, two = (score(core, stacked(matrix, added), radius, size) for added in (row, other))
    assert 0 <= one - without <= 2 * size - 1
    assert abs(one - two) <= 2 * size - 1


def star(points: int) -> tuple[Matrix, float]:
    """Rows that are far from each other, a last one in the middle of them all, and a radius that tells."""
    tokens = np.arange(20)
    apart = 0.2 * (tokens == np.arange(points)[:, np.newaxis]) + 0.8 / points * (tokens < points)
    probabilities = np.vstack([apart, apart.mean(axis=0)])
    return np.log(np.maximum(probabilities, 1e-30)).astype(np.float32), 0.2 * math.sqrt(2) * 0.95


@cores
@pytest.mark.parametrize("size", [2, 3, 5, 12])
def test_the_bound_of_the_score_is_reached(core: ModuleType, size: int) -> None:
    """t - 1 rows that see themselves alone, and one more that sees them all and is seen by all."""
    matrix, radius = star(size - 1)
    before, after = score(core, matrix[:-1], radius, size), score(core, matrix, radius, size)
    assert before == size - 1
    assert after - before == 2 * size - 1


def test_the_bounds_of_the_counts_are_reached() -> None:
    centre = _core.sum_of_probabilities(certain(7))
    assert [_core.count_within(m, centre, 0.5) for m in (certain(7)[:0], certain(7), certain(3))] == [0, 1, 0]


def test_control_a_size_that_follows_the_sample_breaks_the_bound() -> None:
    """t = ⌈0.8 · rows⌉ in place of ⌈0.8 · M⌉ with M = 5, where a draw happens to be large."""
    alike = certain(*[0] * 30)

    def follows(count: int) -> int:
        return score(_core, alike[:count], 0.1, math.ceil(0.8 * count))

    changes = [follows(count + 1) - follows(count) for count in range(1, 30)]
    assert max(changes) > 2 * math.ceil(0.8 * 5)


def test_control_a_score_without_its_cap_breaks_the_bound() -> None:
    """The sum of the t largest B, not min(B, t): a row in the middle of 12 others counts for 13."""
    matrix, radius = star(12)

    before, after = (sum(sorted(twins.Distances(m).balls(radius))[-3:]) for m in (matrix[:-1], matrix))
    assert score(_core, matrix, radius, 3) - score(_core, matrix[:-1], radius, 3) <= 2 * 3
    assert after - before > 2 * 3


@cores
def test_comparisons_are_exact_at_the_rim(core: ModuleType) -> None:
    """A row 3 steps from the centre is within 3 steps, and no longer within the next float below."""
    matrix, centre = certain(0, 1, width=2), np.array([GRID, 3])
    assert core.count_within(matrix, centre, 3 / GRID) == 1
    assert core.count_within(matrix, centre, math.nextafter(3 / GRID, 0)) == 0
    assert math.isqrt(2 * GRID**2) == math.floor(math.sqrt(2) * GRID)
    assert score(core, matrix, math.sqrt(2), 2) == 2, "√2 apart, and √2 cut to the grid is less"


@cores
def test_scores_of_a_cluster_and_a_loner(core: ModuleType) -> None:
    matrix = certain(0, 0, 0, 0, 9)
    assert core.Distances(matrix).scores([0.0, 0.1, 1.4], 4) == [16, 16, 16]
    assert score(core, matrix, 0.1, 5) == score(core, matrix, 0.1, 7) == 4 * 4 + 1
    assert score(core, matrix[:0], 0.1, 3) == 0


@cores
@pytest.mark.parametrize("bad", [[math.nan, 0.0], [-math.nan, 0.0], [INF, 0.0], [-INF, -INF]])
def test_bad_rows_are_in_no_ball_and_have_none(core: ModuleType, bad: list[float]) -> None:
    matrix = np.array([bad, bad], dtype=np.float32)
    nowhere = np.zeros(2, dtype=np.int64)
    assert core.count_within(matrix, nowhere, math.sqrt(2)) == 0
    assert core.Distances(matrix).scores([1.0], 2) == [0]


@cores
def test_arguments_out_of_range_are_refused(core: ModuleType) -> None:
    matrix, centre = certain(0, width=3), np.array([GRID, 0, 0])
    for radius in (-0.1, 1.5, math.nan, INF):
        with pytest.raises(ValueError, match="radius"):
            core.count_within(matrix, centre, radius)
        with pytest.raises(ValueError, match="radius"):
            core.Distances(matrix).scores([radius], 1)
    for size in (0, -1, 2**20 + 1):
        with pytest.raises(ValueError, match="size"):
            core.Distances(matrix).scores([0.1], size)
    for bad in (np.array([0, 0]), np.array([0, -1, 0]), np.array([0, GRID + 1, 0])):
        with pytest.raises(ValueError, match=r"public|centre"):
            core.count_within(matrix, bad, 0.1)


def test_noisy_queries_are_the_noiseless_ones_on_the_grid_of_counts() -> None:
    matrix, centre = certain(0, 0, 3, 9), _core.sum_of_probabilities(certain(0))
    distances = _core.Distances(matrix)

    def source(count: int) -> bytes:
        return bytes(range(256)) * (count // 256)

    noise = _core.rounded_normals(800, 2, source).tolist()
    assert _core.noisy_count_within(matrix, centre, 0.1, 800, source) == 2 * _core.count_grid + noise[0]
    assert distances.noisy_scores([0.1, 0.2], 3, 800, source) == [5 * _core.count_grid + z for z in noise]


def test_nothing_private_shows() -> None:
    distances = _core.Distances(certain(0, 1))
    assert "Distances object at" in repr(distances)
    assert {name for name in dir(distances) if not name.startswith("_")} == {"scores", "noisy_scores"}
    with pytest.raises(TypeError):
        distances.__reduce__()
