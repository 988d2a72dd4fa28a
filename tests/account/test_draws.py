"""A draw is charged before there is a permit for it, in every account; permits are used up token by token."""

import copy
import os
import pickle
import signal
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.account.account import Account, Reserved
from dpfewshot.account.draws import DrawCounts, RunKey, Terms
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import Reservation
from dpfewshot.errors import BudgetExceeded, InvalidPlan, LedgerError, RunTakenOver
from dpfewshot.values import PrivacyBudget, PrivacySpend
from tests.support.accounts import MakeAccount, make_account, raced, spend
from tests.support.processes import in_child

FIXTURES = (make_account,)
BUDGET = PrivacyBudget(4.0, 1e-5)
COST = PrivacySpend(0.5, 1e-6)
DRAWS = 8
KEY = RunKey("plan", "run", 0)
LINE = {"label": "refund"}
TERMS = Terms(COST, None, DRAWS, 1, 1.0, {}, key=KEY)


def resume(account: Account, terms: Terms, entry: int) -> Reservation:
    [one] = Reservation.resume(account, {entry: terms})
    return one


@pytest.fixture
def account(ledger_url: str) -> Account:
    return BudgetLedger.open(ledger_url).create("tickets", BUDGET)


def test_an_account_counts_draws(make_account: MakeAccount) -> None:
    account = make_account(BUDGET)
    entry = account.reserve(None, COST, {}, DrawCounts(2, "first")).entry
    for _ in range(2):
        account.draw(entry, "first")
    with pytest.raises(BudgetExceeded):
        account.draw(entry, "first")
    with pytest.raises(LedgerError, match="another run"):
        account.draw(entry, "second")
    account.cancel(entry)
    assert account.spent == COST
    account.settle(entry, "first")
    with pytest.raises(LedgerError, match="settled"):
        account.draw(entry, "first")


def test_a_charge_makes_no_draw_and_gives_nothing_back(make_account: MakeAccount) -> None:
    account = make_account(BUDGET)
    run = Reservation.make(account, TERMS)
    for _ in range(2):
        run.charge()
    with pytest.raises(LedgerError, match="another run"):
        account.charge(run.entry, "second")
    account.cancel(run.entry)
    run.draw()
    assert (run.draws_left, account.spent) == (DRAWS - 1, COST)
    unused = Reservation.make(account, replace(TERMS, key=replace(KEY, stratum=1)))
    unused.charge()
    unused.close()
    assert account.spent == spend(2 * COST.epsilon, 2 * COST.delta)
    with pytest.raises(BudgetExceeded):
        unused.charge()
    if account.durable:
        acts = [row["act"] for row in account.history()]
        assert acts == ["create", "reserve", "charge", "reserve", "charge", "settle"]
        assert account.verify().ok


def test_threads_race_for_the_last_draws(make_account: MakeAccount) -> None:
    account = make_account(BUDGET)
    entry = account.reserve(None, COST, {}, DrawCounts(5, "lease")).entry
    assert raced(8, 2, account.draw, entry, "lease") == {None: 5, BudgetExceeded: 11}


def test_progress_is_recorded_by_its_lease_alone_and_not_once_it_is_cancelled(account: Account) -> None:
    other = account.reserve(None, COST, {}, DrawCounts(8, "other")).entry
    account.cancel(other)
    third = account.reserve(
        None, COST, {}, DrawCounts(8, "third", key=replace(KEY, plan="another", run="another"))
    ).entry
    account.draw(third, "third", '{"released": []}')
    with pytest.raises(RunTakenOver, match="has released other lines"):
        account.record_progress(third, "third", '{"released": [{"text": "of no release"}]}')
    entry = account.reserve(None, COST, {}, DrawCounts(8, "first", key=KEY)).entry
    account.draw(entry, "first")
    account.record_progress(entry, "first", "mine")
    account.record_progress(entry, "second", "another's")
    [found] = account.run_of(KEY.plan)
    assert (found.draws.left, found.draws.progress) == (7, "mine")
    account.settle(entry, "first")
    account.record_progress(entry, "first", "late")  # which texts of a settled run stand may change
    account.record_progress(entry, "second", "another's")
    assert account.run_of(KEY.plan)[0].draws.progress == "late"
    with pytest.raises(LedgerError, match="cancelled"):
        account.record_progress(other, "other", "late")


