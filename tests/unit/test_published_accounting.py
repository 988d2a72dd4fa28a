"""AdaDPSyn's own accounting, solved for the noise: Tables 13 to 17 follow, but for one row."""

import math

import pytest

from bench import reproduce
from dpfewshot.accounting import FixedSizeGaussian
from dpfewshot.accounting.published import fixed_size_renyi_epsilon, fixed_size_renyi_multiplier
from dpfewshot.errors import InvalidPlan

CONSERVATIVE = ("TREC", 2, 1.95)


ROWS = list(reproduce.adadpsyn_settings())


def test_there_are_25_rows() -> None:
    assert len(ROWS) == 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1].name} {row[2]:g}")
def test_the_printed_noise_is_the_least_to_its_digits(row) -> None:
    """σ_eff of the printed σ₁ is enough, that of σ₁ - 0.01 is not; TREC at ε = 2 has noise to spare."""
    _, task, target, mean, *others = row
    needed = fixed_size_renyi_multiplier(
        task.sample, task.population, task.steps, epsilon=target, delta=task.delta
    )

    def effective(sigma: float) -> float:
        return reproduce.adadpsyn_event(task, *others, sigma).noise_multiplier

    assert needed <= effective(mean)
    if (task.name, target, mean) == CONSERVATIVE:
        assert effective(1.54) < needed <= effective(1.55)
    else:
        assert effective(mean - 0.01) < needed


@pytest.mark.parametrize(("m", "n", "steps"), [(40, 835, 15), (20, 30000, 100), (4, 50, 3)])
@pytest.mark.parametrize("target", [0.5, 1.0, 8.0])
def test_what_is_returned_is_enough_and_hardly_more(m: int, n: int, steps: int, target: float) -> None:
    def spent(sigma: float) -> float:
        return fixed_size_renyi_epsilon(FixedSizeGaussian(m, n, sigma, steps), 1e-4).epsilon

    found = fixed_size_renyi_multiplier(m, n, steps, epsilon=target, delta=1e-4)
    assert spent(found) <= target
    assert spent(found * (1 - 1e-8)) > target


def test_a_target_that_any_noise_meets_gets_the_least() -> None:
    assert fixed_size_renyi_multiplier(1, 10**6, 1, epsilon=1e6, delta=0.1) == 2.0**-6


@pytest.mark.parametrize(
    ("target", "delta"), [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (1.0, 0.0), (1.0, 1.0)]
)
def test_targets_out_of_range_are_refused(target: float, delta: float) -> None:
    with pytest.raises(InvalidPlan):
        fixed_size_renyi_multiplier(40, 835, 15, epsilon=target, delta=delta)


def test_a_target_below_what_integer_orders_can_say_is_refused() -> None:
    """At orders up to 200 the conversion itself costs more than this, however much noise there is."""
    with pytest.raises(InvalidPlan, match="no noise multiplier"):
        fixed_size_renyi_multiplier(40, 835, 15, epsilon=1e-3, delta=1e-5)
