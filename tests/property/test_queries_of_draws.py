"""Every query of AdaDPSyn and of public-centred on whole draws of neighbouring data sets, in integers.

A unit is taken out of the data; all other coins are shared. With one record per prompt a row comes or goes,
with several a prompt turns into another: each query has a bound for either, and controls break it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.mechanisms import RowChange
from dpfewshot.mechanisms.gaussian import squared_clip_sensitivity
from tests.support.draws import poisson_subsets_of, sliced, without

GRID = _core.grid
WIDTH = 6
UNITS = 30
PROMPTS = 5
SIZE = 4  # t of ρ = 0.8
CLIP = 0.2
PER_PROMPT = {RowChange.ADDED: 1, RowChange.REPLACED: 4}

Matrix = NDArray[np.float32]
Answer = NDArray[np.int64]


def row_of_prompt(members: Sequence[int]) -> Matrix:
    """A language model at its worst: for each set of records a certain token, a vague one, or a failure."""
    generator = np.random.default_rng([7, *members])
    kind = generator.integers(0, 10)
    if kind == 0:
        return np.full(WIDTH, np.nan, dtype=np.float32)
    if kind < 3:
        return (generator.normal(0, 0.2, WIDTH) - 2 * (np.arange(WIDTH) > 1)).astype(np.float32)
    token = 0 if kind < 6 else generator.integers(0, WIDTH)
    return np.where(np.arange(WIDTH) == token, 0, -np.inf).astype(np.float32)


def rows_of(subsets: Sequence[Sequence[int]]) -> Matrix:
    return np.array([row_of_prompt(s) for s in subsets], dtype=np.float32).reshape(-1, WIDTH)


CERTAIN = np.array([GRID, 0, 0, 0, 0, 0])
SPLIT = np.array([GRID // 2, GRID // 2, 0, 0, 0, 0])
MIXED = np.array([GRID // 2, GRID // 4, GRID // 8, GRID // 16, GRID // 16, 0])


@dataclass(frozen=True)
class Query:
    """What is asked of a draw's rows, and the square of how far one unit may move it."""

    name: str
    ask: Callable[[Matrix], Answer]
    bound: Callable[[RowChange], float]


def score(rows: Matrix) -> Answer:
    return np.array(_core.Distances(rows).scores([0.3], SIZE))


def clipped(rows: Matrix, centre: Answer) -> Answer:
    return _core.sum_around(rows, centre, CLIP)


def exact_clip(row_change: RowChange) -> float:
    return float(squared_clip_sensitivity(CLIP, row_change, GRID)) * GRID**2


QUERIES = (
    Query("GoodRadius", score, lambda _: (2 * SIZE - 1) ** 2),
    Query("coverage", lambda m: np.array([_core.count_within(m, MIXED, 0.6)]), lambda _: 1),
    Query("balance", lambda m: np.array([_core.balance_within(m, MIXED, 0.6)]), lambda c: c.rows**2),
    Query("first mean", _core.sum_of_probabilities, lambda c: c.rows * GRID**2),
    Query("later mean, certain centre", lambda m: clipped(m, CERTAIN), exact_clip),
    Query("later mean, split centre", lambda m: clipped(m, SPLIT), exact_clip),
    Query("centred at nothing", lambda m: clipped(m, np.zeros(WIDTH, dtype=np.int64)), exact_clip),
)
queries = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
changes = pytest.mark.parametrize("row_change", RowChange, ids=lambda change: change.name.lower())
coins = st.tuples(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, UNITS - 1))


def squared(change: Answer) -> int:
    return sum(int(i) ** 2 for i in np.ravel(change))


def neighbouring_rows(coin: tuple[int, int, int], records_per_prompt: int) -> tuple[Matrix, Matrix]:
    seed, subsets, unit = coin
    drawn = poisson_subsets_of(UNITS, seed, subsets, records_per_prompt)
    return rows_of(drawn), rows_of(without(drawn, unit))


@queries
@changes
@given(coins)
@settings(max_examples=80, deadline=None)
def test_a_unit_moves_a_query_by_at_most_its_sensitivity(query: Query, row_change: RowChange, coin) -> None:
    one, other = neighbouring_rows(coin, PER_PROMPT[row_change])
    assert squared(query.ask(one) - query.ask(other)) <= query.bound(row_change)


def worst(ask: Callable[[Matrix], Answer], records_per_prompt: int) -> int:
    pairs = (
        neighbouring_rows((seed, 6, unit), records_per_prompt) for seed in range(8) for unit in range(UNITS)
    )
    return max(squared(ask(one) - ask(other)) for one, other in pairs)


@queries
def test_the_draws_above_move_every_query(query: Query) -> None:
    """The property is not empty: some draw moves the query by a good part of its bound."""
    for row_change, records in PER_PROMPT.items():
        assert worst(query.ask, records) > 0.15 * query.bound(row_change)


# ---- controls --------------------------------------------------------------------------------------------


@queries
def test_control_subsets_sliced_by_position_break_every_bound(query: Query) -> None:
    """One record fewer shifts all that come after it."""
    furthest = 0
    for seed in range(8):
        drawn = [unit for subset in poisson_subsets_of(UNITS, seed, 6, 1) for unit in subset]
        for unit in drawn:
            fewer = [other for other in drawn if other != unit]
            change = query.ask(rows_of(sliced(drawn, 4))) - query.ask(rows_of(sliced(fewer, 4)))
            furthest = max(furthest, squared(change))
    assert furthest > query.bound(RowChange.REPLACED)


def test_control_the_naive_projected_mean_breaks_its_bound() -> None:
    """Σ (c + clip(p - c)), as printed: an absent row is then 0 and not c."""

    def naive(rows: Matrix) -> Answer:
        present = len(rows) - int(np.isnan(rows).any(axis=1).sum())
        return clipped(rows, CERTAIN) + present * CERTAIN

    assert worst(naive, 1) > 9 * exact_clip(RowChange.ADDED)


def test_control_one_row_is_not_enough_where_a_row_is_replaced() -> None:
    """Each bound that is larger for a replaced row needs to be."""
    for query in QUERIES:
        if query.bound(RowChange.REPLACED) > query.bound(RowChange.ADDED) and "certain" not in query.name:
            assert worst(query.ask, 4) > query.bound(RowChange.ADDED), query.name


def test_control_a_mean_over_the_rows_that_are_there_breaks_its_bound() -> None:
    """M times the mean over the realised number of rows, in place of the sum."""

    def realised(rows: Matrix) -> Answer:
        return PROMPTS * _core.sum_of_probabilities(rows) // max(len(rows), 1)

    alone = rows_of([[0]])[:0], rows_of([[2]])
    assert squared(realised(alone[1]) - realised(alone[0])) > GRID**2


def test_control_a_size_that_follows_the_draw_breaks_the_score() -> None:
    """t = ⌈0.8 · rows⌉ in place of ⌈0.8 · M⌉."""

    def follows(rows: Matrix) -> Answer:
        return np.array(_core.Distances(rows).scores([1.4], max(math.ceil(0.8 * len(rows)), 1)))

    assert worst(follows, 1) > (2 * SIZE) ** 2
