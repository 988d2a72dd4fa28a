"""A plan's total is never below that of any of its strata."""

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.account.amounts import Amount
from dpfewshot.accounting import events
from dpfewshot.mechanisms import Gaussian
from dpfewshot.planning.plan import GenerationPlan, Stratum, StratumPlan, draws_at
from dpfewshot.planning.planner import plan_stratum
from dpfewshot.planning.settings import PlanSettings
from dpfewshot.values import PrivacyBudget, PrivacySpend, Relation
from tests.support import factory
from tests.support.scripts import Sentence

SETTINGS = PlanSettings(20, 1, 8, 1, 1, 100)
BUDGET = PrivacyBudget(4.0, 1e-5)


def plan_of_unequal_parts(*, reverse: bool) -> GenerationPlan:
    """Two parts of which neither has all the greater figures."""
    refund, delivery = factory.stratum_plan("refund", 100), factory.stratum_plan("delivery", 4000)
    nine, seven = replace(refund.draws, steps=9), replace(delivery.draws, steps=7)
    parts = [
        replace(refund, cost=Amount(10**12, 10**13), noise_multiplier=3.0, noise_on_mean=0.02, draws=nine),
        replace(
            delivery, cost=Amount(3 * 10**12, 10**11), noise_multiplier=0.5, noise_on_mean=0.4, draws=seven
        ),
    ]
    return factory.plan(*(parts[::-1] if reverse else parts), relation="add-remove")


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


def test_a_plan_is_printed_as_what_it_makes_and_costs() -> None:
    made = factory.plan(factory.stratum_plan("refund"), factory.stratum_plan("delivery"))
    told = "2 demonstrations by gaussian: epsilon=4.0000 at delta=1e-05, neighbours zero-out"
    assert str(made) == told
    assert (
        str(factory.plan(replace(factory.stratum_plan(), cost=None)))
        == "1 demonstration by gaussian, no guarantee"
    )


def test_a_plan_states_what_the_account_is_charged_when_labels_differ() -> None:
    """Populations a hundred times apart: their certified ε differ, and the account holds the greater one."""
    made = factory.synthesizer(
        Sentence(sure=0.999999), prompts_per_draw=40, population={"refund": 50, "delivery": 5000}
    )
    spends = {part.scope: part.spend for part in made.plan.strata}
    assert spends["refund"] != spends["delivery"]
    demonstrations = made.generate_all()
    assert {one.label: one.spent for one in demonstrations} == spends
    assert all(spend.epsilon <= made.plan.epsilon for spend in spends.values())
    assert made.spent == PrivacySpend(made.plan.epsilon, made.plan.delta)


