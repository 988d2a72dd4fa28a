"""Every row of the sensitivity table, in integers: its bound, inputs that reach it, and the twin."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpfewshot import _core
from tests.support import twins

GRID, LOGIT_GRID = _core.grid, _core.logit_grid
ROOT_TWO = math.sqrt(2)
CLIPS = (1e-12, 0.1, 0.5, 1.0, ROOT_TWO)
LOGIT_CLIPS = (1e-9, 0.3, 5.0, 1000.0)

Matrix = NDArray[np.float32]

special = st.sampled_from(
    [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, -103.9, 88.7]
)
adversarial = st.one_of(st.floats(width=32), special, st.floats(-30, 0, width=32))
widths = st.one_of(st.just(1), st.integers(1, 40), st.sampled_from([1023, 1025, 2050]))


@st.composite
def rows_of(draw: st.DrawFn, width: int, finite: bool = False) -> Matrix:
    """A row of any floats, or one of the shapes on which rounding is at its worst."""
    shape = draw(st.sampled_from(["any", "one token", "flat", "nearly flat", "steps"]))
    if shape == "any" and width <= 40 and not finite:
        return draw(npst.arrays(np.float32, width, elements=adversarial))
    seeded = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = np.full(width, draw(st.floats(-1e3, 1e3, width=32)), dtype=np.float32)
    if shape == "one token":
        row[:] = -np.inf
        row[draw(st.integers(0, width - 1))] = draw(st.floats(-(2.0**99), 2.0**99, width=32))
    elif shape == "nearly flat":
        row = seeded.normal(0, 1e-4, width).astype(np.float32)
    elif shape in ("steps", "any"):
        row = (-seeded.integers(0, 30, width)).astype(np.float32)
    return row


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Matrix, Matrix, Matrix]:
    """Other rows, and two that one unit may turn into each other."""
    width = draw(widths)
    others = [draw(rows_of(width)) for _ in range(draw(st.integers(0, 3)))]
    matrix = np.array(others, dtype=np.float32).reshape(-1, width)
    return matrix, draw(rows_of(width)), draw(rows_of(width))


def squared_l2(change: NDArray[np.int64]) -> int:
    return sum(int(i) ** 2 for i in change)


def l_infinity(change: NDArray[np.int64]) -> int:
    return int(np.abs(change).max(initial=0))


def spread(change: NDArray[np.int64]) -> int:
    return int(change.max() - change.min())


def centre_of(matrix: Matrix) -> Matrix:
    """A public row for these columns, the same for all data sets."""
    return (np.arange(matrix.shape[1]) % 7).astype(np.float32)


def sum_of_centred(core: ModuleType, matrix: Matrix, public: Matrix, clip: float) -> NDArray[np.int64]:
    """As `PublicCentred` sums: around the public row's own probabilities."""
    return core.sum_around(matrix, core.sum_of_probabilities(public[np.newaxis]), clip)


@dataclass(frozen=True)
class Kind:
    """A row of the table: the query, what is measured, and the bounds in integers."""

    name: str
    query: Callable[[ModuleType, Matrix, float], NDArray[np.int64]]
    measure: Callable[[NDArray[np.int64]], int]
    one: Callable[[float], int]  # one record a prompt: a row comes or goes
    other: Callable[[float], int]  # grouped, and fixed size: a row turns into another
    clips: tuple[float, ...]


def norm_bound(clip: float) -> int:
    return math.floor(Fraction(clip) * GRID) ** 2


def logit_bound(clip: float) -> int:
    return 2 * math.floor(Fraction(clip) * LOGIT_GRID)


