"""The effect of one unit on the integers behind a token: monotone changes, ranges and L1 distances.

Whole neighbouring draws: sampling, assignment to prompts, a language model that answers any set of records
with anything, and the sums. One record a prompt is RowChange.ADDED, several are RowChange.REPLACED.
"""

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.mechanisms import RowChange
from dpfewshot.mechanisms.sparse_vector import distance
from dpfewshot.sampling import PoissonSampler

WIDTH = 5
ANSWERS = 7
GRID, LOGIT_GRID = _core.grid, _core.logit_grid
RECORDS_PER_PROMPT = {RowChange.ADDED: 1, RowChange.REPLACED: 4}

Rows = NDArray[np.float32]
Integers = NDArray[np.int64]

adversarial = st.one_of(
    st.floats(width=32),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, -103.9, 88.7]),
    st.floats(-30, 30, width=32),
)
finite = st.one_of(st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats(-30, 0, width=32))
public_rows = npst.arrays(np.float32, WIDTH, elements=finite)
both = pytest.mark.parametrize("row_change", RowChange)


class Neighbours(NamedTuple):
    """The rows of one draw with a unit and without it, all other coins being shared."""

    with_unit: Rows
    without: Rows


def rows_of(subsets: Sequence[Sequence[int]], answers: Rows) -> Rows:
    rows = [answers[hash(tuple(subset)) % len(answers)] for subset in subsets]
    return np.array(rows, dtype=np.float32).reshape(-1, answers.shape[1])


@st.composite
def neighbours(draw: st.DrawFn, records_per_prompt: int) -> Neighbours:
    answers = draw(npst.arrays(np.float32, (ANSWERS, WIDTH), elements=adversarial))
    n, seed, subsets = draw(st.integers(1, 25)), draw(st.integers(0, 2**32)), draw(st.integers(1, 5))
    sampler = PoissonSampler(Fraction(1, 2), subsets, records_per_prompt, random.Random(seed).randbytes)
    drawn = [[unit for unit, _ in subset] for subset in sampler.draw([1] * n)]
    unit = draw(st.integers(0, n - 1))
    rest = [kept for subset in drawn if (kept := [u for u in subset if u != unit])]
    return Neighbours(rows_of(drawn, answers), rows_of(rest, answers))


def spread(change: Integers) -> int:
    return int(change.max()) - int(change.min())


@both
@given(st.data())
def test_max_normalised_sums_change_by_one_and_monotonically_where_a_row_is_added(
    row_change: RowChange, data: st.DataObject
) -> None:
    pair = data.draw(neighbours(RECORDS_PER_PROMPT[row_change]))
    change = _core.sum_of_max_normalised(pair.with_unit) - _core.sum_of_max_normalised(pair.without)
    assert np.abs(change).max() <= GRID
    assert row_change is RowChange.REPLACED or change.min() >= 0


@both
@given(st.data())
def test_range_of_max_normalised_sums(row_change: RowChange, data: st.DataObject) -> None:
    pair = data.draw(neighbours(RECORDS_PER_PROMPT[row_change]))
    with_unit, without = (_core.sum_of_max_normalised(rows) for rows in pair)
    assert spread(with_unit - without) <= row_change.rows * GRID


@both
@given(st.data(), st.floats(1e-6, 1000))
def test_range_of_clipped_logits(row_change: RowChange, data: st.DataObject, clip: float) -> None:
    pair = data.draw(neighbours(RECORDS_PER_PROMPT[row_change]))
    with_unit, without = (_core.sum_of_clipped_logits(rows, clip) for rows in pair)
    bound = math.floor(Fraction(clip) * LOGIT_GRID)
    assert spread(with_unit - without) <= 2 * row_change.rows * bound


@both
@given(st.data(), public_rows, st.floats(1e-6, 1000))
def test_range_of_clipped_differences(
    row_change: RowChange, data: st.DataObject, public: Rows, clip: float
) -> None:
    pair = data.draw(neighbours(RECORDS_PER_PROMPT[row_change]))
    with_unit, without = (_core.sum_of_clipped_differences(rows, public, clip) for rows in pair)
    bound = math.floor(Fraction(clip) * LOGIT_GRID)
    assert spread(with_unit - without) <= 2 * row_change.rows * bound


