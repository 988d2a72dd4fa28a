"""Every row of the sensitivity table: its sum, its bounds, and rows that try it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpfewshot import _core
from tests.support import twins

GRID, LOGIT_GRID = _core.grid, _core.logit_grid
INF = math.inf
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


def certain(*tokens: int, width: int) -> Matrix:
    """Rows, each certain of its token."""
    return np.where(np.arange(width) == np.array(tokens)[:, np.newaxis], 0, -INF).astype(np.float32)
