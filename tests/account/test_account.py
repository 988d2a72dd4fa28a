import decimal
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfewshot.account.account import Account, other_kind
from dpfewshot.account.amounts import Amount
from dpfewshot.account.scopes import partition_of, total_over_scopes
from dpfewshot.errors import BudgetExceeded, InvalidPlan
from dpfewshot.report.promise import factor_text
from dpfewshot.values import (
    PrivacyBudget,
    PrivacySpend,
    delta_text,
    epsilon_text,
    percent_text,
    rounded_up_text,
)
from tests.support.accounts import DRAWS, charged, scope_name


def of(epsilon: int, delta: int = 0) -> Amount:
    return Amount(epsilon, delta)


TYPES = ["Location", "Number"]


def test_parts_compete_partitions_and_the_whole_add() -> None:
    costs = {
        scope_name("trec", TYPES, "Location"): of(3, 1),
        scope_name("trec", TYPES, "Number"): of(2, 5),
        scope_name("mood", ["Glad", "Sad"], "Glad"): of(4, 1),
        None: of(10, 10),
    }
    assert total_over_scopes(costs) == of(3 + 4 + 10, 5 + 1 + 10)


def test_a_label_with_a_colon_stays_in_its_partition() -> None:
    costs = {scope_name("a: b", ["x: y", "z"], "x: y"): of(3), scope_name("a: b", ["x: y", "z"], "z"): of(2)}
    assert total_over_scopes(costs) == of(3)


@pytest.mark.parametrize("part", [": x", "#{0}, part 01 of 4 by {0}: x", "#{0}, part 1 of 4 by {0}\n: x"])
def test_two_spellings_of_a_part_add(part: str) -> None:
    fingerprint = 64 * "0"
    plain = "x" if part == ": x" else "#{0}, part 1 of 4 by {0}: x"
    costs = {each.format(fingerprint): of(3) for each in (plain, part)}
    assert total_over_scopes(costs) == of(6)


@given(st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)), st.integers(0, 9)))
def test_the_total_bounds_what_any_unit_bears(costs: dict[tuple[int, int], int]) -> None:
    """A unit is in one part of each partition: it bears the sum over partitions of its parts' costs."""
    scopes = {scope_name(f"p{p}", "012", f"{i}"): of(cost) for (p, i), cost in costs.items()}
    for first, second in itertools.product(range(3), repeat=2):
        borne = costs.get((0, first), 0) + costs.get((1, second), 0)
        assert borne <= total_over_scopes(scopes).epsilon


@given(st.floats(1e-3, 1e4), st.floats(1e-15, 0.9999))
def test_what_is_printed_is_an_upper_bound_too(epsilon: float, delta: float) -> None:
    assert epsilon <= float(epsilon_text(epsilon)) <= epsilon + 1.01e-4
    assert delta <= float(delta_text(delta)) <= delta * 1.011


@pytest.mark.parametrize("cost", [(-1.0, 0.0), (0.0, -1e-9), (math.inf, 0.0), (0.0, math.nan)])
def test_a_cost_cannot_give_budget_back(cost: tuple[float, float]) -> None:
    with pytest.raises(InvalidPlan):
        Amount.of_cost(PrivacySpend(*cost))


HOSTILE = [
    decimal.Context(prec=2, rounding=decimal.ROUND_DOWN),
    decimal.Context(prec=2, rounding=decimal.ROUND_DOWN, traps=[]),
    decimal.Context(prec=1, rounding=decimal.ROUND_UP, Emin=-1, Emax=1, traps=[decimal.Inexact]),
]


