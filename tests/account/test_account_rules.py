"""What every account with a Rényi rule must do, wherever it keeps its budget."""

import random

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.accounting import PoissonGaussian, epsilon
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import (
    DRAWS,
    LEASE,
    MakeAccount,
    entry_of,
    make_account,
    outcome,
    raced,
    resume,
    spend,
)

FIXTURES = (make_account,)
BUDGET = PrivacyBudget(4.0, 1e-5)


def cost(noise: float) -> EventCost:
    event = PoissonGaussian(0.1, noise, 15)
    return EventCost(Amount.certified(epsilon(event, 1e-6).upper, 10**12), event)


WEEKLY = cost(3.2)
"""43 fit. By their sums two would: each takes a tenth of δ, of which sums have a quarter."""


@pytest.fixture
def account(make_account: MakeAccount) -> Account:
    return make_account(BUDGET, rule="renyi")


def weeks(account: Account, count: int) -> None:
    for _ in range(count):
        account.reserve(None, WEEKLY, {}, DRAWS)


def verified(account: Account) -> bool:
    return not account.durable or account.verify().ok


def test_many_small_plans_share_a_budget(account: Account) -> None:
    entries = 0
    while outcome(account.reserve, None, WEEKLY, {}, DRAWS)[0] is None:
        entries += 1
    assert entries == 43
    assert entries * WEEKLY.amount.epsilon > 6 * 4 * 10**12
    assert account.spent.epsilon <= 4.0
    assert account.spent.delta == 1e-5
    assert verified(account)
    with pytest.raises(BudgetExceeded, match=r"Rényi divergence of order 6 the plan needs 0\.04"):
        account.reserve(None, WEEKLY, {}, DRAWS)


def test_sums_alone_count_where_nothing_else_was_asked_for(make_account: MakeAccount) -> None:
    account = make_account(BUDGET)
    account.reserve(None, WEEKLY, {}, DRAWS)
    assert account.spent == WEEKLY.amount.as_spend()
    assert account.rule == "sum"


def test_strata_run_side_by_side_and_the_whole_adds(make_account: MakeAccount) -> None:
    one, many = make_account(BUDGET, rule="renyi"), Account.in_memory(BUDGET, rule="renyi")
    for _ in range(10):
        one.reserve("trec: a", WEEKLY, {}, DRAWS)
        one.reserve("trec: b", WEEKLY, {}, DRAWS)
        one.reserve(None, cost(5.0), {}, DRAWS)
        many.reserve(None, WEEKLY, {}, DRAWS)
        many.reserve(None, cost(5.0), {}, DRAWS)
    assert one.spent == many.spent
    with pytest.raises(LedgerError):
        one.reserve("mood: glad", WEEKLY, {}, DRAWS)
    assert verified(one)


@pytest.mark.parametrize("vast", [Amount(10**6, 9 * 10**17), Amount(9 * 10**17, 0)])
def test_sums_that_no_ledger_can_store_are_refused(account: Account, vast: Amount) -> None:
    """δ = .9 each, or ε = 900,000: by the divergence of the event thousands would fit."""
    nothing = EventCost(vast, PoissonGaussian(0.01, 20.0, 1))
    for _ in range(10):
        account.reserve("trec: a", nothing, {}, DRAWS)
    assert account.plans_left == 0
    for _ in range(2):
        with pytest.raises(BudgetExceeded, match="store"):
            account.reserve("trec: a", nothing, {}, DRAWS)
    account.reserve("trec: b", nothing, {}, DRAWS)
    assert account.spent.epsilon < 2
    assert verified(account)


def test_what_never_drew_gives_its_divergence_back(account: Account) -> None:
    weeks(account, 10)
    before = account.spent
    entry = account.reserve(None, cost(2.0), {}, DRAWS).entry
    assert account.spent.epsilon > before.epsilon
    account.cancel(entry)
    assert account.spent == before
    assert verified(account)


def test_a_resumed_plan_keeps_its_divergence(account: Account) -> None:
    weeks(account, 10)
    entry = account.reserve(None, WEEKLY, {"steps": 15}, DrawCounts(15, "first")).entry
    account.draw(entry, "first")
    before = account.spent
    [(resumed, draws)] = resume(account, entry, None, WEEKLY, {"steps": 15}, lease="second")
    assert (resumed.entry, draws.left) == (entry, 14)
    assert account.spent == before
    assert verified(account)


