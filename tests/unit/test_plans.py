"""What a plan says of all its parts together: never less than any of them takes."""

from dataclasses import replace
from fractions import Fraction

import pytest

import dpfewshot as dpf
from dpfewshot.budget.amounts import Amount
from dpfewshot.mechanisms import Gaussian
from dpfewshot.planning.plan import GenerationPlan, Stratum
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import Settings
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.scripts import TASK, Sentence, tickets

SETTINGS = Settings(20, 1, 8, 1, 1, 100)
BUDGET = PrivacyBudget(4.0, 1e-5)


def plan_of_unequal_parts(*, reverse: bool) -> GenerationPlan:
    """Two parts of which neither has all the greater figures."""
    refund, delivery = (
        plan_stratum(Gaussian(), SETTINGS, BUDGET, Stratum(label, (label,), population))
        for label, population in (("refund", 100), ("delivery", 4000))
    )
    nine, seven = replace(refund.draws, steps=9), replace(delivery.draws, steps=7)
    parts = [
        replace(refund, cost=Amount(10**12, 10**13), noise_multiplier=3.0, noise_on_mean=0.02, draws=nine),
        replace(
            delivery, cost=Amount(3 * 10**12, 10**11), noise_multiplier=0.5, noise_on_mean=0.4, draws=seven
        ),
    ]
    return GenerationPlan(
        "gaussian", "add-remove", SETTINGS, tuple(parts[::-1] if reverse else parts), prompt_tokens=10
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_a_plan_states_the_greatest_of_its_parts(reverse: bool) -> None:
    plan = plan_of_unequal_parts(reverse=reverse)
    assert plan.sampling_rate == float(Fraction(20, 100))
    assert plan.steps == 9
    assert (plan.epsilon, plan.delta) == (3.0, 1e-5)
    assert (plan.noise_multiplier, plan.noise_on_mean) == (3.0, 0.4)
    told = plan.as_dict()
    assert {key: told[key] for key in ("epsilon", "delta", "noise_multiplier", "sampling_rate", "steps")} == {
        "epsilon": 3.0, "delta": 1e-5, "noise_multiplier": 3.0, "sampling_rate": 0.2, "steps": 9,
    }  # fmt: skip


def test_a_plan_states_what_the_account_is_charged_when_labels_differ() -> None:
    """Populations a hundred times apart: their certified ε differ, and the account holds the greater one."""
    made = dpf.Synthesizer(
        TASK, tickets(), Sentence(sure=0.999999), budget=BUDGET, mechanism=Gaussian(top_k=8),
        max_tokens=8, prompts_per_token=40, population={"refund": 50, "delivery": 5000},
    )  # fmt: skip
    spends = {part.scope: part.spend for part in made.plan.strata}
    assert spends["refund"] != spends["delivery"]
    demonstrations = made.generate_all()
    assert {one.label: one.spent for one in demonstrations} == spends
    assert all(spend.epsilon <= made.plan.epsilon for spend in spends.values())
    assert made.accountant.spent == PrivacySpend(made.plan.epsilon, made.plan.delta)
