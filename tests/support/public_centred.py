"""Small releases of the public-centred mechanism."""

import functools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import Draws, PublicCentred, RowChange

GRID, COUNT_GRID = _core.grid, _core.count_grid
TINY = 1e-6
WIDTH = 6
INF = math.inf
one_round = functools.partial(PublicCentred, clip=0.5, refinements=())
Matrix = NDArray[np.float32]
changes = pytest.mark.parametrize("row_change", RowChange, ids=lambda change: change.name.lower())


def draws(prompts: int = 10, row_change: RowChange = RowChange.ADDED, tokens_per_draw: int = 1) -> Draws:
    return Draws(0.1, 3, tokens_per_draw, prompts, row_change)


def logs(*probabilities: float) -> Matrix:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


PUBLIC = logs(0.5, 0.3, 0.2, 0, 0, 0)


def shifted(count: int, by: float) -> Matrix:
    """Rows that take `by` from the first token and give it to the second: by·√2 from the public one."""
    return np.tile(logs(0.5 - by, 0.3 + by, 0.2, 0, 0, 0), (count, 1))


def token(mechanism: PublicCentred, rows: Matrix, sigma: float, source=None, public=PUBLIC) -> int | None:
    return mechanism.start(draws(), sigma, source).token(rows, public, Permit(1, sigma))