@pytest.mark.parametrize("left", [-1, 1.5, True, "8", None])
def test_draws_are_whole_numbers(make_account: MakeAccount, left: Any) -> None:
    with pytest.raises(LedgerError, match="whole numbers"):
        make_account(BUDGET).reserve(None, COST, {}, DrawCounts(left, "lease"))


def test_there_is_no_permit_where_the_charge_is_refused(make_account: MakeAccount) -> None:
    account = make_account(BUDGET)
    run = Reservation.make(account, TERMS)
    account.cancel(run.entry)
    with pytest.raises(LedgerError):
        run.draw()
    assert account.spent == spend(0.0)


def test_an_account_prints_what_is_spent_and_what_remains() -> None:
    account = Account.in_memory(BUDGET)
    run = Reservation.make(account, TERMS)
    run.draw()
    account.cancel(run.entry)  # which gives nothing back
    assert str(account) == "spent epsilon=0.5, delta=1e-06; epsilon=3.5, delta=9e-06 remain"
    assert repr(account) == "Account('in memory')"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), TimeoutError(), LedgerError("the answer was lost")], ids=repr
)
def test_an_interrupt_after_the_commit_of_a_reservation_spends_nothing(
    make_account: MakeAccount, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    reserve, account = Account.reserve, make_account(BUDGET)

    def interrupted(*arguments: Any) -> Reserved:
        reserve(*arguments)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Account, "reserve", interrupted)
        with pytest.raises(type(error)):
            Reservation.make(account, TERMS)
    assert account.spent == spend(0.0)
    Reservation.make(account, TERMS)  # the run may begin anew
    if account.durable:
        assert [row["act"] for row in account.history()] == ["create", "reserve", "cancel", "reserve"]
        assert account.verify().ok


def test_a_killed_process_loses_the_draw_and_the_token_in_progress(account: Account) -> None:
    child = os.fork()
    if child == 0:
        run = Reservation.make(account, TERMS)
        tokens = run.unfinished.setdefault("refund", [])
        for number in range(6):
            run.draw()
            tokens.append(number)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    [entry] = account.run_of(KEY.plan)
    later = resume(account, TERMS, entry.number)
    assert (later.draws_left, later.unfinished) == (2, {"refund": [0, 1, 2, 3, 4]})


@pytest.mark.parametrize("drew", [True, False])
def test_a_child_leaves_a_reservation_to_its_parent(account: Account, drew: bool) -> None:
    run = Reservation.make(account, TERMS)
    if drew:
        run.draw()

    def inherited() -> None:
        for call in (run.draw, lambda: run.release(LINE)):
            with pytest.raises(BudgetExceeded, match="reserved by the parent process"):
                call()
        run.hand_over()
        run.close()

    assert in_child(inherited) == "None"
    for _ in range(DRAWS - drew):
        run.draw()
    with pytest.raises(BudgetExceeded):
        run.draw()
    assert account.verify().ok


def test_a_resume_fences_off_whoever_held_the_entry(account: Account) -> None:
    run = Reservation.make(account, TERMS)
    run.draw()
    later = resume(account, TERMS, run.entry)
    assert (later.draws_left, later.identifier) == (7, run.identifier)
    with pytest.raises(LedgerError, match="draws no more"):
        run.draw()
    with pytest.raises(LedgerError, match="draws no more"):
        run.release(LINE)
    run.close()  # changes nothing: the entry is another run's
    later.draw()
    assert account.verify().ok