KINDS = (
    Kind(
        "probabilities",
        lambda core, m, _: core.sum_of_probabilities(m),
        squared_l2,
        lambda _: GRID**2,
        lambda _: 2 * GRID**2,
        (0.0,),
    ),
    Kind(
        "centred",
        lambda core, m, clip: sum_of_centred(core, m, centre_of(m), clip),
        squared_l2,
        lambda clip: min(norm_bound(clip), 2 * GRID**2),
        lambda clip: 4 * norm_bound(clip),
        CLIPS,
    ),
    Kind(
        "max-normalised",
        lambda core, m, _: core.sum_of_max_normalised(m),
        l_infinity,
        lambda _: GRID,
        lambda _: GRID,
        (0.0,),
    ),
    Kind(
        "clipped logits",
        lambda core, m, clip: core.sum_of_clipped_logits(m, clip),
        spread,
        logit_bound,
        lambda clip: 2 * logit_bound(clip),
        LOGIT_CLIPS,
    ),
    Kind(
        "clipped differences",
        lambda core, m, clip: core.sum_of_clipped_differences(m, centre_of(m), clip),
        spread,
        logit_bound,
        lambda clip: 2 * logit_bound(clip),
        LOGIT_CLIPS,
    ),
)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
cores = pytest.mark.parametrize("core", [_core, twins], ids=["compiled", "twin"])


def stacked(matrix: Matrix, *rows: Matrix) -> Matrix:
    return np.concatenate([matrix, *(row[np.newaxis] for row in rows)])


@kinds
@cores
@given(st.data(), neighbours())
@settings(max_examples=60, deadline=None)
def test_a_row_that_comes_or_goes(core: ModuleType, kind: Kind, data, case) -> None:
    matrix, row, _ = case
    clip = data.draw(st.sampled_from(kind.clips))
    change = kind.query(core, stacked(matrix, row), clip) - kind.query(core, matrix, clip)
    assert kind.measure(change) <= kind.one(clip)
    if kind.name == "max-normalised":
        assert change.min() >= 0
        assert change.max() in (0, GRID)


@kinds
@cores
@given(st.data(), neighbours())
@settings(max_examples=60, deadline=None)
def test_a_row_that_turns_into_another(core: ModuleType, kind: Kind, data, case) -> None:
    """Grouped prompts, of which either may be absent, and fixed-size draws, in which both are there."""
    matrix, row, other = case
    clip = data.draw(st.sampled_from(kind.clips))
    change = kind.query(core, stacked(matrix, row), clip) - kind.query(core, stacked(matrix, other), clip)
    assert kind.measure(change) <= kind.other(clip)


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
    row = np.array([bad], dtype=np.float32)
    assert not kind.query(core, row, kind.clips[-1]).any()


# ---- the bounds are reached -----------------------------------------------------------------------------

INF = math.inf
REACHED_BY_ONE = {
    "probabilities": ([0, -INF], 0.0),
    "max-normalised": ([0, -INF], 0.0),
    "clipped logits": ([0, -INF], 5.0),
    "clipped differences": ([99, -99], 5.0),
}
REACHED_BY_TWO = {
    "probabilities": ([0, -INF], [-INF, 0], 0.0),
    "max-normalised": ([0, -INF], [-INF, 0], 0.0),
    "clipped logits": ([0, -INF], [-INF, 0], 5.0),
    "clipped differences": ([99, -99], [-99, 99], 5.0),
}


@cores
@pytest.mark.parametrize("name", REACHED_BY_ONE)
def test_bound_is_reached_by_one(core: ModuleType, name: str) -> None:
    kind = next(k for k in KINDS if k.name == name)
    row, clip = REACHED_BY_ONE[name]
    assert kind.measure(kind.query(core, np.array([row], dtype=np.float32), clip)) >= 0.99**2 * kind.one(clip)


@cores
@pytest.mark.parametrize("name", REACHED_BY_TWO)
def test_bound_is_reached_by_two(core: ModuleType, name: str) -> None:
    kind = next(k for k in KINDS if k.name == name)
    *rows, clip = REACHED_BY_TWO[name]
    one, other = (kind.query(core, np.array([row], dtype=np.float32), clip) for row in rows)
    assert kind.measure(one - other) >= 0.99**2 * kind.other(clip)
    if name == "max-normalised":  # and not monotone
        assert (one - other).min() < 0 < (one - other).max()


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


# ---- values, sizes, arguments ---------------------------------------------------------------------------


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
