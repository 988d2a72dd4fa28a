"""Neighbouring data sets, the same randomness: the integer sums differ by at most the stated sensitivity."""

import math
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import FixedSizeSampler, disjoint_parts
from tests.support.draws import poisson_subsets_of, sliced, without

WIDTH = 6
GRID = _core.grid

adversarial = st.one_of(
    st.floats(width=32),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, -103.9, 88.7]),
    st.floats(-30, 0, width=32),
)
rows = npst.arrays(np.float32, st.integers(1, 40), elements=adversarial)


def integers_of(row: NDArray[np.float32]) -> NDArray[np.int64]:
    return _core.sum_of_probabilities(row[np.newaxis])


@given(rows)
def test_a_row_has_norm_at_most_one(row: NDArray[np.float32]) -> None:
    integers = [int(i) for i in integers_of(row)]
    assert min(integers) >= 0
    assert sum(integers) <= GRID
    assert sum(i * i for i in integers) <= GRID**2


@given(rows)
def test_a_row_is_its_softmax_or_nothing(row: NDArray[np.float32]) -> None:
    integers = integers_of(row)
    if np.isnan(row).any() or (row == np.inf).any() or not np.isfinite(row).any():
        assert not integers.any()
    else:
        exponentials = np.exp(row.astype(np.float64) - row.max())
        assert np.abs(integers - exponentials / exponentials.sum() * GRID).max() <= 1 + 1e-6 * GRID


@given(rows)
def test_two_rows_differ_by_at_most_root_two(row: NDArray[np.float32]) -> None:
    difference = integers_of(row) - integers_of(row[::-1].copy())
    assert sum(int(i) ** 2 for i in difference) <= 2 * GRID**2


def test_the_bounds_are_reached() -> None:
    certain = np.array([[0, -np.inf], [-np.inf, 0]], dtype=np.float32)
    one, other = integers_of(certain[0]), integers_of(certain[1])
    assert np.linalg.norm(one.astype(float)) >= 0.99 * GRID
    assert np.linalg.norm((one - other).astype(float)) >= 0.99 * math.sqrt(2) * GRID


@given(npst.arrays(np.float32, st.tuples(st.integers(0, 20), st.integers(1, 10)), elements=adversarial))
def test_the_sum_is_the_sum_of_the_rows(matrix: NDArray[np.float32]) -> None:
    alone = sum((integers_of(row) for row in matrix), np.zeros(matrix.shape[1], dtype=np.int64))
    assert (_core.sum_of_probabilities(matrix) == alone).all()


# ---- whole draws: sampling, assignment, prompts, sum ----------------------------------------------------


def row_of_prompt(members: Sequence[int]) -> NDArray[np.float32]:
    """A worst-case language model: an arbitrary, certain answer for each set of records."""
    row = np.full(WIDTH, -np.inf, dtype=np.float32)
    row[hash(tuple(members)) % WIDTH] = 0
    return row


def sum_over(subsets: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    prompts = np.array([row_of_prompt(s) for s in subsets], dtype=np.float32).reshape(-1, WIDTH)
    return _core.sum_of_probabilities(prompts)


draws = st.tuples(st.integers(1, 30), st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 29))


@given(draws)
def test_one_record_a_prompt_changes_the_sum_by_at_most_one(draw: tuple[int, int, int, int]) -> None:
    n, seed, subsets, unit = draw
    drawn = poisson_subsets_of(n, seed, subsets, 1)
    difference = sum_over(drawn) - sum_over(without(drawn, unit % n))
    assert sum(int(i) ** 2 for i in difference) <= GRID**2


@given(draws)
def test_grouped_changes_the_sum_by_at_most_root_two(draw: tuple[int, int, int, int]) -> None:
    n, seed, subsets, unit = draw
    drawn = poisson_subsets_of(n, seed, subsets, 4)
    difference = sum_over(drawn) - sum_over(without(drawn, unit % n))
    assert sum(int(i) ** 2 for i in difference) <= 2 * GRID**2


def test_control_subsets_sliced_by_position_break_the_bound() -> None:
    """One record fewer shifts all that come after it, and the property above catches it."""
    worst = 0.0
    for seed in range(20):
        drawn = [u for s in poisson_subsets_of(30, seed, 4, 1) for u in s]
        for unit in drawn:
            difference = sum_over(sliced(drawn, 4)) - sum_over(sliced([u for u in drawn if u != unit], 4))
            worst = max(worst, float(np.linalg.norm(difference.astype(float))) / GRID)
    assert worst > 1.1 * math.sqrt(2)


# ---- disjoint parts and draws of fixed size -------------------------------------------------------------


@given(st.lists(st.text(min_size=1, max_size=3), max_size=12), st.integers(2, 8), st.data())
def test_a_unit_that_is_added_leaves_every_other_unit_in_its_part(
    others: list[str], parts: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(others)))
    joined = [*others[:place], "the added one", *others[place:]]
    before, after = (
        [[unit[0].text for unit in part] for part in disjoint_parts(each_a_unit(records), parts)]
        for records in ([dpf.Record(text, "refund") for text in texts] for texts in (others, joined))
    )
    changed = [part for part in range(parts) if before[part] != after[part]]
    assert len(changed) == 1
    assert [text for text in after[changed[0]] if text != "the added one"] == before[changed[0]]
    assert sorted(text for part in after for text in part) == sorted(joined)


def test_control_equal_pieces_move_units_from_part_to_part() -> None:
    units = list(range(24))
    after = sliced([-1, *units], 6)
    before = sliced(units, 6)
    assert sum([u for u in one if u >= 0] != other for one, other in zip(after, before, strict=False)) > 1


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4), st.integers(0, 29))
def test_replacing_a_unit_of_a_fixed_size_draw_changes_the_sum_by_at_most_root_two(
    seed: int, subsets: int, records_per_prompt: int, unit: int
) -> None:
    sampler = FixedSizeSampler(subsets, records_per_prompt, random.Random(seed).randbytes)
    drawn = [[member for member, _ in subset] for subset in sampler.draw([1] * 30)]
    replaced = [[1000 if member == unit else member for member in subset] for subset in drawn]
    difference = [int(i) for i in sum_over(drawn) - sum_over(replaced)]
    assert sum(i * i for i in difference) <= 2 * GRID**2
    if all(unit not in subset for subset in drawn):
        assert not any(difference)


def test_control_one_record_a_prompt_of_a_fixed_size_draw_is_not_sensitivity_one() -> None:
    """With draws of fixed size a unit is replaced, never merely absent: noise for 1 would not do."""
    worst = 0.0
    for other in range(1000, 1020):
        difference = sum_over([[3], [5]]) - sum_over([[other], [5]])
        worst = max(worst, float(np.linalg.norm(difference.astype(float))) / GRID)
    assert worst > 1.4
