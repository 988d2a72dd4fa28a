"""Every row of the sensitivity table, in integers: bounds, inputs that reach them, the twin, and values."""

import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dpfewshot import _core
from tests.support import twins
from tests.support.sensitivity import (
    GRID,
    INF,
    KINDS,
    LOGIT_GRID,
    ROOT_TWO,
    Kind,
    cores,
    kinds,
    neighbours,
    norm_bound,
    rows_of,
    squared_l2,
    stacked,
    sum_of_centred,
)


@kinds
@cores
@given(st.data(), neighbours())
@settings(max_examples=60)
def test_a_row_that_comes_or_goes_or_turns_into_another(core: ModuleType, kind: Kind, data, case) -> None:
    """It turns in grouped prompts, of which either may be absent, and in draws of fixed size."""
    clip = data.draw(st.sampled_from(kind.clips))
    matrices = case[0], stacked(case[0], case[1]), stacked(case[0], case[2])
    without, one, other = (kind.query(core, matrix, clip) for matrix in matrices)
    change = one - without
    assert kind.measure(change) <= kind.one(clip)
    assert kind.measure(one - other) <= kind.other(clip)
    if kind.name in ("probabilities", "max-normalised"):
        assert change.min() >= 0
    if kind.name == "probabilities":
        assert change.sum() <= GRID
    if kind.name == "max-normalised":
        assert change.max() in (0, GRID)


@kinds
@cores
@given(st.data())
@settings(max_examples=30)
def test_fixed_size_replace_one(core: ModuleType, kind: Kind, data) -> None:
    """A fixed number of good rows, one of which is replaced, wherever it stands."""
    width, size = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 5))
    clip = data.draw(st.sampled_from(kind.clips))
    before = np.array([data.draw(rows_of(width, finite=True)) for _ in range(size)], dtype=np.float32)
    after = before.copy()
    after[data.draw(st.integers(0, size - 1))] = data.draw(rows_of(width, finite=True))
    change = kind.query(core, after, clip) - kind.query(core, before, clip)
    assert kind.measure(change) <= kind.other(clip)


@kinds
@given(st.data(), neighbours())
@settings(max_examples=100)
def test_compiled_is_the_twin_bit_for_bit(kind: Kind, data, case) -> None:
    matrix = stacked(*case)
    clip = data.draw(st.sampled_from(kind.clips))
    assert (kind.query(_core, matrix, clip) == kind.query(twins, matrix, clip)).all()


@kinds
@cores
@pytest.mark.parametrize("bad", [[math.nan, 0.0], [-math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_bad_rows_are_absent(core: ModuleType, kind: Kind, bad: list[float]) -> None:
    assert not kind.query(core, np.array([bad], dtype=np.float32), kind.clips[-1]).any()


CERTAIN = ([0, -INF], [-INF, 0])
REACHED = {
    "probabilities": (*CERTAIN, 0.0),
    "max-normalised": (*CERTAIN, 0.0),
    "clipped logits": (*CERTAIN, 5.0),
    "clipped differences": ([99, -99], [-99, 99], 5.0),
}


@cores
@pytest.mark.parametrize("name", REACHED)
def test_bounds_are_reached_by_one_row_and_by_two(core: ModuleType, name: str) -> None:
    kind = next(k for k in KINDS if k.name == name)
    *rows, clip = REACHED[name]
    one, other = (kind.query(core, np.array([row], dtype=np.float32), clip) for row in rows)
    assert kind.measure(one) >= 0.99**2 * kind.one(clip)
    assert kind.measure(one - other) >= 0.99**2 * kind.other(clip)
    if kind.name == "max-normalised":
        assert ((one - other).min(), (one - other).max()) == (-GRID, GRID), "not monotone"


@cores
@pytest.mark.parametrize("clip", [0.1, 0.5, 0.7, ROOT_TWO])
def test_centred_bounds_are_reached(core: ModuleType, clip: float) -> None:
    certain = np.array([[0, -INF], [-INF, 0]], dtype=np.float32)
    alone = sum_of_centred(core, certain[:1], certain[1], clip)
    assert squared_l2(alone) >= 0.99**2 * norm_bound(clip)
    if clip < ROOT_TWO / 2:  # the two certain rows lie √2/2 to each side of an even one
        even = np.zeros(2, dtype=np.float32)
        one, other = (sum_of_centred(core, row[np.newaxis], even, clip) for row in certain)
        assert squared_l2(one - other) >= 0.99**2 * 4 * norm_bound(clip)


@cores
def test_a_norm_that_rounding_hides_is_shrunk_once_more(core: ModuleType) -> None:
    """(G, -2) scaled to norm G - 1: in doubles the 2 vanishes from the norm, and (G - 1, -1) is too long."""
    row, clip = np.array([[0, -INF]], dtype=np.float32), 1 - 2.0**-30
    assert norm_bound(clip) == (GRID - 1) ** 2
    integers = core.sum_around(row, np.array([0, 2]), clip)
    assert squared_l2(integers) <= norm_bound(clip)
    assert integers[0] >= GRID - 3


def test_control_rounding_to_nearest_breaks_the_norm() -> None:
    """What the cut towards zero is for: the same clip with rounding goes beyond its bound."""
    seeded, broken = np.random.default_rng(1), 0
    for _ in range(50):
        integers = seeded.integers(-1000, 1000, 40)
        bound = 100
        rounded = np.rint(integers * (bound / math.sqrt(squared_l2(integers)))).astype(np.int64)
        broken += squared_l2(rounded) > bound**2
        cut = twins.clip_norm(integers, bound)
        assert squared_l2(cut) <= bound**2
    assert broken > 5


def test_control_recentring_before_the_sum_breaks_add_or_remove() -> None:
    """Summing c + clip_R(p - c) moves by c and not by R when a row comes."""
    certain, clip = np.array([[0, -INF]], dtype=np.float32), 0.1
    change = _core.sum_around(certain, np.array([GRID, 0]), clip) + np.array([GRID, 0])
    assert squared_l2(change) > 50 * norm_bound(clip)


@cores
@given(st.data())
@settings(max_examples=50)
def test_rows_are_what_their_formulas_say(core: ModuleType, data) -> None:
    width = data.draw(st.integers(2, 40))
    row = data.draw(npst.arrays(np.float32, width, elements=st.floats(-40, 10, width=32)))
    shifted = row.astype(np.float64) - row.max()
    softmax = np.exp(shifted) / np.exp(shifted).sum()
    one = row[np.newaxis]
    near = 2 + 1e-6 * GRID
    assert np.abs(core.sum_of_probabilities(one) - softmax * GRID).max() <= near
    assert np.abs(core.sum_of_max_normalised(one) - np.exp(shifted) * GRID).max() <= near
    logits = np.maximum(-5, shifted + 5) * LOGIT_GRID
    assert np.abs(core.sum_of_clipped_logits(one, 5.0) - logits).max() <= 1
    public = np.linspace(-3, 0, width).astype(np.float32)
    differences = np.clip(row.astype(np.float64) - public, -5, 5) * LOGIT_GRID
    assert np.abs(core.sum_of_clipped_differences(one, public, 5.0) - differences).max() <= 1
    weights = np.exp(public.astype(np.float64))
    centred = softmax - weights / weights.sum()
    centred *= min(1, 0.5 / np.linalg.norm(centred))
    assert np.abs(sum_of_centred(core, one, public, 0.5) - centred * GRID).max() <= 2 * near


def test_the_exponential_is_as_near_as_it_says() -> None:
    row = np.concatenate([-np.logspace(-9, math.log10(86.9), 200_000), -np.linspace(0, 86.9, 200_000)])
    row = row.astype(np.float32)
    found = twins.float_exponentials(row, np.float32(0)).astype(np.float64)
    assert (np.abs(found / np.exp(row.astype(np.float64)) - 1) <= 3e-7).all()
    assert twins.float_exponentials(np.zeros(1, dtype=np.float32), np.float32(0))[0] == 1
    assert (found <= 1).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 262_144), (3, 49_152), (4_096, 32), (0, 5), (5, 0)])