def test_whose_lease_was_replaced_records_nothing(account: Account) -> None:
    run = Reservation.make(account, TERMS)
    run.draw()
    run.unfinished["refund"] = [1]
    resume(account, TERMS, run.entry)
    run.hand_over()
    later = resume(account, TERMS, run.entry)
    assert (later.draws_left, later.unfinished) == (7, {})


def test_a_settled_entry_says_what_was_released_and_draws_no_more(account: Account) -> None:
    run = Reservation.make(account, TERMS)
    run.draw()
    run.release(LINE)
    run.close()
    later = resume(account, TERMS, run.entry)
    assert (later.draws_left, later.released) == (0, [LINE])
    with pytest.raises(BudgetExceeded):
        later.draw()
    assert [row["act"] for row in account.history()][-1] == "settle"  # nobody's lease was replaced


def test_of_two_that_resume_a_settled_entry_the_later_one_overwrites_nothing(account: Account) -> None:
    run = Reservation.make(account, TERMS)
    for label in ("refund", "delivery"):
        run.draw()
        run.unfinished[label] = [1]
    run.close()
    first, second = (resume(account, TERMS, run.entry) for _ in range(2))
    first.release(LINE)
    with pytest.raises(RunTakenOver):
        second.release({"label": "delivery"})
    assert account.verify().ok
    third = resume(account, TERMS, run.entry)
    assert (third.released, third.unfinished) == ([LINE], {"delivery": [1]})
    third.release({"label": "delivery"})
    assert account.verify().ok


def test_an_entry_is_resumed_for_its_own_plan_alone(account: Account) -> None:
    run = Reservation.make(account, TERMS)
    for other in ((PrivacySpend(0.4, 1e-6), None, {}), (COST, "a", {}), (COST, None, {"q": 2})):
        cost, scope, details = other
        with pytest.raises(LedgerError, match="another plan"):
            resume(account, Terms(cost, scope, DRAWS, 1, 1.0, details), run.entry)
    run.close()
    with pytest.raises(LedgerError, match="cancelled: it cannot be resumed"):
        resume(account, TERMS, run.entry)
    with pytest.raises(LedgerError, match="never made"):
        resume(account, TERMS, 99)


def test_one_stratum_of_a_run_is_reserved_once(account: Account) -> None:
    Reservation.make(account, TERMS)
    with pytest.raises(LedgerError):
        Reservation.make(account, TERMS)
    assert account.spent == COST


def test_the_newest_run_of_a_plan_is_found(account: Account) -> None:
    for run, stratum in (("a", 0), ("b", 0), ("b", 1), ("c", 0)):
        terms = Terms(PrivacySpend(0.1, 1e-7), None, 1, 1, 1.0, {}, key=RunKey("plan", run, stratum))
        made = Reservation.make(account, terms)
        if run == "c":
            made.close()  # cancelled: as if it had never been
    found = [entry.draws.key for entry in account.run_of("plan") if entry.draws]
    assert found == [RunKey("plan", "b", 0), RunKey("plan", "b", 1)]
    assert [entry.number for entry in account.run_of("plan", "a")] == [1]
    assert account.run_of("another plan") == []
    with pytest.raises(LedgerError, match="in memory ends with its process"):
        Account.in_memory(BUDGET).run_of("plan")


def test_a_release_whose_answer_is_lost_is_recorded_once(account: Account) -> None:
    unsure = Unsure(account._store)  # noqa: SLF001 - of another class
    run = Reservation.make(unsure, TERMS)
    run.draw()
    run.unfinished["refund"], unsure.loses = [1], True
    with pytest.raises(LedgerError, match="lost"):
        run.release(LINE)
    assert run.unfinished == {"refund": [1]}
    run.release(LINE)
    assert run.unfinished == {}
    assert [row["act"] for row in account.history()].count("release") == 1


