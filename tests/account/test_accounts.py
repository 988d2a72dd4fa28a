"""What every account must do, wherever it keeps its budget."""

import pytest

from dpfewshot.account.account import Account
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import DRAWS, LEASE, MakeAccount, charged, make_account, raced, spend

FIXTURES = (make_account,)


@pytest.fixture
def account(make_account: MakeAccount) -> Account:
    return make_account(PrivacyBudget(1.0, 1e-5))


def test_what_is_reserved_counts_as_spent_and_charging_changes_nothing(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(4.0, 1e-5))
    assert (account.budget, account.spent) == (PrivacyBudget(4.0, 1e-5), spend(0.0))
    assert account.remaining == spend(4.0, 1e-5)
    details = {"mechanism": "gaussian", "steps": 15, "sigma": 0.95}
    entry = account.reserve(None, spend(1.5, 1e-6), details, DRAWS).entry
    assert account.spent == spend(1.5, 1e-6)
    account.draw(entry, LEASE)
    assert account.spent == spend(1.5, 1e-6)
    assert account.remaining == spend(2.5, 9e-6)


def test_ten_tenths_fit_in_one_and_an_eleventh_does_not(account: Account) -> None:
    for _ in range(10):
        charged(account, None, spend(0.1, 1e-6))
    with pytest.raises(BudgetExceeded, match=r"epsilon=0\.1"):
        account.reserve(None, spend(0.1, 1e-6), {}, DRAWS)
    assert account.spent == spend(1.0, 1e-5)
    assert account.remaining == spend(0.0)


@pytest.mark.parametrize("cost", [spend(1.0 + 2e-12), spend(0.5, 1.1e-5), spend(1e9), spend(0.0, 20.0)])
def test_the_least_excess_is_refused_and_changes_nothing(account: Account, cost: PrivacySpend) -> None:
    with pytest.raises(BudgetExceeded):
        account.reserve(None, cost, {}, DRAWS)
    assert account.spent == spend(0.0)
    account.reserve(None, spend(1.0, 1e-5), {}, DRAWS)


def test_scopes_run_side_by_side_and_the_whole_adds_to_the_greatest(account: Account) -> None:
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
def test_a_second_partition_is_refused_and_says_what_to_do(account: Account, second: str) -> None:
    account.reserve("tickets: refund", spend(0.5), {}, DRAWS)
    with pytest.raises(LedgerError, match=r"an account of its own.*--sequential.*has tickets, this"):
        account.reserve(second, spend(0.1), {}, DRAWS)
    account.reserve("tickets: invoice", spend(0.5), {}, DRAWS)
    account.reserve(None, spend(0.1), {}, DRAWS)
    assert account.spent == spend(0.6)


def test_an_account_tells_the_partition_of_its_first_plan_over_a_stratum(account: Account) -> None:
    assert account.partition is None
    account.reserve(None, spend(0.1), {}, DRAWS)
    with pytest.raises(BudgetExceeded):
        account.reserve("tickets: refund", spend(2.0), {}, DRAWS)
    assert account.partition is None
    account.reserve("tickets: refund", spend(0.1), {}, DRAWS)
    assert account.partition == "tickets"


def test_in_a_sequential_account_any_partition_may_spend_and_everything_adds(
    make_account: MakeAccount,
) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5), parallel=False)
    account.reserve("tickets: refund", spend(0.25), {}, DRAWS)
    account.reserve("tickets: invoice", spend(0.25), {}, DRAWS)
    account.reserve("mood: glad", spend(0.25), {}, DRAWS)
    assert account.partition is None
    assert account.spent == spend(0.75)
    with pytest.raises(BudgetExceeded):
        account.reserve("tickets: complaint", spend(0.5), {}, DRAWS)


def test_what_is_settled_stays_spent_and_draws_no_more(account: Account) -> None:
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


def test_what_is_cancelled_comes_back_whole(account: Account) -> None:
    entry = account.reserve(None, spend(1.0, 1e-5), {}, DRAWS).entry
    account.cancel(entry)
    assert account.spent == spend(0.0)
    account.cancel(entry)
    assert account.reserve(None, spend(1.0, 1e-5), {}, DRAWS).entry != entry


def test_what_was_drawn_does_not_come_back(account: Account) -> None:
    entry = account.reserve(None, spend(1.0), {}, DRAWS).entry
    account.draw(entry, LEASE)
    account.draw(entry, LEASE)
    account.cancel(entry)
    assert account.spent == spend(1.0)


def test_a_cancelled_or_unknown_entry_cannot_be_charged(account: Account) -> None:
    entry = account.reserve(None, spend(0.5), {}, DRAWS).entry
    account.cancel(entry)
    for number, says in ((entry, "cancelled"), (entry + 1, "never made"), (0, "never made"), (2**70, None)):
        with pytest.raises(LedgerError, match=says):
            account.draw(number, LEASE)
    account.cancel(entry + 1)
    assert account.spent == spend(0.0)


def test_threads_race_for_the_last_of_a_budget(account: Account) -> None:
    assert raced(8, 3, account.reserve, None, spend(0.1), {}, DRAWS) == {None: 10, BudgetExceeded: 14}
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
        invoice = {"scope": "invoice", "plans_left": 7} | amount(0.5, 0.0) | {"remaining": amount(3.5, 1e-5)}
        refund = {"scope": "refund", "plans_left": 5} | amount(1.25, 1e-6) | {"remaining": amount(2.75, 9e-6)}
        assert again.summary() == {
            "dataset": "tickets",
            "budget": amount(4.0, 1e-5),
            "spent": amount(1.25, 1e-6),
            "entries": 2,
            "strata": [invoice, refund],
        }


def amount(epsilon: float, delta: float) -> dict[str, object]:
    return {"epsilon": epsilon, "delta": delta}
