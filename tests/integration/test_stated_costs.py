"""What is stated is never below what is drawn, whatever a plan or a float says."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.amounts import EPSILON_SCALE, Amount
from dpfewshot.account.permit import Permit
from dpfewshot.generation.telemetry import Observer
from dpfewshot.releases.labels import _mechanism
from tests.releases.test_choosing import choose, private_records
from tests.support import factory
from tests.support.processes import in_child
from tests.support.scripts import tickets


def fixed_size(records: Any) -> dpf.Synthesizer:
    return factory.synthesizer(records=records, sampling="fixed-size", prompts_per_draw=5)


def test_a_plan_for_another_population_is_refused() -> None:
    few, many = fixed_size(tickets()[:40]), fixed_size(tickets())
    assert few.plan.noise_multiplier > many.plan.noise_multiplier
    with pytest.raises(dpf.InvalidPlan, match="other draws"):
        replace(few.set_up, plan=many.plan)


def chosen(budget: dpf.PrivacyBudget, account: dpf.Account) -> object:
    return choose([[]], records=private_records(20), holdout=0, budget=budget, account=account).spent


def labelled(budget: dpf.PrivacyBudget, account: dpf.Account) -> object:
    return dpf.release_labels(
        tickets(), count=1, epsilon=budget.epsilon, delta=budget.delta, account=account
    ).spent


@pytest.mark.parametrize("release", [chosen, labelled])
@pytest.mark.parametrize("epsilon", [1 / 3, math.log(2), 0.1 + 0.2, 2 / 3, 1.1e-12])
def test_a_budget_pays_for_a_release_of_the_same(release: Any, epsilon: float) -> None:
    """Of a budget with more digits than an account has: what is stated is what is charged."""
    budget = dpf.PrivacyBudget(epsilon, 1e-6)
    account = dpf.Account.in_memory(budget)
    assert release(budget, account) == account.spent
    assert account.spent.epsilon <= epsilon


def test_a_choice_of_less_than_an_account_can_count_is_refused() -> None:
    account = dpf.Account.in_memory(dpf.PrivacyBudget(1.0, 1e-6))
    with pytest.raises(dpf.InvalidPlan, match="at least 1e-12"):
        chosen(dpf.PrivacyBudget(9e-13, 1e-6), account)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.1, 4.0])
def test_labels_are_drawn_at_no_more_than_they_are_charged(epsilon: float) -> None:
    """The binary value of 0.1 is above the decimal 0.1, which the account is charged."""
    for candidates in (None, ["a", "b"]):
        made = _mechanism(1, epsilon, 1e-6, candidates)
        assert made.rate <= Fraction(Amount.of_cost(made.cost).epsilon, EPSILON_SCALE)


class Closing(Observer):
    """Closes the synthesizer as soon as it hears of the reservation."""

    made: dpf.Synthesizer

    def reserved(self, *_: object) -> None:
        self.made.close()


def test_nothing_is_drawn_after_an_observer_closed_the_synthesizer() -> None:
    closing = Closing()
    made = closing.made = factory.synthesizer(observers=[closing])
    with pytest.raises(dpf.BudgetExceeded, match="closed"):
        made.generate("refund")
    assert made.spent == dpf.PrivacySpend(0.0, 0.0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_permit_of_the_parent_serves_no_child() -> None:
    permit = Permit(2, 1.0)
    permit.use(1.0)
    assert in_child(lambda: permit.use(1.0)).startswith("BudgetExceeded: ")
    permit.use(1.0)