@pytest.mark.parametrize("context", HOSTILE, ids=str)
def test_the_callers_decimal_context_changes_no_amount(context: decimal.Context) -> None:
    spends = [PrivacySpend(0.1999, 1.23456e-7), PrivacySpend(1 / 3, 1e-300), PrivacySpend(7.0 + 1e-12, 0.9)]
    budgets = [PrivacyBudget(spend.epsilon, spend.delta) for spend in spends]

    def all_of_them() -> list[object]:
        amounts = [Amount.of_cost(spend) for spend in spends]
        found: list[object] = [*amounts, *(Amount.of_budget(budget) for budget in budgets)]
        found += [Amount.of_budget(budget).as_target() for budget in budgets[::2]]
        found += [each for amount in amounts for each in (amount.as_spend(), amount.as_remainder())]
        for number in (0.12345, 0.5, 0.98765, 1e-17, 1.0):
            found += [text(number) for text in (epsilon_text, delta_text, percent_text)]
            found += [factor_text(1 + number), factor_text(1e5 * number), rounded_up_text(number, 4)]
        return found

    expected = all_of_them()
    with decimal.localcontext(context):
        assert all_of_them() == expected


def test_no_context_admits_more_than_the_budget() -> None:
    account = Account.in_memory(PrivacyBudget(8.0, 1e-5))
    with decimal.localcontext(HOSTILE[0]):
        for _ in range(40):  # 42 where a cost of 0.1999 was rounded down to 0.19
            account.reserve(None, PrivacySpend(0.1999, 0.0), {}, DRAWS)
        with pytest.raises(BudgetExceeded):
            account.reserve(None, PrivacySpend(0.1999, 0.0), {}, DRAWS)


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.5), np.int64(3), 3, Fraction(1, 10)])
def test_any_real_number_is_a_budget_and_a_cost(number: Any) -> None:
    small = number / 4 if number >= 1 else number
    budget, spend = PrivacyBudget(number, small), PrivacySpend(number, small)
    assert (type(budget.epsilon), type(budget.delta)) == (float, float)
    assert budget == PrivacyBudget(float(number), float(small))
    account = Account.in_memory(budget)
    charged(account, None, spend)
    assert account.spent == PrivacySpend(float(number), float(small))
    with pytest.raises(BudgetExceeded):
        account.reserve(None, PrivacySpend(1e-12, 0.0), {}, DRAWS)


@pytest.mark.parametrize(
    "number", ["4", True, np.bool_(True), None, 1j, decimal.Decimal(1), 10**400, np.ones(1)]
)
def test_what_is_no_number_is_refused_at_once(number: Any) -> None:
    for make in (
        lambda: PrivacyBudget(number, 1e-5),
        lambda: PrivacyBudget(1.0, number),
        lambda: Amount.of_cost(PrivacySpend(number, 0.0)),
    ):
        with pytest.raises(InvalidPlan, match=r"must be a number|too large"):
            make()


PARTITIONS = st.tuples(
    st.text(), st.frozensets(st.text(), min_size=1), st.sampled_from(["label", "mood", ""])
)


@given(PARTITIONS, PARTITIONS, st.text(min_size=1))
def test_scopes_are_of_one_partition_where_task_labels_and_column_are_the_same(
    one: tuple[str, frozenset[str], str], other: tuple[str, frozenset[str], str], part: str
) -> None:
    first, second = (scope_name(task, labels, part, column=column) for task, labels, column in (one, other))
    assert (partition_of(first) == partition_of(second)) == (one == other)
    assert partition_of(first) + ": " + part == first


ANY_AMOUNT = st.builds(Amount, st.integers(0, 10**19), st.integers(0, 10**18))
SOME_AMOUNT = st.builds(Amount, st.integers(1, 10**19), st.integers(1, 10**18 - 1))


def shown(float_: float, scale: int) -> Fraction:
    """What a float says in print and JSON."""
    return Fraction(repr(float_)) * scale


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_a_cost_is_rounded_up_and_a_budget_down_by_less_than_one(epsilon: float, delta: float) -> None:
    cost = Amount.of_cost(PrivacySpend(epsilon, delta))
    assert 0 <= cost.epsilon - shown(epsilon, 10**12) < 1
    assert 0 <= cost.delta - shown(delta, 10**18) < 1
    assert Amount.of_cost(cost) == cost
    if epsilon >= 1e-3 and 1e-15 <= delta < 1:
        budget = Amount.of_budget(PrivacyBudget(epsilon, delta))
        assert 0 <= shown(epsilon, 10**12) - budget.epsilon < 1
        assert 0 <= shown(delta, 10**18) - budget.delta < 1