ACTS = (("draw", LEASE), ("settle", LEASE), ("cancel",))
COSTS = [WEEKLY, cost(1.5), cost(9.0), *(spend(share, share * 1e-5) for share in (0, 0.03, 0.1, 0.17, 0.29))]


@pytest.mark.parametrize("rule", ["sum", "renyi"])
def test_any_sequence_of_events_spends_what_memory_spends(make_account: MakeAccount, rule: str) -> None:
    both = [make(BUDGET, rule=rule) for make in (make_account, Account.in_memory)]
    generator, pairs = random.Random(11), []
    for _ in range(60):
        if pairs and generator.random() < 0.4:
            (act, *lease), pair = generator.choice(ACTS), generator.choice(pairs)
            calls = [(getattr(each, act), entry, *lease) for each, entry in zip(both, pair, strict=True)]
        else:
            scope, plan = generator.choice([None, "t: a", "t: b"]), generator.choice(COSTS)
            calls = [(entry_of, each, scope, plan) for each in both]
        (ours, mine), (theirs, other) = (outcome(*call) for call in calls)
        assert ours == theirs
        if mine is not None:
            pairs.append((mine, other))
        assert (both[0].spent, both[0].remaining) == (both[1].spent, both[1].remaining)
    assert verified(both[0])


def test_what_remains_fits_and_no_more(account: Account) -> None:
    weeks(account, 20)
    left = account.remaining
    more = PrivacySpend(left.epsilon + 1e-9, left.delta)
    with pytest.raises(BudgetExceeded):
        account.reserve(None, more, {}, DRAWS)
    account.reserve(None, left, {}, DRAWS)
    assert account.remaining.epsilon < 1e-9


def test_threads_race_for_the_last_of_a_budget(account: Account) -> None:
    weeks(account, 40)
    assert raced(6, 3, account.reserve, None, WEEKLY, {}, DRAWS) == {None: 3, BudgetExceeded: 15}
    assert verified(account)


def test_an_account_keeps_the_rule_that_it_was_created_with(ledger_url: str) -> None:
    with BudgetLedger.open(ledger_url) as ledger:
        ledger.create("tickets", BUDGET, rule="renyi").reserve(None, WEEKLY, {}, DRAWS)
    with BudgetLedger.open(ledger_url) as ledger:
        again = ledger.account("tickets")
        assert (again.rule, again.plans_left) == ("renyi", 42)
        assert ledger.create("tickets", BUDGET, rule="renyi").spent == WEEKLY.amount.as_spend()
        with pytest.raises(LedgerError, match="rule='renyi'"):
            ledger.create("tickets", BUDGET)
        [created, reserved] = again.history()
        assert created["details"]["renyi_order"] == 6  # type: ignore[index]
        assert reserved["renyi"] == pytest.approx(2.0995 / 43, rel=0.02)


def test_a_refusal_for_the_share_of_delta_says_so(account: Account) -> None:
    account.reserve(None, spend(0.5, 2e-6), {}, DRAWS)
    with pytest.raises(BudgetExceeded, match=r"a quarter of delta, 2\.5e-06"):
        account.reserve(None, spend(0.5, 2e-6), {}, DRAWS)
    with pytest.raises(BudgetExceeded) as refused:
        account.reserve(None, spend(5.0), {}, DRAWS)
    assert "quarter" not in str(refused.value)


def test_a_lowered_budget_leaves_nothing_and_a_raised_one_goes_on(ledger_url: str) -> None:
    with BudgetLedger.open(ledger_url) as ledger:
        account = ledger.create("tickets", BUDGET, rule="renyi")
        weeks(account, 20)
        for lowered in (PrivacyBudget(1.0, 1e-5), PrivacyBudget(4.0, 1e-18)):
            account.change_budget(lowered)
            assert account.remaining.epsilon == 0.0
            assert account.plans_left == 0
            with pytest.raises(BudgetExceeded):
                account.reserve(None, WEEKLY, {}, DRAWS)
        account.change_budget(BUDGET)
        assert account.plans_left == 23
        account.reserve(None, WEEKLY, {}, DRAWS)
        assert account.verify().ok
