"""Poisoned records plant no more than group privacy allows, even where the model obeys every record.

Every prompt that holds a poisoned record answers with the planted word. A bound is wrong once in 10⁹.
"""

import math

import pytest

from bench.poisoned import Obedient, planted, synthesizer
from dpfewshot.audit.bounds import Rate, most_probable
from dpfewshot.mechanisms import Gaussian
from tests.support.laws import IMPOSSIBLE
from tests.support.set_ups import LessNoise

PLAYS = 500
MECHANISM = Gaussian(top_k=100)
SMALL = {"units": 10, "prompts": 10, "tokens": 1}
"""Every record is in the only draw: that is where one record does most."""


def exceeds(poisoned, mechanism=MECHANISM, epsilon=1.0, **settings):
    """Whether the planted word comes out more often than the claim allows, beyond all chance."""
    settings = SMALL | settings
    before, after = (
        Rate(planted(synthesizer(epsilon, count, mechanism=mechanism, **settings), PLAYS), PLAYS, IMPOSSIBLE)
        for count in (0, poisoned)
    )
    return after.low > most_probable(before.high, epsilon, 1e-6, poisoned)


@pytest.mark.parametrize("poisoned", [1, 2, 3])
def test_poisoned_records_plant_no_more_than_the_bound(poisoned):
    assert not exceeds(poisoned)


def test_nor_do_they_in_a_demonstration_of_sampled_draws():
    assert not exceeds(2, units=40, tokens=4)


@pytest.mark.parametrize("share", [0.1, 0.01])
def test_control_with_too_little_noise_one_record_exceeds_it(share):
    assert exceeds(1, LessNoise(MECHANISM, share))


def test_control_the_model_obeys_one_record_where_there_is_no_noise():
    assert planted(synthesizer(None, 1, **SMALL), 20) == 20
    assert planted(synthesizer(None, 0, agree=True, **SMALL), 20) == 0
    assert Obedient().answer([100])[99] == 1.0


@pytest.mark.parametrize("before", [0.0, 1e-6, 0.02, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("units", [1, 2, 5])
def test_the_bound_is_the_one_of_so_many_steps_and_of_any_attackers_advantage(before, epsilon, units):
    delta = 1e-3
    steps = before
    for _ in range(units):
        steps = min(math.exp(epsilon) * steps + delta, 1 - (1 - steps - delta) * math.exp(-epsilon), 1.0)
    most = most_probable(before, epsilon, delta, units)
    assert before <= steps <= most + 1e-12 <= 1.0 + 1e-12
    if units == 1:
        assert most == pytest.approx(steps)
    growth = math.exp(units * epsilon)
    slack = delta * units if epsilon == 0 else delta * math.expm1(units * epsilon) / math.expm1(epsilon)
    assert most - before <= (growth - 1 + 2 * slack) / (growth + 1) + 1e-12