@given(st.floats(0, 1e6), st.integers(0, 10**18))
def test_what_is_certified_is_rounded_up_to_the_last_bit(epsilon: float, delta: int) -> None:
    """The accountant's ε is the float's exact value, which its shortest decimal may lie below."""
    amount = Amount.certified(epsilon, delta)
    assert 0 <= amount.epsilon - Fraction(epsilon) * 10**12 < 1
    assert amount.delta == delta


@pytest.mark.parametrize("epsilon", [math.inf, math.nan])
def test_no_account_holds_what_has_no_bound(epsilon: float) -> None:
    with pytest.raises(InvalidPlan):
        Amount.certified(epsilon, 1)


@given(ANY_AMOUNT)
def test_what_is_shown_as_spent_is_never_less_and_what_remains_never_more(amount: Amount) -> None:
    spend, rest = amount.as_spend(), amount.as_remainder()
    assert shown(rest.epsilon, 10**12) <= amount.epsilon <= shown(spend.epsilon, 10**12)
    assert shown(rest.delta, 10**18) <= amount.delta <= shown(spend.delta, 10**18)
    assert spend.epsilon <= math.nextafter(rest.epsilon, math.inf)
    assert spend.delta <= math.nextafter(rest.delta, math.inf)


@given(st.builds(Amount, st.integers(0, 10**15), st.integers(0, 10**15)))
def test_floats_hold_amounts_of_fifteen_digits(amount: Amount) -> None:
    """ε up to 1000 and δ up to 0.001: what is shown reads back as the same amount."""
    assert Amount.of_cost(amount.as_spend()) == amount
    assert amount.as_spend() == amount.as_remainder()


@given(SOME_AMOUNT)
def test_what_the_accountant_certifies_for_the_target_fits_the_limit(limit: Amount) -> None:
    target = limit.as_target()
    assert Fraction(target.epsilon) * 10**12 <= limit.epsilon
    assert Fraction(target.delta) * 10**18 <= limit.delta
    assert Amount.certified(target.epsilon, limit.delta).fits(limit)
    assert target.epsilon == pytest.approx(limit.epsilon / 10**12, rel=1e-15)
    assert target.delta == pytest.approx(limit.delta / 10**18, rel=1e-15)


@given(st.floats(1e-3, 1e4), st.one_of(st.integers(2, 10**7).map(lambda n: 1 / n), st.floats(1e-15, 0.9999)))
def test_a_cost_that_was_calibrated_to_a_budget_fits_it(epsilon: float, delta: float) -> None:
    budget = PrivacyBudget(epsilon, delta)
    limit = Amount.of_budget(budget)
    cost = Amount.certified(limit.as_target().epsilon, limit.delta)
    account = Account.in_memory(budget)
    account.reserve(None, cost, {}, DRAWS)
    assert account.spent == cost.as_spend()
    assert account.spent.epsilon <= epsilon
    assert account.spent.delta <= delta


def test_a_fingerprint_is_the_whole_hash() -> None:
    """Of its first 48 bits, which it once was, two label sets with the same were found in two minutes."""
    fingerprint = partition_of(scope_name("t", ("l6168599", "other"), "other")).removeprefix("t#")
    assert len(fingerprint) == 64
    assert int(fingerprint, 16)


@pytest.mark.parametrize(
    ("kept", "asked", "advice"),
    [
        (({"zero-out"}, "customer"), ({"zero-out"}, None), "when you read the records: unit='customer'"),
        (({"zero-out"}, None), ({"zero-out"}, "customer"), "ledger create ... --unit customer"),
        (({"zero-out"}, None), ({"add-remove"}, None), "the population decides the relation"),
        (({"zero-out"}, ""), ({"zero-out"}, "customer"), "a column that nobody named"),
    ],
)
def test_an_account_of_another_kind_says_what_to_do(kept: Any, asked: Any, advice: str) -> None:
    message = other_kind("the account", *kept, *asked)
    assert advice in message
    everything = ("--unit customer", "read the records: unit=", "the population decides", "nobody named")
    assert sum(each in message for each in everything) == 1
