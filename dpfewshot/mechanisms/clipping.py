"""The sensitivity of a sum of rows clipped to a norm, for rows of integers."""

from __future__ import annotations

import math
from fractions import Fraction

from dpfewshot.mechanisms.protocol import RowChange


def squared_clip_sensitivity(clip: float, row_change: RowChange, grid: int) -> Fraction:
    """Δ² of a sum of rows clipped to the norm C, exact: C², or (2C)² where a row is replaced.

    C counts as the clipped integers have it, floor(C · grid) steps: the float may be larger.

    Args:
        clip: C > 0.
        row_change: how one unit can change the rows.
        grid: grid steps in 1.
    """
    steps = math.floor(Fraction(clip) * grid)
    return Fraction(row_change.rows * steps, grid) ** 2
