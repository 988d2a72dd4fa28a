"""Permits: used up token by token, and passed on no more often than they were used."""

import pytest

from dpfewshot.account.permit import Permit
from dpfewshot.errors import BudgetExceeded


def test_a_permit_serves_its_tokens_at_its_noise() -> None:
    permit = Permit(2, 0.5)
    for noise in (0.4, 0.6):
        with pytest.raises(BudgetExceeded, match="another noise"):
            permit.use(noise)
    permit.use(0.5)
    permit.use(0.5)
    with pytest.raises(BudgetExceeded, match="used up"):
        permit.use(0.5)


def test_what_was_used_is_passed_on_once() -> None:
    permit = Permit(2, 0.5)
    with pytest.raises(BudgetExceeded, match="passed on"):
        permit.pass_on()
    permit.use(0.5)
    passed = permit.pass_on()
    with pytest.raises(BudgetExceeded, match="another noise"):
        passed.use(0.4)
    passed.use(0.5)
    for spent in (passed, permit):
        with pytest.raises(BudgetExceeded):
            spent.use(0.5) if spent is passed else spent.pass_on()