def test_one_of_the_runs_that_resume_at_once_continues(ledger_url: str, account: Account) -> None:
    run, barrier = Reservation.make(account, TERMS), threading.Barrier(6)

    def race() -> None:
        with BudgetLedger.open(ledger_url) as own:
            mine = resume(own.account("tickets"), TERMS, run.entry)
            barrier.wait(30)
            mine.draw()

    assert raced(6, 1, race)[None] == 1


class Unsure(Account):
    """Loses the answer to its next change: it was made, and the caller does not know."""

    loses = False

    def draw(self, *arguments: Any) -> None:
        self._answered(super().draw(*arguments))  # type: ignore[func-returns-value]

    def record_progress(self, *arguments: Any, **named: Any) -> None:
        self._answered(super().record_progress(*arguments, **named))  # type: ignore[func-returns-value]

    def record_release(self, *arguments: Any) -> None:
        self._answered(super().record_release(*arguments))  # type: ignore[func-returns-value]

    def _answered(self, answer: Any) -> Any:
        lost, self.loses = self.loses, False
        if lost:
            raise LedgerError("the answer was lost")
        return answer


steps = st.lists(
    st.sampled_from(["draw", "draw of the first run", "hand over", "killed", "lost answer"]), max_size=14
)


@settings(max_examples=15)
@given(steps=steps)
def test_no_more_draws_are_made_than_were_reserved(steps: list[str]) -> None:
    """Runs on one entry, one after another, and the first of them, which nobody told."""
    with tempfile.TemporaryDirectory() as folder, BudgetLedger.open(f"sqlite:///{folder}/a.db") as ledger:
        stored = ledger.create("tickets", BUDGET)
        account = Unsure(stored._store)  # noqa: SLF001 - of another class
        runs, made, surely = [Reservation.make(account, TERMS)], 0, True
        for name in [*steps, *["draw"] * DRAWS]:
            match name:
                case "lost answer":
                    account.loses, surely = True, False
                case "hand over" | "killed":
                    if name == "hand over":
                        runs[-1].hand_over()
                    with suppress(InvalidPlan):
                        runs.append(resume(account, TERMS, runs[0].entry))
                case _:
                    with suppress(BudgetExceeded, LedgerError):
                        runs[-1 if name == "draw" else 0].draw()
                        made += 1
            assert made <= DRAWS
        if surely and len(runs) == 1:
            assert made == DRAWS  # nothing is lost
        assert stored.verify().problems == ()


def test_a_permit_serves_its_tokens_at_its_noise() -> None:
    permit = Permit(2, 0.5)
    for noise in (0.4, 0.6):
        with pytest.raises(BudgetExceeded, match="another noise"):
            permit.use(noise)
    permit.use(0.5)
    permit.use(0.5)
    with pytest.raises(BudgetExceeded, match="used up"):
        permit.use(0.5)


def test_a_permit_is_for_its_process_whatever_its_number_and_has_no_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Containers give out the number 1 many times."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    permit = Permit(1, 0.5)
    assert in_child(lambda: permit.use(0.5)).startswith("BudgetExceeded")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(BudgetExceeded, match="cannot be copied"):
            copied(permit)
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
    for again in (partial(passed.use, 0.5), passed.pass_on, permit.pass_on):
        with pytest.raises(BudgetExceeded):
            again()


def test_a_new_line_takes_the_place_and_the_turn_of_the_first_of_its_label_that_is_replaced() -> None:
    made = Reservation.make(None, TERMS)
    for number, label in enumerate("aabab"):
        made.release({"label": label, "number": number})
    made.stand([0, ~1, 2, ~3, ~4])
    assert [made.turn(label) for label in "abc"] == [1, 1, 0]
    made.release({"label": "a", "number": 5})
    assert (made.slots, made.turn("a"), made.turn("b")) == ([0, 5, 2, ~3, ~4], 2, 1)
    for number in (6, 7):
        made.release({"label": "a", "number": number})
    assert [line["number"] for line in made.lines] == [0, 5, 2, 6, 7]
