"""Private prediction's settings: ICLInf's Tables 4 to 6, and what any two settings say of the third."""

import math
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import reproduce as paper
from dpfewshot.accounting import epsilon
from dpfewshot.accounting.published import integer_order_epsilon
from dpfewshot.errors import InvalidPlan
from dpfewshot.mechanisms import RowChange
from dpfewshot.planning.solve import solve


@pytest.mark.parametrize("row", paper.ICLINF, ids=lambda row: f"table {row[0]}, ε={row[1]}")
def test_the_printed_figures_and_never_more_noise_than_they_need(row) -> None:
    _, target, clip, prompts, temperature, printed, digit = row
    event = partial(paper.iclinf_event, clip, prompts, temperature)
    theirs = paper.solve(partial(paper.iclinf_excess, event, target), rising=clip is None)
    assert math.ceil(theirs) == printed if digit == 1 else abs(theirs - printed) <= digit / 2

    found = solve(
        epsilon=target,
        delta=paper.ICLINF_DELTA,
        tokens=paper.ICLINF_STEPS,
        clip=clip,
        temperature=temperature,
        prompts=prompts,
    )
    assert epsilon(found.event, paper.ICLINF_DELTA).upper <= target
    assert integer_order_epsilon(found.event, paper.ICLINF_DELTA).epsilon >= target * (1 - 1e-3) or digit == 1
    if clip is None:
        assert theirs <= found.clip < 1.1 * theirs
    elif temperature is None:
        assert theirs >= found.temperature > theirs / 1.1
    else:
        assert math.ceil(theirs) >= found.prompts > theirs / 1.1


targets = st.tuples(st.floats(-1, 2).map(lambda e: 10**e), st.floats(-9, -2).map(lambda e: 10**e))
few = settings(max_examples=20, deadline=None)


@given(targets, st.integers(1, 5000), st.floats(0.5, 20), st.floats(0.2, 5), st.sampled_from(RowChange))
@few
def test_what_is_solved_for_meets_the_target_and_no_more(
    target: tuple[float, float], tokens: int, clip: float, temperature: float, row_change: RowChange
) -> None:
    goal = {"epsilon": target[0], "delta": target[1], "tokens": tokens, "row_change": row_change}
    by_prompts = solve(**goal, clip=clip, temperature=temperature)
    by_clip = solve(**goal, temperature=temperature, prompts=by_prompts.prompts)
    by_temperature = solve(**goal, clip=clip, prompts=by_prompts.prompts)
    for found in (by_prompts, by_clip, by_temperature):
        assert epsilon(found.event, target[1]).upper <= target[0]
        exponent = row_change.rows * Fraction(found.clip)
        exponent /= Fraction(found.temperature) * found.prompts
        assert exponent**2 / 2 <= Fraction(found.event.rho) <= exponent**2 / 2 * (1 + Fraction(1, 2**50))
        assert found.event.steps == tokens
    assert by_clip.clip >= clip or by_clip.clip == 1000
    assert by_temperature.temperature <= temperature
    for found in (by_clip, by_temperature):
        assert epsilon(found.event, target[1]).upper >= 0.999 * target[0] or found.clip == 1000
    if by_prompts.prompts > 1:  # one less is not enough
        fewer = solve(**goal, clip=clip, prompts=by_prompts.prompts - 1)
        assert fewer.temperature > temperature


def test_replaced_rows_need_twice_the_prompts() -> None:
    added, replaced = (
        solve(epsilon=5, delta=1e-5, tokens=2000, clip=10, temperature=2, row_change=change)
        for change in RowChange
    )
    assert added.prompts == 214
    assert 2 * added.prompts - 1 <= replaced.prompts <= 2 * added.prompts


@pytest.mark.parametrize(
    "given_settings",
    [
        {},
        {"clip": 10.0},
        {"clip": 10.0, "temperature": 2.0, "prompts": 50},
        {"clip": 0.0, "temperature": 2.0},
        {"clip": 1001.0, "temperature": 2.0},
        {"clip": 10.0, "temperature": 0.0},
        {"clip": 10.0, "temperature": math.nan},
        {"clip": 10.0, "prompts": 0},
        {"clip": 10.0, "temperature": 2.0, "tokens": 0},
        {"clip": 10.0, "temperature": 2.0, "epsilon": -1.0},
        {"clip": 10.0, "temperature": 2.0, "delta": 1.0},
    ],
)
def test_settings_that_do_not_say_one_thing_are_refused(given_settings) -> None:
    with pytest.raises(InvalidPlan):
        solve(**{"epsilon": 1.0, "delta": 1e-5, "tokens": 100} | given_settings)
