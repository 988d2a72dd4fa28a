"""What every account must do, wherever it keeps its budget."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, LEASE, charged, entry_of, make_account, outcome, spend

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeAccount = Callable[..., Account]

FIXTURES = (make_account,)
ACTS = (("draw", LEASE), ("settle", LEASE), ("cancel",))


def test_a_new_account_has_spent_nothing(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(4.0, 1e-5))
    assert account.budget == PrivacyBudget(4.0, 1e-5)
    assert account.spent == spend(0.0)
    assert account.remaining == spend(4.0, 1e-5)


def test_what_is_reserved_counts_as_spent_and_charging_changes_nothing(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(4.0, 1e-5))
    entry = account.reserve(
        None, spend(1.5, 1e-6), {"mechanism": "gaussian", "steps": 15, "sigma": 0.95}, DRAWS
    ).entry
    assert account.spent == spend(1.5, 1e-6)
    account.draw(entry, LEASE)
    assert account.spent == spend(1.5, 1e-6)
    assert account.remaining == spend(2.5, 9e-6)


def test_ten_tenths_fit_in_one_and_an_eleventh_does_not(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    for _ in range(10):
        charged(account, None, spend(0.1, 1e-6))
    with pytest.raises(BudgetExceeded, match=r"epsilon=0\.1"):
        account.reserve(None, spend(0.1, 1e-6), {}, DRAWS)
    assert account.spent == spend(1.0, 1e-5)
    assert account.remaining == spend(0.0)


@pytest.mark.parametrize("cost", [spend(1.0 + 2e-12), spend(0.5, 1.1e-5), spend(1e9), spend(0.0, 20.0)])
def test_the_least_excess_is_refused_and_changes_nothing(
    make_account: MakeAccount, cost: PrivacySpend
) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    with pytest.raises(BudgetExceeded):
        account.reserve(None, cost, {}, DRAWS)
    assert account.spent == spend(0.0)
    account.reserve(None, spend(1.0, 1e-5), {}, DRAWS)


def test_scopes_run_side_by_side_and_the_whole_adds_to_the_greatest(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    account.reserve("refund", spend(0.5), {}, DRAWS)
    account.reserve("invoice", spend(0.6), {}, DRAWS)
    assert account.spent == spend(0.6)
    account.reserve(None, spend(0.3), {}, DRAWS)
    assert account.spent == spend(0.9)
    with pytest.raises(BudgetExceeded):
        account.reserve("invoice", spend(0.2), {}, DRAWS)
    account.reserve("refund", spend(0.2), {}, DRAWS)
    account.reserve("", spend(0.7), {}, DRAWS)  # an empty name is a part like any other
    assert account.spent == spend(1.0)
    assert account.remaining == spend(0.0, 1e-5)


@pytest.mark.parametrize("second", ["mood: glad", "refund"])
def test_a_second_partition_is_refused_and_says_what_to_do(make_account: MakeAccount, second: str) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    account.reserve("tickets: refund", spend(0.5), {}, DRAWS)
    with pytest.raises(LedgerError, match=r"an account of its own.*--sequential.*has tickets, this"):
        account.reserve(second, spend(0.1), {}, DRAWS)
    account.reserve("tickets: invoice", spend(0.5), {}, DRAWS)
    account.reserve(None, spend(0.1), {}, DRAWS)
    assert account.spent == spend(0.6)


def test_an_account_tells_the_partition_of_its_first_plan_over_a_stratum(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    assert account.partition is None
    account.reserve(None, spend(0.1), {}, DRAWS)
    with pytest.raises(BudgetExceeded):
        account.reserve("tickets: refund", spend(2.0), {}, DRAWS)
    assert account.partition is None
    account.reserve("tickets: refund", spend(0.1), {}, DRAWS)
    assert account.partition == "tickets"


def test_a_sequential_account_has_no_partition(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5), parallel=False)
    account.reserve("tickets: refund", spend(0.1), {}, DRAWS)
    assert account.partition is None


def test_in_a_sequential_account_any_partition_may_spend_and_everything_adds(
    make_account: MakeAccount,
) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5), parallel=False)
    account.reserve("tickets: refund", spend(0.25), {}, DRAWS)
    account.reserve("tickets: invoice", spend(0.25), {}, DRAWS)
    account.reserve("mood: glad", spend(0.25), {}, DRAWS)
    assert account.spent == spend(0.75)
    with pytest.raises(BudgetExceeded):
        account.reserve("tickets: complaint", spend(0.5), {}, DRAWS)


def test_what_is_settled_stays_spent_and_draws_no_more(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DRAWS).entry
    with pytest.raises(LedgerError):
        account.settle(entry, LEASE)  # it never drew: cancel is what it needs
    account.draw(entry, LEASE)
    account.settle(entry, LEASE)
    account.settle(entry, LEASE)
    account.cancel(entry)
    with pytest.raises(LedgerError, match="settled"):
        account.draw(entry, LEASE)
    assert account.spent == spend(0.5)


def test_what_is_cancelled_comes_back_whole(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(1.0, 1e-5), {}, DRAWS).entry
    account.cancel(entry)
    assert account.spent == spend(0.0)
    account.cancel(entry)
    account.reserve(None, spend(1.0, 1e-5), {}, DRAWS)


def test_what_was_drawn_does_not_come_back(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(1.0), {}, DRAWS).entry
    account.draw(entry, LEASE)
    account.draw(entry, LEASE)
    account.cancel(entry)
    assert account.spent == spend(1.0)


def test_a_cancelled_or_unknown_entry_cannot_be_charged(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DRAWS).entry
    account.cancel(entry)
    for number in (entry, entry + 1, 0, 2**70):
        with pytest.raises(LedgerError):
            account.draw(number, LEASE)
    account.cancel(entry + 1)
    assert account.spent == spend(0.0)


def test_entries_are_numbered_apart(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    cancelled = account.reserve(None, spend(0.5), {}, DRAWS).entry
    account.cancel(cancelled)
    assert account.reserve(None, spend(0.5), {}, DRAWS).entry != cancelled


def test_any_sequence_of_events_spends_what_memory_spends(make_account: MakeAccount) -> None:
    budget = PrivacyBudget(1.0, 1e-5)
    account, reference = make_account(budget), Account.in_memory(budget)
    pairs: list[tuple[int, int]] = []
    generator = random.Random(7)
    for _ in range(60):
        if pairs and generator.random() < 0.4:
            (act, *lease), pair = generator.choice(ACTS), generator.choice(pairs)
            ours, theirs = (
                outcome(getattr(each, act), entry, *lease)
                for each, entry in zip((account, reference), pair, strict=True)
            )
            assert ours[0] == theirs[0]
        else:
            scope = generator.choice([None, "a", "b"])
            cost = spend(generator.uniform(0, 0.3), generator.uniform(0, 3e-6))
            ours_, theirs_ = (outcome(entry_of, each, scope, cost) for each in (account, reference))
            assert ours_[0] == theirs_[0]
            if ours_[0] is None:
                pairs.append((ours_[1], theirs_[1]))
        assert account.spent == reference.spent
        assert account.remaining == reference.remaining


def test_threads_race_for_the_last_of_a_budget(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    outcomes: list[type[Exception] | None] = []

    def race() -> None:
        outcomes.extend(outcome(account.reserve, None, spend(0.1), {}, DRAWS)[0] for _ in range(3))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {None: 10, BudgetExceeded: 14}
    assert account.spent == spend(1.0)


def test_accounts_of_one_ledger_know_nothing_of_each_other(ledger_url: str) -> None:
    with BudgetLedger.open(ledger_url) as ledger:
        tickets = ledger.create("tickets", PrivacyBudget(1.0, 1e-5))
        notes = ledger.create("notes", PrivacyBudget(2.0, 1e-6))
        entry = tickets.reserve(None, spend(1.0), {}, DRAWS).entry
        assert notes.spent == spend(0.0)
        with pytest.raises(LedgerError):
            notes.draw(entry, LEASE)
        notes.cancel(entry)
        assert tickets.spent == spend(1.0)
        assert ledger.datasets() == ["notes", "tickets"]


def test_reopening_sees_the_same(ledger_url: str) -> None:
    with BudgetLedger.open(ledger_url) as ledger:
        account = ledger.create("tickets", PrivacyBudget(4.0, 1e-5), relation="add-remove", unit="customer")
        charged(account, "refund", spend(1.25, 1e-6), {"steps": 15})
        account.reserve("invoice", spend(0.5), {}, DRAWS)
        account.cancel(account.reserve(None, spend(1.0), {}, DRAWS).entry)
    with BudgetLedger.open(ledger_url) as ledger:
        again: Account = ledger.account("tickets")
        assert (again.dataset, again.relation, again.unit) == ("tickets", "add-remove", "customer")
        assert again.summary() == {
            "dataset": "tickets",
            "budget": {"epsilon": 4.0, "delta": 1e-5},
            "spent": {"epsilon": 1.25, "delta": 1e-6},
            "entries": 2,
            "strata": [
                {
                    "scope": "invoice",
                    "epsilon": 0.5,
                    "delta": 0.0,
                    "plans_left": 7,
                    "remaining": {"epsilon": 3.5, "delta": 1e-5},
                },
                {
                    "scope": "refund",
                    "epsilon": 1.25,
                    "delta": 1e-6,
                    "plans_left": 5,
                    "remaining": {"epsilon": 2.75, "delta": 9e-6},
                },
            ],
        }