RATES = st.floats(2.0**-30, 1.0)
NOISES = st.floats(2.0**-6, 2.0**20)
EVENTS = st.one_of(
    st.builds(events.PoissonGaussian, RATES, NOISES, st.integers(1, 9)),
    st.builds(events.PoissonBoundedRange, RATES, st.floats(1e-9, 200.0), st.integers(1, 9)),
    st.builds(events.ZeroConcentrated, st.floats(1e-9, 1e3), st.integers(1, 9)),
    st.builds(
        lambda q, sigma, cost, steps: events.PoissonProduct(
            q, (events.PoissonGaussian(1.0, sigma, 1), events.PoissonRandomizedResponse(1.0, cost, steps)), 3
        ),
        RATES,
        NOISES,
        st.floats(1e-9, 200.0),
        st.integers(1, 9),
    ),
)
NESTED = st.recursive(
    EVENTS,
    lambda inner: st.builds(
        lambda kind, several: kind(tuple(several)),
        st.sampled_from([events.Composition, events.Tightest]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)
SOME_SETTINGS = st.builds(
    PlanSettings,
    prompts_per_draw=st.integers(1, 9),
    records_per_prompt=st.integers(1, 3),
    max_tokens=st.integers(5, 9),
    shots_per_label=st.integers(1, 3),
    tokens_per_draw=st.integers(1, 5),
    record_token_cap=st.integers(1, 200),
    disjoint_parts=st.integers(1, 3),
    holdout=st.sampled_from([0.0, 0.2, 0.5]),
)


@st.composite
def plans(draw: st.DrawFn) -> GenerationPlan:
    """Plans of any σ, cost and event: as a planner makes them, but for the search of σ."""
    chosen = draw(SOME_SETTINGS)
    strata = []
    for label in draw(st.lists(st.text(), min_size=1, max_size=3, unique=True)):
        population = draw(st.integers(chosen.units_wanted, 10**9))
        stratum = Stratum(draw(st.sampled_from([label, None])), (label,), population)
        rate = Fraction(chosen.units_wanted, population)
        cost = draw(st.none() | st.builds(Amount, st.integers(0, 2**63 - 1), st.integers(0, 10**18)))
        strata.append(
            StratumPlan(
                **vars(stratum),
                sampling_rate=rate,
                draws=draws_at(chosen.within(population), stratum, rate),
                noise_multiplier=draw(NOISES),
                cost=cost,
                noise_on_mean=draw(st.none() | st.floats(0.0, 1e6)),
                event=None if cost is None else draw(NESTED),
            )
        )
    return GenerationPlan(
        draw(st.text()),
        draw(st.sampled_from([Relation.ADD_REMOVE, Relation.ZERO_OUT])),
        chosen,
        tuple(strata),
        prompt_tokens=draw(st.integers(0, 10**9)),
        estimated_seconds=draw(st.none() | st.floats(0.0, 1e9)),
    )


def event_of(told: dict[str, Any] | None) -> Any:
    """The event that a document names, by its class and fields."""
    if told is None:
        return None
    members = {name: each for name, each in told.items() if name != "event"}
    several = {name: tuple(map(event_of, each)) for name, each in members.items() if isinstance(each, list)}
    return getattr(events, told["event"])(**members | several)


@given(plans())
def test_a_plans_document_is_exact_to_the_last_bit(plan: GenerationPlan) -> None:
    parts = json.loads(json.dumps(plan.as_dict()))["parts"]
    for stratum, part in zip(plan.strata, parts, strict=True):
        exact = part["exact"]
        assert part["noise_multiplier"].hex() == stratum.noise_multiplier.hex()
        assert Fraction(*exact["sampling_rate"]) == stratum.sampling_rate
        assert exact["cost"] == (None if stratum.cost is None else list(stratum.cost))
        assert event_of(exact["event"]) == stratum.event


@given(plans())
def test_what_a_plan_displays_is_never_less_than_it_costs(plan: GenerationPlan) -> None:
    for stratum in plan.strata:
        if stratum.cost is not None:
            told = stratum.figures()
            assert Fraction(repr(told["epsilon"])) * 10**12 >= stratum.cost.epsilon
            assert Fraction(repr(told["delta"])) * 10**18 >= stratum.cost.delta
            assert plan.epsilon >= told["epsilon"]
            assert plan.delta >= told["delta"]


@pytest.mark.parametrize("settings", [{}, {"sampling": "fixed-size"}, {"disjoint_parts": 2}])
def test_a_planned_stratum_tells_its_event(settings: dict[str, Any]) -> None:
    chosen, refund = replace(SETTINGS, **settings), Stratum("refund", ("refund",), 896)
    stratum = plan_stratum(Gaussian(), chosen, PrivacyBudget(1.1, 1 / 896), refund)
    assert event_of(json.loads(json.dumps(stratum.as_dict()["exact"]))["event"]) == stratum.event
    without_privacy = plan_stratum(Gaussian(), chosen, None, refund).as_dict()["exact"]
    assert (without_privacy["cost"], without_privacy["event"]) == (None, None)


class OwnEvent:
    """An event of somebody else's mechanism."""

    steps = 1
    relations = frozenset({Relation.ZERO_OUT})


def test_an_event_that_is_not_of_the_vocabulary_is_left_out() -> None:
    plan = plan_of_unequal_parts(reverse=False)
    both = events.Composition((plan.strata[0].event, OwnEvent()))
    for event in (OwnEvent(), both):
        own = replace(plan, relation=Relation.ZERO_OUT, strata=(replace(plan.strata[0], event=event),))
        assert own.as_dict()["parts"][0]["exact"]["event"] is None
