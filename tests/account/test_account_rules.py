"""What every account with a Rényi rule must do, wherever it keeps its budget."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dpfewshot.account.account import Account, Claim
from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.accounting import PoissonGaussian, epsilon
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, entry_of, make_account, outcome, spend

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeAccount = Callable[..., Account]

FIXTURES = (make_account,)
BUDGET = PrivacyBudget(4.0, 1e-5)


def cost(noise: float) -> EventCost:
    event = PoissonGaussian(0.1, noise, 15)
    return EventCost(Amount.certified(epsilon(event, 1e-6).upper, 10**12), event)


WEEKLY = cost(3.2)
"""43 fit. By their sums two would: each takes a tenth of δ, of which sums have a quarter."""


def verified(account: Account) -> bool:
    return not account.durable or account.verify().ok


def test_many_small_plans_share_a_budget(make_account: MakeAccount) -> None:
    account = make_account(BUDGET, rule="renyi")
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
def test_sums_that_no_ledger_can_store_are_refused(make_account: MakeAccount, vast: Amount) -> None:
    """δ = .9 each, or ε = 900,000: by the divergence of the event thousands would fit."""
    account = make_account(BUDGET, rule="renyi")
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


def test_what_never_drew_gives_its_divergence_back(make_account: MakeAccount) -> None:
    account = make_account(BUDGET, rule="renyi")
    for _ in range(10):
        account.reserve(None, WEEKLY, {}, DRAWS)
    before = account.spent
    entry = account.reserve(None, cost(2.0), {}, DRAWS).entry
    assert account.spent.epsilon > before.epsilon
    account.cancel(entry)
    assert account.spent == before
    assert verified(account)


def test_a_resumed_plan_keeps_its_divergence(make_account: MakeAccount) -> None:
    account = make_account(BUDGET, rule="renyi")
    for _ in range(10):
        account.reserve(None, WEEKLY, {}, DRAWS)
    entry = account.reserve(None, WEEKLY, {"steps": 15}, DrawCounts(15, "first")).entry
    account.draw(entry, "first")
    before = account.spent
    words = entry, None, WEEKLY, {"steps": 15}
    [(resumed, draws)] = account.resume([Claim(*words, "second")])
    assert (resumed.entry, draws.left) == (entry, 14)
    assert account.spent == before
    assert verified(account)


def test_any_sequence_of_plans_is_admitted_as_memory_admits_it(make_account: MakeAccount) -> None:
    account, reference = make_account(BUDGET, rule="renyi"), Account.in_memory(BUDGET, rule="renyi")
    costs = [WEEKLY, cost(1.5), cost(9.0), spend(0.3, 5e-7), spend(0.05)]
    generator, pairs = random.Random(11), []
    for _ in range(40):
        scope, plan = generator.choice([None, "t: a", "t: b"]), generator.choice(costs)
        ours, theirs = (outcome(entry_of, each, scope, plan) for each in (account, reference))
        assert ours[0] == theirs[0]
        if ours[0] is None:
            pairs.append((ours[1], theirs[1]))
        if pairs and generator.random() < 0.2:
            mine, other = pairs.pop(generator.randrange(len(pairs)))
            account.cancel(mine)
            reference.cancel(other)
        assert (account.spent, account.remaining) == (reference.spent, reference.remaining)
    assert verified(account)


def test_what_remains_fits_and_no_more(make_account: MakeAccount) -> None:
    account = make_account(BUDGET, rule="renyi")
    for _ in range(20):
        account.reserve(None, WEEKLY, {}, DRAWS)
    left = account.remaining
    more = PrivacySpend(left.epsilon + 1e-9, left.delta)
    with pytest.raises(BudgetExceeded):
        account.reserve(None, more, {}, DRAWS)
    account.reserve(None, left, {}, DRAWS)
    assert account.remaining.epsilon < 1e-9


def test_threads_race_for_the_last_of_a_budget(make_account: MakeAccount) -> None:
    account = make_account(BUDGET, rule="renyi")
    for _ in range(40):
        account.reserve(None, WEEKLY, {}, DRAWS)
    outcomes: list[type[Exception] | None] = []

    def race() -> None:
        outcomes.extend(outcome(account.reserve, None, WEEKLY, {}, DRAWS)[0] for _ in range(3))

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {None: 3, BudgetExceeded: 15}
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


def test_a_refusal_for_the_share_of_delta_says_so(make_account: MakeAccount) -> None:
    account = make_account(BUDGET, rule="renyi")
    account.reserve(None, spend(0.5, 2e-6), {}, DRAWS)
    with pytest.raises(BudgetExceeded, match=r"a quarter of delta, 2\.5e-06"):
        account.reserve(None, spend(0.5, 2e-6), {}, DRAWS)
    with pytest.raises(BudgetExceeded) as refused:
        account.reserve(None, spend(5.0), {}, DRAWS)
    assert "quarter" not in str(refused.value)


def test_a_lowered_budget_leaves_nothing_and_a_raised_one_goes_on(ledger_url: str) -> None:
    with BudgetLedger.open(ledger_url) as ledger:
        account = ledger.create("tickets", BUDGET, rule="renyi")
        for _ in range(20):
            account.reserve(None, WEEKLY, {}, DRAWS)
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
