"""What every account must do when draws are counted, wherever it keeps its budget."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.draws import DrawCounts
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget
from tests.support.accounts import make_account, outcome, spend

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeAccount = Callable[..., Account]

FIXTURES = (make_account,)


def test_an_account_counts_the_draws_of_each_part(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DrawCounts((2, 1), "first")).entry
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
    entry = account.reserve("a", spend(0.5), {"steps": 5}, DrawCounts((5, 5), "first")).entry
    account.draw(entry, "first", 0)
    words = entry, "a", spend(0.5), {"steps": 5}
    resumed, left = account.resume(*words, known=["older", "first"], draws=DrawCounts((5, 5), "second"))
    assert (resumed.entry, left) == (entry, (4, 4))
    resumed, left = account.resume(*words, known=["second"], draws=DrawCounts((2, 3), "third"))
    assert (resumed.entry, left) == (entry, (2, 2))
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
    entry = account.reserve(None, spend(0.5), {}, DrawCounts((5,), "first")).entry
    kept = account.resume(entry, None, spend(0.5), {}, known=["first"], draws=DrawCounts((0,), "first"))
    assert kept == (Reserved(entry, None), (0,))
    account.draw(entry, "first", 0)  # a lease that it has: nothing changed
    account.settle(entry)
    found = account.resume(entry, None, spend(0.5), {}, known=["first"], draws=DrawCounts((0,), "second"))
    assert (found[0].entry, found[1]) == (entry, (0,))
    with pytest.raises(LedgerError, match="start anew"):
        account.resume(entry, None, spend(0.5), {}, known=["first"], draws=DrawCounts((0,), "third"))
    with pytest.raises(LedgerError):
        account.draw(entry, "second", 0)


def test_an_entry_is_charged_by_the_draw_or_as_a_whole_and_not_both(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    counted = account.reserve(None, spend(0.1), {}, DrawCounts((1,), "lease")).entry
    whole = account.reserve(None, spend(0.1), {}).entry
    with pytest.raises(LedgerError, match=r"draw\(\)"):
        account.charge(counted)
    with pytest.raises(LedgerError, match=r"charge\(\)"):
        account.draw(whole, "lease", 0)
    with pytest.raises(LedgerError):
        account.draw(whole + 1, "lease", 0)


def test_threads_race_for_the_last_blocks(make_account: MakeAccount) -> None:
    account = make_account(PrivacyBudget(1.0, 1e-5))
    entry = account.reserve(None, spend(0.5), {}, DrawCounts((5,), "lease")).entry
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
        entry = (
            ledger.create("tickets", PrivacyBudget(1.0, 1e-5))
            .reserve(None, spend(0.5), {}, DrawCounts((5,), "first"))
            .entry
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
