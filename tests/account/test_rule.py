"""The rule by which an account admits plans: certified against compositions that are computed otherwise."""

import copy
import math
import pickle
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.account.account import Account
from dpfewshot.account.amounts import EPSILON_SCALE, Amount, EventCost
from dpfewshot.account.rule import EMPTY, Rule, Standing, Tally, Totals
from dpfewshot.accounting import (
    Composition,
    Event,
    PoissonBoundedRange,
    PoissonGaussian,
    PoissonRandomizedResponse,
    ZeroConcentrated,
    epsilon,
)
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.runtime.redaction import redacted
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.accounting.test_other_accountants import dp_accounting
from tests.support.accounts import DRAWS, scope_name

BUDGET = PrivacyBudget(4.0, 1e-5)
LIMIT = Amount.of_budget(BUDGET)
RENYI = Rule.of("renyi", LIMIT)
PLAN_DELTA = 10**12
"""δ of a plan, 10⁻⁶."""


def standing(rule: Rule, sums: dict[str | None, Tally], limit: Amount = LIMIT) -> Standing:
    return Standing(rule, limit, Totals(dict(sums)), None)


def cost_of(event: Event, delta: int = PLAN_DELTA) -> EventCost:
    return EventCost(Amount.certified(epsilon(event, delta * 1e-18).upper, delta), event)


NIGHTLY = cost_of(PoissonGaussian(80 / 835, 8.53, 15))

EVENTS = [
    PoissonGaussian(0.1, 3.0, 15),
    PoissonGaussian(0.02, 1.2, 40),
    PoissonGaussian(1.0, 20.0, 10),
    PoissonRandomizedResponse(0.05, 0.5, 10),
    PoissonRandomizedResponse(1.0, 0.1, 1),
    PoissonBoundedRange(0.1, 0.6, 10),
    ZeroConcentrated(0.01, 1),
]
COSTS = [cost_of(event) for event in EVENTS]


def test_the_order_admits_more_than_its_neighbours_and_is_known() -> None:
    for budget, order in {(4.0, 1e-5): 6, (1.0, 1e-5): 19, (8.0, 1e-5): 4, (0.1, 1e-6): 178}.items():
        assert Rule.of("renyi", Amount.of_budget(PrivacyBudget(*budget))).order == order
    assert RENYI.order is not None
    rooms = [
        (4 - (math.log((a - 1) / a) - math.log(5e-6 * a) / (a - 1))) / a
        for a in range(RENYI.order - 1, RENYI.order + 2)
    ]
    assert rooms[1] == max(rooms)


@given(st.floats(0.1, 50), st.floats(1e-12, 1e-2), st.integers(0, 10**13))
def test_divergences_are_converted_by_the_formula_and_rounded_up(
    budget: float, delta: float, renyi: int
) -> None:
    limit = Amount.of_budget(PrivacyBudget(budget, delta))
    try:
        rule = Rule.of("renyi", limit)
    except InvalidPlan:
        return
    order = rule.order or 0
    share = limit.delta // 2 / 1e18
    conversion = math.log((order - 1) / order) - math.log(share * order) / (order - 1)
    exact = renyi / 1e12 + max(conversion, 0.0)
    spent = rule.spent(Tally.of(Amount(10**30, 0), renyi), limit).epsilon
    if renyi:
        assert exact - 1e-9 <= spent / EPSILON_SCALE <= exact + 2e-9


@pytest.mark.parametrize(
    ("budget", "rule"),
    [
        (BUDGET, "pld"),
        (PrivacyBudget(9e-13, 1e-5), "sum"),
        (PrivacyBudget(1e-5, 1e-5), "renyi"),
        (PrivacyBudget(4.0, 3e-18), "renyi"),
    ],
)
def test_a_rule_that_admits_nothing_is_refused(budget: PrivacyBudget, rule: str) -> None:
    with pytest.raises(InvalidPlan):
        Account.in_memory(budget, rule=rule)


@given(st.lists(st.tuples(st.integers(0, len(COSTS) - 1), st.integers(1, 60)), min_size=1, max_size=5))
@settings(max_examples=25)
def test_what_is_admitted_costs_at_most_what_is_certified(picks: list[tuple[int, int]]) -> None:
    """Numerical composition of the fixed list is tighter than any filter: no filter may certify less."""
    account, events = standing(RENYI, {}, LIMIT), []
    for index, wanted in picks:
        with suppress(BudgetExceeded):
            for _ in range(wanted):
                account.admit(None, RENYI.tally(COSTS[index]))
                events.append(EVENTS[index])
    spent = account.spent
    kinds = {event: events.count(event) for event in events}
    composed = Composition(
        tuple(type(event)(**(_fields(event) | {"steps": event.steps * kinds[event]})) for event in kinds)
    )
    assert spent.fits(LIMIT)
    assert epsilon(composed, 1e-5).lower <= spent.epsilon / EPSILON_SCALE


