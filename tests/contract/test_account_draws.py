"""What every account must do when draws are counted, wherever it keeps its budget."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import dpfewshot as dpf
from dpfewshot.budget.account import Account
from dpfewshot.budget.draws import DrawCounts
from dpfewshot.budget.memory import MemoryAccount
from dpfewshot.errors import BudgetExceeded, DPFewShotError, LedgerError
from dpfewshot.ledger import BudgetLedger
from dpfewshot.values import PrivacyBudget
from tests.support import factory
from tests.support.accounts import make_account, outcome, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    MakeAccount = Callable[..., Account]

FIXTURES = (make_account,)


def test_an_account_counts_the_draws_of_each_part(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DrawCounts((2, 1), "first"))
    for part in (0, 1, 0):
        account.draw(entry, "first", part)
    for part in (0, 1, 2, -1):
        with pytest.raises(BudgetExceeded):
            account.draw(entry, "first", part)
    account.cancel(entry)
    assert account.spent == spend(0.5)
    account.settle(entry, "first")
    with pytest.raises(LedgerError, match="settled"):
        account.draw(entry, "first", 0)


def test_a_resume_replaces_the_lease_and_the_smaller_count_holds(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve("a", spend(0.5), {"steps": 5}, DrawCounts((5, 5), "first"))
    account.draw(entry, "first", 0)
    words = entry, "a", spend(0.5), {"steps": 5}
    assert account.resume(*words, known=["older", "first"], draws=DrawCounts((5, 5), "second")) == (
        entry,
        (4, 4),
    )
    assert account.resume(*words, known=["second"], draws=DrawCounts((2, 3), "third")) == (entry, (2, 2))
    for stale in ("first", "second", ""):
        with pytest.raises(LedgerError, match=f"entry {entry} was resumed by another run"):
            account.draw(entry, stale, 0)
    with pytest.raises(LedgerError, match="start anew"):
        account.resume(*words, known=["first", "second"], draws=DrawCounts((5, 5), "fourth"))
    account.cancel(entry)  # who resumes may have drawn: nothing comes back
    account.settle(entry, "second")  # nor does a stale run end what another goes on with
    account.draw(entry, "third", 1)
    assert account.spent == spend(0.5)


def test_a_resume_without_draws_fences_off_too(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DrawCounts((5,), "first"))
    kept = account.resume(entry, None, spend(0.5), {}, known=["first"], draws=DrawCounts((0,), "first"))
    assert kept == (entry, (0,))
    account.draw(entry, "first", 0)  # a lease that it has: nothing changed
    account.settle(entry)
    found = account.resume(entry, None, spend(0.5), {}, known=["first"], draws=DrawCounts((0,), "second"))
    assert found == (entry, (0,))
    with pytest.raises(LedgerError, match="start anew"):
        account.resume(entry, None, spend(0.5), {}, known=["first"], draws=DrawCounts((0,), "third"))
    with pytest.raises(LedgerError):
        account.draw(entry, "second", 0)


def test_an_entry_is_charged_by_the_draw_or_as_a_whole_and_not_both(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    counted = account.reserve(None, spend(0.1), {}, DrawCounts((1,), "lease"))
    whole = account.reserve(None, spend(0.1), {})
    with pytest.raises(LedgerError, match=r"draw\(\)"):
        account.charge(counted)
    with pytest.raises(LedgerError, match=r"charge\(\)"):
        account.draw(whole, "lease", 0)
    with pytest.raises(LedgerError):
        account.draw(whole + 1, "lease", 0)


def test_threads_race_for_the_last_blocks(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DrawCounts((5,), "lease"))
    outcomes: list[type[Exception] | None] = []

    def race() -> None:
        outcomes.extend(outcome(account.draw, entry, "lease", 0)[0] for _ in range(2))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {None: 5, BudgetExceeded: 11}


def test_one_of_the_runs_that_resume_at_once_continues(ledger_url: str) -> None:
    outcomes: list[type[Exception] | None] = []
    with BudgetLedger.open(ledger_url) as ledger:
        entry = ledger.create("tickets", PrivacyBudget(1.0, 1e-5)).reserve(
            None, spend(0.5), {}, DrawCounts((5,), "first")
        )

    def race(number: int) -> None:
        with BudgetLedger.open(ledger_url) as own:
            told = DrawCounts((5,), f"run {number}")
            outcomes.append(
                outcome(
                    own.account("tickets").resume, entry, None, spend(0.5), {}, known=["first"], draws=told
                )[0]
            )

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {None: 1, LedgerError: 5}


MEMBERS = [name for name in dir(Account) if not name.startswith("_")]


def wrapper_of(account: Account, members: Sequence[str]) -> object:
    """What a user may write: an object that has these members alone and passes them on."""
    passed_on = {name: property(lambda _, name=name: getattr(account, name)) for name in members}  # type: ignore[misc]
    return type("Wrapper", (), passed_on)()


def test_a_wrapper_with_the_members_of_the_protocol_counts_draws(ledger_url: str) -> None:
    with BudgetLedger.open(ledger_url) as ledger:
        inner = ledger.create("tickets", PrivacyBudget(8.0, 1e-3))
        with closing(made_on(wrapper_of(inner, MEMBERS))) as made:
            made.generate("refund")
        assert [row["act"] for row in inner.history()] == ["create", "reserve", "charge", "settle"]
        assert inner.verify().ok


@pytest.mark.parametrize("missing", ["draw", "resume", "durable"])
def test_a_wrapper_that_lacks_a_member_is_refused(missing: str) -> None:
    inner = MemoryAccount(PrivacyBudget(8.0, 1e-3))
    with pytest.raises(DPFewShotError):
        made_on(wrapper_of(inner, [name for name in MEMBERS if name != missing]))
    assert inner.spent == spend(0.0)


def made_on(account: object) -> dpf.Synthesizer:
    return factory.synthesizer(budget=PrivacyBudget(1.0, 1e-5), ledger=account, max_tokens=6)
