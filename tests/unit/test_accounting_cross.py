"""A few hundred random plans against two public accountants.

Our upper bound must not lie below dp-accounting's optimistic estimate, nor more than 0.5 % above its
pessimistic one, and must lie in prv-accountant's bracket (as our lower bound must not lie above either's
upper figure). dp-accounting's grid is 1e-3 of ε, within 5e-5 and 1e-2: near ε = 0 it is too coarse to say
much, and its pessimistic figure is then the larger; no slack is needed for that. Above ε = 100 its optimistic
estimate was seen above closed forms at q = 1 (its truncation), so there only the pessimistic one counts; the
closed forms are in test_accounting.py.

DPFEWSHOT_CROSS_CHECKS=1000 makes the run longer.
"""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Iterator

import pytest

from dpfewshot.accounting import PoissonGaussian, epsilon
from dpfewshot.accounting.reference.cross_check import require
from dpfewshot.errors import MissingExtra

COUNT = int(os.environ.get("DPFEWSHOT_CROSS_CHECKS", "200"))
ROUND_OFF = 1e-9  # of dp-accounting's and of the last digits of ours
LOOSEST = 1.005
TRUSTED = 100.0  # ε up to which dp-accounting's optimistic estimate is one
EVERY = 10  # of the plans, one goes to prv-accountant too

Plan = tuple[float, float, int, float]


@pytest.fixture(autouse=True)
def accountants() -> None:
    try:
        require()
    except MissingExtra:
        pytest.skip("the extra `accountants` is not installed")


def plans(count: int, seed: int) -> Iterator[Plan]:
    """Log-uniform q, σ, T and δ."""
    source = random.Random(seed)
    for _ in range(count):
        yield (
            10 ** source.uniform(-5, 0),
            math.exp(source.uniform(math.log(0.3), math.log(50))),
            round(10 ** source.uniform(0, 4)),
            10 ** source.uniform(-10, -1.5),
        )


def dp_accounting(plan: Plan, near: float, *, pessimistic: bool) -> float:
    q, sigma, steps, delta = plan
    with warnings.catch_warnings():  # its import and its settings warn
        warnings.simplefilter("ignore")
        from dp_accounting.pld import privacy_loss_distribution as pld

        loss = pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=min(max(1e-3 * near, 5e-5), 1e-2),
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return float(loss.self_compose(steps).get_epsilon_for_delta(delta))


@pytest.mark.parametrize(
    "plan", list(plans(COUNT, seed=7)), ids=lambda p: "q={:.2g} s={:.2g} T={} d={:.1g}".format(*p)
)
def test_dp_accounting_agrees(plan: Plan) -> None:
    q, sigma, steps, delta = plan
    found = epsilon(PoissonGaussian(q, sigma, steps), delta)
    pessimistic = dp_accounting(plan, found.upper, pessimistic=True)
    assert found.upper <= pessimistic * LOOSEST + ROUND_OFF
    assert found.lower <= pessimistic * (1 + ROUND_OFF) + ROUND_OFF
    if found.upper <= TRUSTED:
        optimistic = dp_accounting(plan, found.upper, pessimistic=False)
        assert found.upper >= optimistic * (1 - ROUND_OFF) - ROUND_OFF


def prv_bracket(plan: Plan, near: float) -> tuple[float, float] | None:
    """Its lower and upper figure, or None where it does not converge."""
    q, sigma, steps, delta = plan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

        try:
            accountant = PRVAccountant(
                PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=sigma),
                max_self_compositions=steps,
                eps_error=max(0.02 * near, 0.01),
                delta_error=1e-2 * delta,
            )
            lower, _, upper = accountant.compute_epsilon(delta, steps)
        except (ArithmeticError, RuntimeError, ValueError, MemoryError):
            return None
    return float(lower), float(upper)


@pytest.mark.parametrize(
    "plan", list(plans(COUNT, seed=7))[::EVERY], ids=lambda p: "q={:.2g} s={:.2g} T={} d={:.1g}".format(*p)
)
def test_prv_accountant_agrees(plan: Plan) -> None:
    q, sigma, steps, delta = plan
    found = epsilon(PoissonGaussian(q, sigma, steps), delta)
    if found.upper > TRUSTED:
        pytest.skip("prv-accountant needs minutes for such ε")
    bracket = prv_bracket(plan, found.upper)
    if bracket is None:
        pytest.skip("prv-accountant does not converge")
    assert bracket[0] - ROUND_OFF <= found.upper <= max(bracket[1], 0.0) + ROUND_OFF


@pytest.mark.parametrize("plan", [(0.1, 0.95, 15, 1e-3), (0.03, 0.6, 80, 3e-4), (0.5, 4.0, 60, 1e-6)])
def test_the_comparison_catches_one_step_in_ten_that_is_forgotten(plan: Plan) -> None:
    q, sigma, steps, delta = plan
    exact = epsilon(PoissonGaussian(q, sigma, steps), delta).upper
    forgetful = epsilon(PoissonGaussian(q, sigma, steps - math.ceil(steps / 10)), delta).upper
    optimistic = dp_accounting(plan, exact, pessimistic=False)
    assert forgetful < optimistic * (1 - ROUND_OFF) - ROUND_OFF <= exact