def _fields(event: Event) -> dict[str, float]:
    return {name: getattr(event, name) for name in type(event).__slots__}


def test_a_year_of_plans_fits_and_costs_what_another_library_says() -> None:
    entry, nights = RENYI.tally(NIGHTLY), 0
    tally = EMPTY
    while RENYI.fits(tally.plus(entry), LIMIT):
        tally, nights = tally.plus(entry), nights + 1
    assert nights == 365
    assert nights * entry.cost.epsilon > 15 * LIMIT.epsilon
    certified = RENYI.spent(tally, LIMIT).epsilon / EPSILON_SCALE
    true = dp_accounting((80 / 835, 8.53, 15 * nights, 1e-5), certified)  # at the account's δ
    assert 0.8 * certified < true < certified
    assert tally.renyi / EPSILON_SCALE < true  # the control: without the conversion it would certify less


def test_one_large_plan_fits_by_its_sum_and_the_smaller_figure_is_stated() -> None:
    account = Account.in_memory(BUDGET, rule="renyi")
    account.reserve(None, PrivacySpend(3.9, 2.5e-6), {}, DRAWS)
    assert account.spent == PrivacySpend(3.9, 2.5e-6)
    with pytest.raises(BudgetExceeded, match="no Rényi divergence"):
        account.reserve(None, PrivacySpend(0.2, 0.0), {}, DRAWS)
    account.reserve(None, PrivacySpend(0.1, 0.0), {}, DRAWS)
    assert account.spent == PrivacySpend(4.0, 2.5e-6)


