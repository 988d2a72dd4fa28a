"""Disjoint parts, draws of fixed size and shared accounts, end to end with scripted language models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.accounting import FixedSizeGaussian, PoissonGaussian, Relation
from dpfewshot.mechanisms import MECHANISMS, by_name
from tests.support.factory import synthesizer
from tests.support.scripts import tickets

BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)


# ---- disjoint parts -------------------------------------------------------------------------------------


def test_many_demonstrations_from_disjoint_parts_cost_as_much_as_one() -> None:
    made = synthesizer(disjoint_parts=10, shots_per_label=20, tokens_per_draw=8)
    demonstrations = made.generate_all()
    assert len(demonstrations) == 40
    assert made.spent.epsilon <= 4.0
    assert all(one.certified and one.spent == made.plan.stratum_of("refund").spend for one in demonstrations)
    with pytest.raises(dpf.BudgetExceeded):
        made.generate("refund")


def test_a_part_pays_for_its_own_demonstrations_alone() -> None:
    whole = synthesizer(shots_per_label=20)
    parts = synthesizer(disjoint_parts=10, shots_per_label=20)
    assert whole.plan.stratum_of("refund").steps == 160
    assert parts.plan.stratum_of("refund").steps == 16
    assert parts.plan.sampling_rate == pytest.approx(10 * whole.plan.sampling_rate)


def test_parts_that_use_everybody_are_persistent_batches() -> None:
    made = synthesizer(disjoint_parts=10, tokens_per_draw=8)
    assert made.plan.sampling_rate == 1.0
    event = made.plan.stratum_of("refund").event
    assert isinstance(event, PoissonGaussian)
    assert (event.sampling_rate, event.steps) == (1.0, 1)


def test_a_record_never_serves_two_parts(drawn_from: list[Any]) -> None:
    made = synthesizer(disjoint_parts=10, shots_per_label=10, tokens_per_draw=8)
    for _ in range(10):
        made.generate("refund")
    used = [{unit[0].text for unit in units} for units in drawn_from]
    assert len(used) == 10
    assert sum(map(len, used)) == len(set().union(*used)) == 200


def test_too_many_parts_are_refused_with_what_would_fit() -> None:
    with pytest.raises(dpf.InvalidPlan, match=r"disjoint_parts = 220 .*prompts_per_draw=18 would fit"):
        synthesizer(disjoint_parts=11)
    with pytest.raises(dpf.InvalidPlan, match="disjoint_parts=200 would fit"):
        synthesizer(disjoint_parts=201, prompts_per_draw=1)


# ---- draws of fixed size --------------------------------------------------------------------------------


def test_fixed_size_says_replace_one_and_is_accounted_as_such() -> None:
    made = synthesizer(sampling="fixed-size")
    demonstration = made.generate("refund")
    assert demonstration.relation == "replace-one"
    assert demonstration.certified
    event = made.plan.stratum_of("refund").event
    assert isinstance(event, FixedSizeGaussian)
    assert event.relations == {Relation.REPLACE_ONE}
    assert (event.sample_size, event.population, event.steps) == (20, 200, 8)


@pytest.mark.parametrize(
    ("sampling", "wrong"),
    [
        ("poisson", Relation.REPLACE_ONE),
        ("fixed-size", Relation.ADD_REMOVE),
        ("fixed-size", Relation.ZERO_OUT),
    ],
)
def test_a_plan_and_its_events_are_for_the_same_neighbours(sampling: str, wrong: Relation) -> None:
    plan = synthesizer(sampling=sampling).plan
    with pytest.raises(dpf.InvalidPlan, match=f"the event covers .* neighbours, not {wrong}"):
        replace(plan, relation=wrong)


def test_the_same_pairs_cover_a_unit_that_comes_and_one_that_becomes_a_null() -> None:
    plan = synthesizer().plan
    assert plan.relation is Relation.ZERO_OUT
    assert replace(plan, relation=Relation.ADD_REMOVE).epsilon == plan.epsilon


def test_fixed_size_needs_noise_for_a_row_that_is_replaced() -> None:
    fixed, poisson = synthesizer(sampling="fixed-size").plan, synthesizer().plan
    assert fixed.noise_on_mean is not None
    assert poisson.noise_on_mean is not None
    assert fixed.noise_on_mean > 1.3 * poisson.noise_on_mean


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampling": "bernoulli"}, "poisson, fixed-size"),
        ({"sampling": "fixed-size", "disjoint_parts": 2}, "disjoint_parts"),
        ({"sampling": "fixed-size", "population": {"refund": 300, "delivery": 300}}, "counted n=200"),
    ],
)
def test_draws_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(dpf.InvalidPlan, match=says):
        synthesizer(**options)


# ---- every mechanism, with and without noise -------------------------------------------------------------


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_generates_and_without_privacy_says_what_the_prompts_say(name: str) -> None:
    mechanism = by_name(name, top_k=8)
    private = synthesizer(mechanism=mechanism).generate("refund")
    assert private.certified
    assert private.mechanism == name
    baseline = synthesizer(mechanism=mechanism, budget=dpf.NO_PRIVACY)
    assert baseline.plan.noise_on_mean == 0.0
    noiseless = baseline.generate("refund")
    assert not noiseless.certified
    assert noiseless.text == "my parcel is late"


# ---- shared accounts ------------------------------------------------------------------------------------


def test_two_synthesizers_share_an_account_in_memory() -> None:
    account = Account.in_memory(dpf.PrivacyBudget(epsilon=5.0, delta=1e-4))
    first = synthesizer(account=account)
    first.generate("refund")
    assert first.spent.epsilon > 3.9
    with pytest.raises(dpf.BudgetExceeded):
        synthesizer(account=account).generate("refund")
    synthesizer(account=account, budget=dpf.PrivacyBudget(epsilon=1.0, delta=1e-5)).generate("refund")
    assert account.spent.epsilon <= 5.0


def test_an_account_of_another_relation_is_refused(tmp_path: Path) -> None:
    account = dpf.BudgetLedger.open(f"sqlite:///{tmp_path}/budget.db").create(
        "tickets", BUDGET, relation="add-remove"
    )
    with pytest.raises(dpf.LedgerError, match="add-remove"):
        synthesizer(account=account)


def test_an_account_in_memory_is_shared_for_one_relation_and_one_unit() -> None:
    account = Account.in_memory(dpf.PrivacyBudget(epsilon=50.0, delta=1e-3))
    synthesizer(account=account).generate("refund")
    spent = account.spent
    customers = [dpf.Record(one.text, one.label, f"customer {i}") for i, one in enumerate(tickets())]
    for other in ({"sampling": "fixed-size"}, {"records": customers}):
        with pytest.raises(dpf.LedgerError, match="cannot be used"):
            synthesizer(account=account, **other)
    with pytest.raises(dpf.LedgerError, match="add-remove"):
        synthesizer(account=account, population={"refund": 300, "delivery": 300})
    assert account.spent == spent
