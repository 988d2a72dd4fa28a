"""Every query of a draw, on whole draws of neighbouring data sets, in integers.

A unit is taken out of the data, and all other coins are shared: sampling, assignment to prompts, a language
model that answers any set of records with anything, and the sums. With one record per prompt a row comes or
goes, with several a prompt turns into another: each query has a bound for either, and controls break it.
"""

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

import dpfewshot as dpf
from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import Draws, ReportNoisyMax, RowChange
from dpfewshot.mechanisms.gaussian import squared_clip_sensitivity
from dpfewshot.mechanisms.sparse_vector import distance
from dpfewshot.records.units import each_a_unit
from dpfewshot.sampling import FixedSizeSampler, disjoint_parts
from tests.support import sensitivity
from tests.support.draws import poisson_subsets_of, sliced, without
from tests.support.sensitivity import GRID, LOGIT_GRID, Matrix, adversarial

WIDTH = 6
UNITS = 30
PROMPTS = 5
SIZE = 4  # t of ρ = 0.8
PER_PROMPT = {RowChange.ADDED: 1, RowChange.REPLACED: 4}

Answer = NDArray[np.int64]
certain = functools.partial(sensitivity.certain, width=WIDTH)


class Setting(NamedTuple):
    """Public numbers that a query depends on."""

    clip: float = 0.2
    logit_clip: float = 1.5
    public: Matrix = np.full(WIDTH, -2, dtype=np.float32)
    believed: Matrix = np.array([0, *[-np.inf] * (WIDTH - 1)], dtype=np.float32)
    prompts: int = PROMPTS


