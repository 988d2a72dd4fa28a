"""ICLInf's Tables 4 to 6: the printed settings of private prediction, and what ours need."""

import math
from fractions import Fraction
from functools import partial

import pytest

from bench import reproduce as paper
from dpfewshot.accounting import ZeroConcentrated, calibrate, epsilon
from dpfewshot.accounting.published import integer_order_epsilon
from dpfewshot.exact import rounded_up
from dpfewshot.mechanisms import RowChange
from dpfewshot.mechanisms.choice import solved_clip, solved_temperature


def of_noise(sigma: float) -> ZeroConcentrated:
    """All tokens at this noise multiplier."""
    return ZeroConcentrated(rounded_up(1 / (2 * Fraction(sigma) ** 2)), paper.ICLINF_STEPS)


@pytest.mark.parametrize("row", paper.ICLINF, ids=lambda row: f"table {row[0]}, ε={row[1]}")
def test_the_printed_figures_and_never_more_noise_than_they_need(row) -> None:
    _, target, clip, prompts, temperature, printed, digit = row
    event = partial(paper.iclinf_event, clip, prompts, temperature)
    theirs = paper.solve(partial(paper.iclinf_excess, event, target), rising=clip is None)
    assert math.ceil(theirs) == printed if digit == 1 else abs(theirs - printed) <= digit / 2

    sigma = calibrate(of_noise, epsilon=target, delta=paper.ICLINF_DELTA)
    assert epsilon(of_noise(sigma), paper.ICLINF_DELTA).upper <= target
    least = integer_order_epsilon(of_noise(sigma), paper.ICLINF_DELTA).epsilon
    assert least >= target * (1 - 1e-3)
    if clip is None:
        assert theirs <= solved_clip(sigma, temperature, prompts, RowChange.ADDED) < 1.1 * theirs
    elif temperature is None:
        assert theirs >= solved_temperature(sigma, clip, prompts, RowChange.ADDED) > theirs / 1.1
    else:
        assert theirs >= sigma * clip / temperature > theirs / 1.1
