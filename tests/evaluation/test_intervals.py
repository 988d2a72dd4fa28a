"""The intervals of audits and evaluations on fixed inputs, to the last digits that mean anything."""

import math

import numpy as np
import pytest
from scipy import stats

from dpfewshot.audit.bounds import Rate
from dpfewshot.audit.influence import influence_finding
from dpfewshot.audit.membership import average_area
from dpfewshot.evaluation import Cell, difference, summarise

EXACTLY = {"rel": 1e-11, "abs": 1e-300}


@pytest.mark.parametrize(
    ("seen", "plays", "beta", "low", "high"),
    [
        (0, 1000, 8e-5, 0.0, 0.009389128199736557),
        (1, 1000, 8e-5, 8.000319697042097e-08, 0.011932548063013939),
        (37, 1000, 8e-5, 0.018468518982265997, 0.06484385298863493),
        (500, 1000, 0.025, 0.46854917297179194, 0.5314508270282081),
        (999, 1000, 1e-3, 0.9908045023646124, 0.9999989995001669),
        (1000, 1000, 8e-5, 0.9906108718002634, 1.0),
        (1, 100_000, 1e-9, 1.000000000499995e-14, 0.00023936982214649532),
        (3, 7, 0.1, 0.16963841739720056, 0.7213979514182869),
    ],
)
def test_clopper_pearson_bounds(seen: int, plays: int, beta: float, low: float, high: float) -> None:
    rate = Rate(seen, plays, beta)
    assert rate.low == pytest.approx(low, **EXACTLY)
    assert rate.high == pytest.approx(high, **EXACTLY)
    if seen:  # what the bounds mean
        assert stats.binom.sf(seen - 1, plays, rate.low) == pytest.approx(beta)
    if seen < plays:
        assert stats.binom.cdf(seen, plays, rate.high) == pytest.approx(beta)


@pytest.mark.parametrize(
    ("areas", "low", "high"),
    [
        ([0.2, 0.5, 0.9], 0.033193343929619715, 0.9743870855196538),
        ([0.98, 0.99, 1.0, 0.97], 0.942363181415644, 0.9962226712266721),
        ([1.0] * 20, 0.8315665290169147, 1.0),
        ([0.0] * 6, 0.0, 0.45925812643990044),
        ([0.5] * 9, 0.1729677566728482, 0.8270322433271518),
    ],
)
def test_intervals_of_areas(areas: list[float], low: float, high: float) -> None:
    _, *found = average_area(areas)
    assert found == [pytest.approx(low, **EXACTLY), pytest.approx(high, **EXACTLY)]


def test_the_interval_of_a_mean_influence() -> None:
    prompts = [[[1.0, 2.0], [0.5, 0.25]], [[3.0, 2.5], [0.1, 0.2]], [[0.1, 0.3], [1.5, 0.0]]]
    figure = influence_finding([np.array(each) for each in prompts]).figures[0]
    assert (figure.value, figure.low) == (pytest.approx(0.9541666666666667, **EXACTLY), 0.0)
    assert figure.high == pytest.approx(2.1657144835255857, **EXACTLY)
    apart = influence_finding([np.array(each) + 9 for each in prompts]).figures[0]
    assert apart.low == pytest.approx(9 + 2 * figure.value - figure.high, **EXACTLY)


ITEMS, RIGHT = 200, 150


def cell(right: int, repetition: int = 0) -> Cell:
    return Cell(
        task="mood",
        model="reader",
        writer="reader",
        condition="gaussian",
        epsilon_asked=1.0,
        epsilon=1.0,
        delta=1e-5,
        relation="zero-out",
        shots=4,
        repetition=repetition,
        items=ITEMS,
        outcomes="1" * right + "0" * (ITEMS - right),
        uncalibrated=None,
        population={"glad": 20},
    )


def test_the_bootstrap_of_one_repetition_is_binomial() -> None:
    """The resampled number of right items is Binomial(200, 0.75); its ends are known to about an item."""
    (found,) = summarise([cell(RIGHT)])
    low, high = stats.binom.ppf([0.025, 0.975], ITEMS, RIGHT / ITEMS) / ITEMS
    assert found.low == pytest.approx(low, abs=2 / ITEMS)
    assert found.high == pytest.approx(high, abs=2 / ITEMS)


def test_repetitions_that_differ_have_the_interval_of_a_t_variable() -> None:
    """Where repetitions differ much, items add little to it."""
    rights = (20, 60, 100, 140, 180)
    (found,) = summarise([cell(right, number) for number, right in enumerate(rights)])
    error = np.std([right / ITEMS for right in rights], ddof=1) / math.sqrt(len(rights))
    reach = stats.t.ppf(0.975, len(rights) - 1) * error
    assert found.low == pytest.approx(0.5 - reach, rel=0.25)
    assert found.high == pytest.approx(0.5 + reach, rel=0.1)


def test_intervals_are_the_same_every_time() -> None:
    cells = [cell(right, number) for number, right in enumerate((120, 150, 160))]
    assert summarise(cells) == summarise(cells)
    assert difference(cells, cells[:2]) == difference(cells, cells[:2])