CERTAIN = np.array([GRID, 0, 0, 0, 0, 0])
SPLIT = np.array([GRID // 2, GRID // 2, 0, 0, 0, 0])
MIXED = np.array([GRID // 2, GRID // 4, GRID // 8, GRID // 16, GRID // 16, 0])
NOWHERE = np.zeros(WIDTH, dtype=np.int64)


def squared(change: Answer) -> int:
    return sum(int(i) ** 2 for i in np.ravel(change))


def largest(change: Answer) -> int:
    return int(np.abs(change).max()) ** 2


def spread(change: Answer) -> int:
    return (int(change.max()) - int(change.min())) ** 2


@dataclass(frozen=True)
class Query:
    """What is asked of a draw's rows, the square of how far it moved, and the bound of that."""

    name: str
    ask: Callable[[Matrix, Setting], Answer]
    bound: Callable[[RowChange, Setting], Fraction | int]
    measure: Callable[[Answer], int] = squared


def score(rows: Matrix, _: Setting) -> Answer:
    return np.array(_core.Distances(rows).scores([0.3], SIZE))


def mean_around(centre: Answer) -> Callable[[Matrix, Setting], Answer]:
    return lambda rows, setting: _core.sum_around(rows, centre, setting.clip)


def exact_clip(row_change: RowChange, setting: Setting) -> Fraction:
    return squared_clip_sensitivity(setting.clip, row_change, GRID) * GRID**2


def logit_range(row_change: RowChange, setting: Setting) -> int:
    return (2 * row_change.rows * math.floor(Fraction(setting.logit_clip) * LOGIT_GRID)) ** 2


def steps_from_public(rows: Matrix, setting: Setting) -> Answer:
    public = _core.sum_of_probabilities(setting.believed[np.newaxis])
    return np.array([distance(rows, public, setting.prompts)])


def contrasted_votes(rows: Matrix, setting: Setting) -> Answer:
    """What report noisy max adds noise to: the votes, less a share of the public prompt's."""
    drawn = Draws(0.1, 1, 1, setting.prompts, RowChange.ADDED)
    release = ReportNoisyMax(contrast=0.4).start(drawn, 2.0)
    seen: list[Answer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "permute_and_flip", lambda scores, *_: seen.append(scores) or 0)
        release.token(rows, setting.believed, Permit(1, 2.0))
    return seen[0]


QUERIES = (
    Query("GoodRadius", score, lambda *_: (2 * SIZE - 1) ** 2),
    Query("coverage", lambda m, _: np.array([_core.count_within(m, MIXED, 0.6)]), lambda *_: 1),
    Query("first mean", lambda m, _: _core.sum_of_probabilities(m), lambda c, _: c.rows * GRID**2),
    Query("later mean, certain centre", mean_around(CERTAIN), exact_clip),
    Query("later mean, split centre", mean_around(SPLIT), exact_clip),
    Query("centred at nothing", mean_around(NOWHERE), exact_clip),
    Query("votes", lambda m, _: _core.sum_of_max_normalised(m), lambda *_: GRID**2, largest),
    Query("contrasted votes", contrasted_votes, lambda *_: GRID**2, largest),
    Query("clipped logits", lambda m, s: _core.sum_of_clipped_logits(m, s.logit_clip), logit_range, spread),
    Query(
        "clipped differences",
        lambda m, s: _core.sum_of_clipped_differences(m, s.public, s.logit_clip),
        logit_range,
        spread,
    ),
    Query("distance from the public row", steps_from_public, lambda c, _: (c.rows * GRID) ** 2),
)
queries = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
changes = pytest.mark.parametrize("row_change", RowChange)
coins = st.tuples(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, UNITS), st.integers(0, UNITS - 1))
finite = st.one_of(st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats(-30, 0, width=32))
anything = npst.arrays(np.float32, (7, WIDTH), elements=adversarial)
public_settings = st.builds(
    Setting,
    st.floats(1e-6, math.sqrt(2)),
    st.floats(1e-6, 1000),
    npst.arrays(np.float32, WIDTH, elements=finite),
    npst.arrays(np.float32, WIDTH, elements=adversarial),
    st.integers(1, 40),
)
USUAL = Setting()


def row_of_prompt(members: Sequence[int]) -> Matrix:
    """A language model at its worst: for each set of records a certain token, a vague one, or a failure."""
    generator = np.random.default_rng([7, *members])
    kind = generator.integers(0, 10)
    if kind == 0:
        return np.full(WIDTH, np.nan, dtype=np.float32)
    if kind < 3:
        return (generator.normal(0, 0.2, WIDTH) - 2 * (np.arange(WIDTH) > 1)).astype(np.float32)
    return certain(0 if kind < 6 else generator.integers(0, WIDTH))[0]


def rows_of(subsets: Sequence[Sequence[int]], answers: Matrix | None = None) -> Matrix:
    """The model's rows for these subsets; it answers with rows of `answers`, if there are any."""
    answer = row_of_prompt if answers is None else lambda subset: answers[hash(tuple(subset)) % len(answers)]
    return np.array([answer(subset) for subset in subsets], dtype=np.float32).reshape(-1, WIDTH)


@queries
@changes
@given(coins, st.none() | anything, st.just(USUAL) | public_settings)
@settings(max_examples=150)
def test_a_unit_moves_a_query_by_at_most_its_sensitivity(
    query: Query, row_change: RowChange, coin, answers: Matrix | None, setting: Setting
) -> None:
    seed, subsets, units, unit = coin
    drawn = poisson_subsets_of(units, seed, subsets, PER_PROMPT[row_change])
    rows, fewer = (rows_of(each, answers) for each in (drawn, without(drawn, unit % units)))
    change = query.ask(rows, setting) - query.ask(fewer, setting)
    assert query.measure(change) <= query.bound(row_change, setting)
    assert "votes" not in query.name or row_change is RowChange.REPLACED or change.min() >= 0


@queries
@given(
    st.tuples(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4), st.integers(0, UNITS - 1)),
    st.none() | anything,
)
def test_replacing_a_unit_of_a_fixed_size_draw_moves_a_query_as_a_replaced_row_does(
    query: Query, coin: tuple[int, int, int, int], answers: Matrix | None
) -> None:
    seed, subsets, records_per_prompt, unit = coin
    sampler = FixedSizeSampler(subsets, records_per_prompt, random.Random(seed).randbytes)
    drawn = [[member for member, _ in subset] for subset in sampler.draw([1] * UNITS)]
    replaced = [[1000 if member == unit else member for member in subset] for subset in drawn]
    change = query.ask(rows_of(drawn, answers), USUAL) - query.ask(rows_of(replaced, answers), USUAL)
    assert query.measure(change) <= query.bound(RowChange.REPLACED, USUAL)
    if all(unit not in subset for subset in drawn):
        assert not change.any()


def worst(query: Query, records_per_prompt: int) -> int:
    """The furthest that a unit of the worst-case model moves a query."""
    found = 0
    for seed in range(8):
        drawn = poisson_subsets_of(UNITS, seed, 6, records_per_prompt)
        whole = query.ask(rows_of(drawn), USUAL)
        for unit in range(UNITS):
            found = max(found, query.measure(whole - query.ask(rows_of(without(drawn, unit)), USUAL)))
    return found


@queries
def test_the_draws_above_move_every_query(query: Query) -> None:
    """The property is not empty: some draw moves the query by a good part of its bound."""
    for row_change, records in PER_PROMPT.items():
        assert worst(query, records) > 0.15 * query.bound(row_change, USUAL)


@queries
def test_control_one_row_is_not_enough_where_a_row_is_replaced(query: Query) -> None:
    """Each bound that is larger for a replaced row needs to be."""
    added, replaced = (query.bound(row_change, USUAL) for row_change in RowChange)
    if replaced > added and "certain" not in query.name:
        assert worst(query, 4) > added


def test_the_ranges_and_distances_are_reached_to_the_step() -> None:
    setting = USUAL._replace(logit_clip=3.7, public=np.full(WIDTH, -2e3, dtype=np.float32))
    bound = math.floor(Fraction(3.7) * LOGIT_GRID)
    nobody, zero, one = certain()[:0].reshape(0, WIDTH), certain(0), certain(1)
    for name, row, twice in (
        ("votes", GRID, GRID),
        ("clipped logits", 2 * bound, 4 * bound),
        ("clipped differences", 2 * bound, 4 * bound),
        ("distance from the public row", GRID, 2 * GRID),
    ):
        query = next(each for each in QUERIES if each.name == name)
        finite = np.nan_to_num(np.vstack([zero, one]) * 1e4, neginf=-1e4) if "differences" in name else None
        rows = [zero, one] if finite is None else [finite[:1], finite[1:]]
        first, other = (query.ask(each, setting) for each in rows)
        assert query.measure(first - query.ask(nobody, setting)) == row**2
        assert query.measure(first - other) == twice**2


@queries
def test_control_subsets_sliced_by_position_break_every_bound(query: Query) -> None:
    """One record fewer shifts all that come after it."""
    furthest = 0
    for seed in range(8):
        drawn = [unit for subset in poisson_subsets_of(UNITS, seed, 6, 1) for unit in subset]
        whole = query.ask(rows_of(sliced(drawn, 4)), USUAL)
        for unit in drawn:
            fewer = [other for other in drawn if other != unit]
            furthest = max(furthest, query.measure(whole - query.ask(rows_of(sliced(fewer, 4)), USUAL)))
    assert furthest > query.bound(RowChange.REPLACED, USUAL)


def test_control_the_naive_projected_mean_breaks_its_bound() -> None:
    """Σ (c + clip(p - c)), as printed: an absent row is then 0 and not c."""

    def naive(rows: Matrix, setting: Setting) -> Answer:
        present = len(rows) - int(np.isnan(rows).any(axis=1).sum())
        return _core.sum_around(rows, CERTAIN, setting.clip) + present * CERTAIN

    assert worst(Query("naive", naive, exact_clip), 1) > 9 * exact_clip(RowChange.ADDED, USUAL)


def test_control_a_size_that_follows_the_draw_breaks_the_score() -> None:
    """t = ⌈0.8 · rows⌉ in place of ⌈0.8 · M⌉."""

    def follows(rows: Matrix, _: Setting) -> Answer:
        return np.array(_core.Distances(rows).scores([1.4], max(math.ceil(0.8 * len(rows)), 1)))

    assert worst(Query("follows", follows, exact_clip), 1) > (2 * SIZE) ** 2


@pytest.mark.parametrize(
    ("query", "rows", "bound"),
    [
        (_core.sum_of_probabilities, [], 1.0 * GRID / PROMPTS),
        (lambda rows: _core.sum_of_clipped_logits(rows, 10.0), [0] * 20, 1.5 * 2 * 10 * LOGIT_GRID / 20),
        (_core.sum_of_max_normalised, [0, 0], 1.9 * GRID / 3),
        (lambda rows: np.array([_core.count_within(rows, CERTAIN, 0.5), 0]), [0], 1 / 10),
        (lambda rows: np.array([distance(rows, CERTAIN, len(rows)), 0]), [0], 5 / 10 * GRID),
    ],
    ids=["probabilities", "logits", "votes", "coverage", "distances"],
)
def test_control_the_mean_over_the_realised_number_has_a_larger_range(
    query: Callable[[Matrix], Answer], rows: list[int], bound: float
) -> None:
    """With rows that agree, a divisor that counts them moves the mean, one coordinate up and one down."""
    before, after = (query(certain(*tokens)) / max(len(tokens), 1) for tokens in (rows, [*rows, 1]))
    change = after - before
    assert change.max() - change.min() > bound


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


def test_control_one_record_a_prompt_of_a_fixed_size_draw_is_not_sensitivity_one() -> None:
    """With draws of fixed size a unit is replaced, never merely absent: noise for 1 would not do."""
    before, *others = (_core.sum_of_probabilities(rows_of([[unit], [5]])) for unit in (3, *range(1000, 1020)))
    assert max(squared(before - other) for other in others) > (1.4 * GRID) ** 2


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
