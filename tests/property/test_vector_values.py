"""The sums of the sensitivity table: their values, sizes and arguments."""

import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dpfewshot import _core
from tests.support import twins
from tests.support.sensitivity import GRID, INF, KINDS, LOGIT_GRID, cores, rows_of, sum_of_centred


@cores
@given(st.data())
@settings(max_examples=50, deadline=None)
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
@settings(max_examples=50, deadline=None)
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
