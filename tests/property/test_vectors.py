"""Every row of the sensitivity table, in integers: its bound, inputs that reach it, and the twin."""

import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot import _core
from tests.support import twins
from tests.support.sensitivity import (
    GRID,
    INF,
    KINDS,
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
@settings(max_examples=60, deadline=None)
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
@settings(max_examples=30, deadline=None)
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
@settings(max_examples=100, deadline=None)
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
