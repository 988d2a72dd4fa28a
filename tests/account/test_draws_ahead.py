"""Draws that are charged ahead: no more are made than reserved, and a run that ends well loses none."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts, new_lease
from dpfewshot.account.ledger import BudgetLedger
from dpfewshot.account.reservation import Reservation, Terms
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.values import PrivacyBudget, PrivacySpend

COST = PrivacySpend(0.5, 1e-6)
DRAWS, PARTS = 7, 2
TERMS = Terms(COST, None, 8, 1, 1.0, {}, draws_at_once=4)


class Unsure(Account):
    """Loses the answer to its next change: it was made, and the caller does not know."""

    loses = False

    def draw(self, entry: int, lease: str, part: int, count: int = 1) -> int:
        return self._answered(super().draw(entry, lease, part, count))

    def give_back(self, entry: int, lease: str, part: int, count: int) -> None:
        self._answered(super().give_back(entry, lease, part, count))  # type: ignore[func-returns-value]

    def _answered(self, answer: Any) -> Any:
        lost, self.loses = self.loses, False
        if lost:
            raise LedgerError("the answer was lost")
        return answer


class Runs:
    """The runs on one entry, one after another, each with a checkpoint that counts its draws."""

    def __init__(self, account: Unsure, at_once: int) -> None:
        self.account, self.at_once = account, at_once
        self.terms = Terms(COST, None, DRAWS, 1, 1.0, {}, disjoint_parts=PARTS, draws_at_once=at_once)
        self.made: list[Counter[int]] = [Counter()]
        self.runs = [Reservation.make(account, self.terms)]

    def draw(self, run: int, part: int) -> None:
        """One draw by a run, which another may have replaced."""
        with suppress(BudgetExceeded, LedgerError):
            self.runs[run].draw(part)
            self.made[run][part] += 1

    def resume(self, checkpoint: int) -> None:
        """A further run, which knows all draws that a checkpoint has."""
        last = self.runs[-1]
        words: dict[str, Any] = {"known": [last.lease], "lease": new_lease()}
        resumed = Reservation.resume(self.account, self.terms, last.entry, draws=checkpoint, **words)
        self.runs.append(resumed)
        self.made.append(Counter())

    @property
    def spent(self) -> int:
        """The most draws that one unit may have been in: it may be in another part in each run."""
        return sum(max(made.values(), default=0) for made in self.made)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("draw"), st.integers(0, PARTS - 1)),
        st.tuples(st.just("draw of the first run"), st.integers(0, PARTS - 1)),
        st.tuples(st.sampled_from(["hand over", "killed", "lost answer"]), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=15, deadline=None)
@given(at_once=st.integers(1, 4), steps=steps)
def test_no_unit_is_in_more_draws_than_were_reserved(at_once: int, steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, BudgetLedger.open(f"sqlite:///{folder}/a.db") as ledger:
        made = ledger.create("tickets", PrivacyBudget(4.0, 1e-5))
        account = Unsure(made._store)  # noqa: SLF001 - of another class
        runs, surely = Runs(account, at_once), True
        for name, part in steps:
            match name:
                case "draw":
                    runs.draw(-1, part)
                case "draw of the first run":  # as a copy's run does that nobody stopped
                    runs.draw(0, part)
                case "lost answer":
                    account.loses, surely = True, False
                case _:
                    if name == "hand over":
                        runs.runs[-1].hand_over()
                    surely = surely and (name == "hand over" or at_once == 1)
                    runs.resume(DRAWS)  # the oldest copy of the checkpoint: the ledger alone counts
            assert runs.spent <= DRAWS
        left = max(runs.runs[-1].draws_left)
        while left and any(runs.runs[-1].draws_left):
            before = runs.runs[-1].draws_left
            for part in range(PARTS):
                runs.draw(-1, part)
            if runs.runs[-1].draws_left == before:
                break
        assert runs.spent <= DRAWS
        if surely and len(runs.runs) == 1:
            assert runs.spent == DRAWS  # nothing is lost
        assert made.verify().problems == ()


@pytest.fixture
def account(ledger_url: str) -> Account:
    return BudgetLedger.open(ledger_url).create("tickets", PrivacyBudget(4.0, 1e-5))


def reserved(account: Account) -> Reservation:
    return Reservation.make(account, TERMS)


def resumed(account: Account, run: Reservation, checkpoint: int) -> Reservation:
    words: dict[str, Any] = {"known": [run.lease], "lease": new_lease()}
    return Reservation.resume(account, TERMS, run.entry, draws=checkpoint, **words)


def test_one_commit_charges_several_draws_and_what_is_left_comes_back(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, inner = [], account.draw

    def counting(entry: int, lease: str, part: int, count: int = 1) -> int:
        commits.append(count)
        return inner(entry, lease, part, count)

    monkeypatch.setattr(account, "draw", counting)
    run = reserved(account)
    for _ in range(5):
        run.draw()
    assert commits == [4, 4]
    run.hand_over()
    assert resumed(account, run, checkpoint=8).draws_left == (3,)


def test_what_a_killed_process_charged_ahead_counts_as_drawn(account: Account) -> None:
    run = reserved(account)
    child = os.fork()
    if child == 0:
        run.draw()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert resumed(account, run, checkpoint=7).draws_left == (4,)


def test_a_child_makes_no_draw_that_its_parent_charged(account: Account) -> None:
    run = reserved(account)
    run.draw()
    child = os.fork()
    if child == 0:
        run.draw()  # charges four of its own
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    made = 1
    with suppress(BudgetExceeded):
        while True:
            run.draw()
            made += 1
    assert made == 4


def test_draws_of_a_replaced_lease_do_not_come_back(account: Account) -> None:
    run = reserved(account)
    run.draw()
    later = resumed(account, run, checkpoint=8)
    run.hand_over()
    assert resumed(account, later, checkpoint=8).draws_left == (4,)


def test_more_than_was_charged_does_not_come_back(account: Account) -> None:
    entry = account.reserve(None, COST, {}, DrawCounts((8,), "first")).entry
    assert account.draw(entry, "first", 0, 5) == 5
    account.give_back(entry, "first", 0, 2)
    for count in (4, -1):
        with pytest.raises(LedgerError, match="more draws are given back"):
            account.give_back(entry, "first", 0, count)
    assert account.draw(entry, "first", 0, 9) == 5
    account.settle(entry, "first")
    with pytest.raises(LedgerError, match="settled"):
        account.give_back(entry, "first", 0, 1)


def test_a_long_demonstration_takes_several_draws_in_a_commit_and_an_interruption_returns_them(
    tmp_path: Path,
) -> None:
    from tests.support.resuming import interrupted, synthesizer

    ledger: dict[str, Any] = {"ledger": f"sqlite:///{tmp_path}/a.db", "dataset": "tickets", "create": True}
    plan: dict[str, Any] = {"labels": ["refund"], "shots_per_label": 1, "max_tokens": 32}
    interrupted(tmp_path / "run.jsonl", 2, **plan, **ledger)  # the third draw of four fails
    with BudgetLedger.open(ledger["ledger"]) as opened:
        [entry] = opened.account("tickets").export()["entries"]  # type: ignore[misc]
    assert entry["blocks"] == f"[{32 - 3}]"
    [one] = synthesizer(**plan, **ledger).generate_all(checkpoint=tmp_path / "run.jsonl")
    assert one.text