@both
@given(st.data(), npst.arrays(np.float32, WIDTH, elements=adversarial), st.integers(1, 40))
def test_distance_from_the_public_row(
    row_change: RowChange, data: st.DataObject, public_row: Rows, prompts: int
) -> None:
    pair = data.draw(neighbours(RECORDS_PER_PROMPT[row_change]))
    public = _core.sum_of_probabilities(public_row[np.newaxis])
    with_unit, without = (distance(rows, public, prompts) for rows in pair)
    assert abs(with_unit - without) <= row_change.rows * GRID


def certain(*tokens: int) -> Rows:
    rows = np.full((len(tokens), 2), -np.inf, dtype=np.float32)
    rows[range(len(tokens)), list(tokens)] = 0
    return rows


def test_the_bounds_are_reached() -> None:
    zero, one = certain(0), certain(1)
    nobody = np.empty((0, 2), dtype=np.float32)
    flat = np.zeros(2, dtype=np.float32)
    clip = 3.7
    bound = math.floor(Fraction(clip) * LOGIT_GRID)
    assert _core.sum_of_max_normalised(one).tolist() == [0, GRID]
    assert spread(_core.sum_of_max_normalised(one) - _core.sum_of_max_normalised(zero)) == 2 * GRID
    for total in (
        lambda rows: _core.sum_of_clipped_logits(rows, clip),
        lambda rows: _core.sum_of_clipped_differences(
            np.nan_to_num(rows * 1e4, neginf=-1e4), flat - 2e3, clip
        ),
    ):
        assert spread(total(one) - total(nobody)) == 2 * bound
        assert spread(total(one) - total(zero)) == 4 * bound
    public = _core.sum_of_probabilities(one)
    assert distance(one, public, 10) == distance(nobody, public, 10) - GRID
    assert distance(one, public, 10) == distance(zero, public, 10) - 2 * GRID


# ---- controls: forms that look alike, and are caught ------------------------------------------------------


def test_control_the_mean_over_the_realised_number_has_a_larger_range() -> None:
    """With many rows that agree, a divisor that counts them moves the whole mean."""
    clip, prompts = 10.0, 20
    rows, more = certain(*[0] * prompts), certain(*[0] * prompts, 1)
    bound = Fraction(2 * math.floor(Fraction(clip) * LOGIT_GRID), prompts)
    change = [
        Fraction(int(after), len(more)) - Fraction(int(before), len(rows))
        for after, before in zip(
            _core.sum_of_clipped_logits(more, clip), _core.sum_of_clipped_logits(rows, clip), strict=True
        )
    ]
    assert max(change) - min(change) > Fraction(3, 2) * bound


@pytest.mark.parametrize(
    "clipped",
    [
        lambda logits, clip: np.maximum(-clip, logits + clip),  # the maximum is not taken off
        lambda logits, clip: logits - logits.max() + clip,  # nothing is cut
    ],
)
def test_control_logits_without_the_maximum_or_the_cut_have_no_bounded_range(clipped) -> None:
    logits, clip = np.array([31.0, 4.0, -50.0]), 10.0
    right = np.maximum(-clip, logits - logits.max() + clip)
    assert right.max() - right.min() <= 2 * clip
    wrong = clipped(logits, clip)
    assert wrong.max() - wrong.min() > 3 * clip


def test_control_the_mean_of_votes_over_the_realised_number_has_a_larger_range() -> None:
    """A divisor that counts the rows moves both coordinates, one up and one down."""
    few, more = certain(0, 0), certain(0, 0, 1)
    before, after = (_core.sum_of_max_normalised(rows) / len(rows) for rows in (few, more))
    change = (after - before) * len(more)
    assert change.max() - change.min() > 1.9 * GRID


def test_control_a_row_that_turns_into_another_is_not_monotone() -> None:
    change = _core.sum_of_max_normalised(certain(1)) - _core.sum_of_max_normalised(certain(0))
    assert change.min() == -GRID
    assert change.max() == GRID


def test_control_the_distance_of_means_over_the_realised_number_changes_by_more() -> None:
    """Two certain rows that disagree: the second one moves the mean of the first by half of everything."""
    prompts = 10
    public = certain(0)[0] == 0
    before = np.abs(np.array([1.0, 0.0]) - public).sum()
    after = np.abs(np.array([0.5, 0.5]) - public).sum()
    assert abs(after - before) > 5 / prompts
