"""Small steps of AdaDPSyn."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dpfewshot import _core
from dpfewshot.account.permit import Permit
from dpfewshot.mechanisms import AdaDPSyn, Draws, RowChange

GRID, COUNT_GRID = _core.grid, _core.count_grid
TINY = 1e-6
WIDTH = 8
Matrix = NDArray[np.float32]
changes = pytest.mark.parametrize("row_change", RowChange, ids=lambda change: change.name.lower())


def draws(prompts: int = 10, row_change: RowChange = RowChange.ADDED, tokens_per_draw: int = 1) -> Draws:
    return Draws(0.1, 3, tokens_per_draw, prompts, row_change)


def certain(*tokens: int) -> Matrix:
    return np.where(np.arange(WIDTH) == np.array(tokens)[:, np.newaxis], 0, -np.inf).astype(np.float32)


def around(token: int, count: int, spread: float = 0.1, seed: int = 0) -> Matrix:
    logits = np.random.default_rng(seed).normal(0, spread, (count, WIDTH)) + 3 * (np.arange(WIDTH) == token)
    return _core.log_softmax(logits.astype(np.float32))


PUBLIC = np.zeros(WIDTH, dtype=np.float32)


def token(
    mechanism: AdaDPSyn, rows: Matrix, sigma: float, plan: Draws | None = None, source=None
) -> int | None:
    return mechanism.start(plan or draws(), sigma, source).token(rows, PUBLIC, Permit(1, sigma))