@pytest.mark.parametrize(
    ("tally", "fits"),
    [
        (Tally.of(Amount(LIMIT.epsilon, LIMIT.delta // 4), None), True),
        (Tally.of(Amount(LIMIT.epsilon + 1, LIMIT.delta // 4), None), False),
        (Tally.of(Amount(LIMIT.epsilon, LIMIT.delta // 4 + 1), None), False),
        (Tally(Amount(10**20, 10**18), 2 * 10**12, Amount(0, LIMIT.delta // 4)), True),
        (Tally(Amount(10**20, 10**18), 2 * 10**12, Amount(0, LIMIT.delta // 4 + 1)), False),
        (Tally(Amount(10**20, 10**18), 2 * 10**12, Amount(10**11, 0)), False),
        (Tally(Amount(10**20, 10**18), 2099458921533, Amount(0, 0)), True),
        (Tally(Amount(10**20, 10**18), 2099458921534, Amount(0, 0)), False),
    ],
)
def test_each_half_of_the_rule_is_exact(tally: Tally, *, fits: bool) -> None:
    assert RENYI.fits(tally, LIMIT) == fits


def test_a_plan_without_an_event_counts_by_its_sum_within_the_rule_too() -> None:
    account = Account.in_memory(BUDGET, rule="renyi")
    for _ in range(100):
        account.reserve(None, NIGHTLY, {}, DRAWS)
    before = account.spent.epsilon
    account.reserve(None, PrivacySpend(0.5, 1e-6), {}, DRAWS)
    assert account.spent.epsilon == pytest.approx(before + 0.5)
    assert account.remaining.delta == pytest.approx(1.5e-6)


@given(st.floats(1e-3, 50), st.floats(1e-12, 0.999))
def test_nothing_is_spent_of_a_new_account_and_no_budget_admits_more_than_itself(
    budget: float, delta: float
) -> None:
    limit = Amount.of_budget(PrivacyBudget(budget, delta))
    try:
        rule = Rule.of("renyi", limit)
    except InvalidPlan:
        return
    assert rule.spent(EMPTY, limit).epsilon == 0
    assert standing(rule, {}, limit).left().fits(limit)
    assert not rule.fits(Tally.of(Amount(limit.epsilon + 1, 0), None), limit)


def test_a_cost_without_its_event_states_no_divergence() -> None:
    assert RENYI.tally(NIGHTLY.amount) == Tally.of(NIGHTLY.amount, None) != RENYI.tally(NIGHTLY)


def test_a_divergence_beyond_the_budget_is_left_out() -> None:
    entry = Tally.of(Amount(1, 1), LIMIT.epsilon)
    assert standing(RENYI, {}, LIMIT).admit(None, entry) == entry
    before = standing(RENYI, {None: Tally.of(Amount(1, 1), 1)}, LIMIT)
    assert before.admit(None, entry) == Tally.of(Amount(1, 1), None)


@given(
    plans=st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, len(COSTS) - 1)), max_size=30),
    stated=st.booleans(),
)
@settings(max_examples=25)
def test_the_total_over_scopes_bounds_what_any_unit_bears(
    plans: list[tuple[str | None, int]], *, stated: bool
) -> None:
    sums: dict[str | None, Tally] = {}
    for stratum, index in plans:
        scope = stratum and scope_name("trec", ["a", "b"], stratum)
        entry = RENYI.tally(COSTS[index] if stated else COSTS[index].amount)
        sums[scope] = sums.get(scope, EMPTY).plus(entry)
    total = Tally.over_scopes(sums)
    for stratum in ("a", "b"):
        scope = scope_name("trec", ["a", "b"], stratum)
        borne = sums.get(None, EMPTY).plus(sums.get(scope, EMPTY))
        assert borne.cost.fits(total.cost)
        assert borne.renyi <= total.renyi
        assert borne.rest.fits(total.rest)
        assert RENYI.fits(borne, LIMIT) or not RENYI.fits(total, LIMIT)


@pytest.mark.parametrize("rule", [RENYI, Rule()])
def test_plans_left_are_those_that_fit_one_after_another(rule: Rule) -> None:
    generator = random.Random(5)
    for _ in range(5):
        scopes = [None, "t: a", "t: b"]
        sums = {scope: rule.tally(generator.choice(COSTS)).times(generator.randrange(2)) for scope in scopes}
        last = generator.choice(scopes), rule.tally(generator.choice(COSTS))
        told, more = replace(standing(rule, sums), last=last).plans_left(last[0]), dict(sums)
        found = -1
        while found < 5000 and rule.fits(Tally.over_scopes(more), LIMIT):
            more[last[0]], found = more[last[0]].plus(last[1]), found + 1
        assert told == max(found, 0)


SCOPES = (None, "t: a", "t: b", "u: a")


@pytest.mark.parametrize("rule", [RENYI, Rule()])
def test_what_is_left_of_a_scope_is_the_most_that_still_fits(rule: Rule) -> None:
    """And the refusal says so, in words and numbers."""
    generator = random.Random(6)
    for _ in range(40):
        sums = {
            scope: rule.tally(generator.choice(COSTS)).times(generator.randrange(3)) for scope in SCOPES[:3]
        }
        for scope in SCOPES:
            left = standing(rule, sums).left(scope)
            too_much = Tally.of(Amount(left.epsilon + 1, 0), None)
            if rule.fits(Tally.over_scopes(sums), LIMIT):
                assert standing(rule, sums).admit(scope, Tally.of(left, None)).cost == left
            with pytest.raises(BudgetExceeded) as caught:
                standing(rule, sums).admit(scope, too_much)
            refusal, told = caught.value, left.as_remainder()
            assert refusal.remaining == (told.epsilon, told.delta)
            assert refusal.remaining_by_scope is not None
            assert refusal.remaining_by_scope.keys() == sums.keys()
            assert (refusal.asked or (0.0, 0.0))[0] > refusal.remaining[0]


def test_a_refusal_of_several_plans_counts_none_of_them_as_spent() -> None:
    account = Account.in_memory(BUDGET)
    cost = PrivacySpend(BUDGET.epsilon, BUDGET.delta)
    account.reserve("t: b", cost, {}, DRAWS)
    with pytest.raises(
        BudgetExceeded, match=r"over 'b' nothing\. Exhausted for this plan: 'b' \(nothing left\)$"
    ):
        account.check([("t: a", cost), ("t: b", cost)])
    with pytest.raises(BudgetExceeded, match="Exhausted for this plan: 'a'"):  # by themselves they do not fit
        account.check([("t: a", cost), ("t: a", cost)])


def test_a_refusal_names_strata_that_are_exhausted_and_those_that_are_not() -> None:
    account = Account.in_memory(BUDGET)
    account.reserve("t: a", PrivacySpend(3.99, 0.0), {}, DRAWS)
    account.reserve("t: b", PrivacySpend(2.0, 0.0), {}, DRAWS)
    with pytest.raises(BudgetExceeded) as caught:
        account.reserve("t: a", PrivacySpend(1.0, 0.0), {}, DRAWS)
    assert str(caught.value).endswith(
        "over 'a' epsilon=0.01, delta=1e-05. Exhausted for this plan: 'a' (epsilon=0.01, delta=1e-05 left). "
        "Not exhausted: 'b' (epsilon=2, delta=1e-05 left)"
    )
    pickled = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - its own
    for other in (copy.copy(caught.value), pickled, redacted(caught.value, None)):
        assert vars(other) == vars(caught.value)
    assert BudgetExceeded("no draw is left").remaining is None
