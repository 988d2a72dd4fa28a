"""A draw is charged before there is a permit for it."""

from typing import Any

import pytest

from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.reservation import Reservation, Terms
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend

BUDGET = PrivacyBudget(4.0, 1e-5)
COST = PrivacySpend(1.0, 1e-6)


@pytest.fixture
def account() -> Account:
    return Account.in_memory(BUDGET)


@pytest.fixture
def reservation(account: Account) -> Reservation:
    return Reservation.make(account, Terms(COST, None, 2, 1, 1.0, {}))


def test_what_drew_once_never_comes_back(account: Account, reservation: Reservation) -> None:
    reservation.draw()
    account.cancel(reservation.entry)
    assert account.spent == COST


def test_there_is_no_permit_where_the_charge_is_refused(account: Account, reservation: Reservation) -> None:
    account.cancel(reservation.entry)
    with pytest.raises(LedgerError):
        reservation.draw()
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_an_account_prints_what_is_spent_and_what_remains(account: Account, reservation: Reservation) -> None:
    reservation.draw()
    assert str(account) == "spent epsilon=1, delta=1e-06; epsilon=3, delta=9e-06 remain"
    assert repr(account) == "Account('in memory')"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), TimeoutError(), LedgerError("the answer was lost")], ids=repr
)
def test_an_interrupt_after_the_commit_of_a_reservation_spends_nothing(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    reserve = Account.reserve

    def interrupted(*arguments: Any) -> Reserved:
        reserve(*arguments)
        raise error

    with BudgetLedger.open(ledger_url) as ledger:
        accounts = [ledger.create("tickets", BUDGET), Account.in_memory(BUDGET)]
        with monkeypatch.context() as patch:
            patch.setattr(Account, "reserve", interrupted)
            for account in accounts:
                with pytest.raises(type(error)):
                    Reservation.make(account, Terms(COST, None, 2, 1, 1.0, {}))
        for account in accounts:
            assert account.spent == PrivacySpend(0.0, 0.0)
        assert [row["act"] for row in accounts[0].history()] == ["create", "reserve", "cancel"]
        assert accounts[0].verify().ok


@pytest.mark.parametrize("part", [-1, 1])
def test_no_part_that_there_is_not_gives_draws_back(part: int) -> None:
    account = Account.in_memory(BUDGET)
    [entry, _] = account.reserve(None, COST, {}, DrawCounts((3,), "a"))
    account.draw(entry, "a", 0)
    with pytest.raises(LedgerError, match="than were taken"):
        account.give_back(entry, "a", part, 0)


def test_a_report_after_the_end_is_no_permit(reservation: Reservation) -> None:
    reservation.delegate(0)
    reservation.hand_over()
    reservation.report(0, asked=False, charged=False)
    with pytest.raises(BudgetExceeded):
        reservation.draw()
