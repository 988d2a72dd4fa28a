"""A draw is charged before there is a permit for it."""

import pytest

from dpfewshot.budget.memory import MemoryAccount
from dpfewshot.budget.reservation import Accountant, Reservation
from dpfewshot.errors import LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend

COST = PrivacySpend(1.0, 1e-6)


@pytest.fixture
def account() -> MemoryAccount:
    return MemoryAccount(PrivacyBudget(4.0, 1e-5))


@pytest.fixture
def reservation(account: MemoryAccount) -> Reservation:
    return Accountant(account).reserve(
        COST, scope=None, draws=2, tokens_per_draw=1, noise_multiplier=1.0, details={}
    )


def test_what_drew_once_never_comes_back(account: MemoryAccount, reservation: Reservation) -> None:
    reservation.draw()
    account.cancel(reservation.entry)
    assert account.spent == COST


def test_there_is_no_permit_where_the_charge_is_refused(
    account: MemoryAccount, reservation: Reservation
) -> None:
    account.cancel(reservation.entry)
    with pytest.raises(LedgerError):
        reservation.draw()
    assert account.spent == PrivacySpend(0.0, 0.0)


def test_an_accountant_prints_what_is_spent_and_what_remains(
    account: MemoryAccount, reservation: Reservation
) -> None:
    reservation.draw()
    printed = str(Accountant(account))
    assert printed == "spent epsilon=1, delta=1e-06; epsilon=3, delta=9e-06 remain"
    assert repr(Accountant(account)) == f"Accountant({account!r})"
    assert repr(account) == "MemoryAccount(PrivacyBudget(epsilon=4.0, delta=1e-05))"
    assert "nothing is certified" in str(Accountant(None))