def test_sizes_at_the_edges(rows: int, columns: int) -> None:
    matrix = np.random.default_rng(rows).normal(0, 3, (rows, columns)).astype(np.float32)
    for kind in KINDS:
        if columns:
            total = kind.query(_core, matrix, kind.clips[-1])
            assert (total == kind.query(twins, matrix, kind.clips[-1])).all()
    total = _core.sum_of_probabilities(matrix)
    assert 0 <= int(total.sum()) <= rows * GRID
    if rows and columns:  # what floors lose: less than a step for each entry
        assert int(total.sum()) >= rows * (GRID - 2 * columns)


def test_a_sum_over_many_certain_rows_is_exact() -> None:
    matrix = np.tile(np.array([0, -INF], dtype=np.float32), (4_096, 16))
    matrix[:, 2:] = -INF
    assert _core.sum_of_probabilities(matrix)[0] == 4_096 * GRID
    assert _core.sum_of_clipped_logits(matrix, 1000.0)[0] == 4_096 * 1000 * LOGIT_GRID


@cores
def test_arguments_out_of_range_are_refused(core: ModuleType) -> None:
    rows, public = np.zeros((2, 3), dtype=np.float32), np.zeros(3, dtype=np.float32)
    for clip in (0.0, -1.0, math.nan, 1.5, math.inf):
        with pytest.raises(ValueError, match="clipping norm"):
            sum_of_centred(core, rows, public, clip)
    for clip in (0.0, math.nan, 1000.1):
        with pytest.raises(ValueError, match="clipping norm"):
            core.sum_of_clipped_logits(rows, clip)
    for bad in (public[:2], np.array([0, math.nan, 0], dtype=np.float32)):
        with pytest.raises(ValueError, match=r"public|centre"):
            core.sum_of_clipped_differences(rows, bad, 1.0)
    for centre in (np.array([0, -1, 0]), np.array([0, GRID + 1, 0]), np.array([0, 0])):
        with pytest.raises(ValueError, match=r"public|centre"):
            core.sum_around(rows, centre, 1.0)


@cores
@given(st.data())
@settings(max_examples=50)
def test_log_softmax_is_normalised_before_the_cut(core: ModuleType, data) -> None:
    width = data.draw(st.integers(1, 40))
    row = data.draw(rows_of(width))
    support = data.draw(st.lists(st.integers(0, width - 1), max_size=6))
    whole, cut = core.log_softmax(row), core.log_softmax(np.stack([row, row]), support)
    assert whole.dtype == cut.dtype == np.float32
    assert cut.shape == (2, len(support))
    assert np.array_equal(cut[1], whole[support], equal_nan=True)
    if twins.largest_of(row) is None:
        assert np.isnan(whole).all()
    else:
        assert math.fsum(np.exp(whole.astype(np.float64))) == pytest.approx(1, abs=1e-5)
        assert np.allclose(whole, twins.log_softmax(row), rtol=1e-6, atol=1e-6)


@cores
def test_log_softmax_refuses_tokens_outside_of_the_vocabulary(core: ModuleType) -> None:
    for support in ([3], [-1]):
        with pytest.raises(ValueError, match="token id"):
            core.log_softmax(np.zeros((1, 3), dtype=np.float32), support)
