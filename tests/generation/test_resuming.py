"""Interrupted runs: what the ledger keeps, what is paid for, and who continues (docs/proofs/resuming.md)."""

import json
import os
import signal
import sqlite3
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.draws import DrawCounts, columns, draws_of
from dpfewshot.account.reservation import Reservation
from tests.support import factory
from tests.support.accounts import entry_of, outcome
from tests.support.ledgers import rows
from tests.support.processes import in_child
from tests.support.resuming import (
    Dying,
    Interrupted,
    account,
    acts,
    draws_left,
    fails_once,
    interrupted,
    ledger,
    synthesizer,
)
from tests.support.scripts import TASK

FIXTURES = (ledger,)
# newer Pythons warn of what is tested here: a fork beside threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_a_finished_run_is_there_for_nothing(ledger: str) -> None:
    with synthesizer(ledger=ledger, shots_per_label=2) as made:
        first = made.generate_all(resume=True)
    assert [one.label for one in first] == ["refund", "delivery"] * 2
    before = acts(ledger)
    again, seen = synthesizer(ledger=ledger, shots_per_label=2), list[dpf.Demonstration]()
    assert again.generate_all(resume=True, on_demonstration=seen.append) == first
    assert seen == list(first)  # the process before may have ended without telling
    assert again.set_up.backend.draws == 0
    assert acts(ledger) == before
    assert not again.unfinished


@pytest.mark.parametrize("answers", [1, 3, 7])
def test_an_interrupted_demonstration_resumes_from_its_tokens(ledger: str, answers: int) -> None:
    spent = interrupted(answers, ledger=ledger).spent
    later = synthesizer(ledger=ledger)
    assert later.unfinished
    demonstrations = later.generate_all(resume=True)
    assert [(one.label, one.text) for one in demonstrations] == [
        ("refund", "my parcel is late"),
        ("delivery", "my parcel is late"),
    ]
    assert later.set_up.backend.draws == 10 - answers
    assert sorted(draws_left(ledger)) == [2, 3]  # of 8 for each label: five tokens, and the draw that died
    assert later.spent.epsilon == pytest.approx(spent.epsilon, abs=0.1)  # the labels' plans differ a hair
    assert all(one.spent is not None and one.spent.epsilon <= 4.0 for one in demonstrations)


def test_the_same_synthesizer_continues_its_own(ledger: str) -> None:
    made = interrupted(3, ledger=ledger)
    made.set_up.backend.answers = None
    assert [one.text for one in made.generate_all(resume=True)] == ["my parcel is late"] * 2
    assert made.generate_all(resume=True) == made.generate_all(resume=True)
    assert "resume" not in acts(ledger)


def test_without_resume_a_run_is_another_one(ledger: str) -> None:
    interrupted(3, ledger=ledger, budget=dpf.PrivacyBudget(1.0, 1e-6)).close()
    assert draws_left(ledger) == [4]
    later = synthesizer(ledger=ledger, budget=dpf.PrivacyBudget(1.0, 1e-6))
    for refused in (later.generate_all, lambda: later.generate("refund")):
        with pytest.raises(dpf.BudgetExceeded, match=r"^resume=True continues the run .*: .* does not fit"):
            refused()


@pytest.mark.parametrize("options", [{}, {"budget": dpf.NO_PRIVACY}, {"random_source": os.urandom}])
def test_a_run_in_memory_cannot_be_resumed(options: dict[str, Any]) -> None:
    made = synthesizer(**options)
    with pytest.raises(dpf.InvalidPlan, match="resume=True needs a ledger"):
        made.generate_all(resume=True)
    assert made.set_up.backend.draws == 0


@pytest.mark.parametrize("resume", [1, "", None, b"night"])
def test_what_names_no_run_is_refused(ledger: str, resume: Any) -> None:
    with pytest.raises(dpf.InvalidPlan, match="the name of a run"):
        synthesizer(ledger=ledger).generate_all(resume=resume)
    assert acts(ledger) == ["create"]


def test_an_interrupted_draw_is_lost_and_its_tokens_are_not(ledger: str) -> None:
    interrupted(2, tokens_per_draw=8, ledger=ledger).close()
    demonstrations = synthesizer(tokens_per_draw=8, ledger=ledger).generate_all(resume=True)
    assert [(one.token_count, one.finished) for one in demonstrations] == [(2, False), (5, True)]
    assert {one.text for one in demonstrations} == {"my parcel is late"}  # the first was completed
    assert draws_left(ledger) == [0, 0]


def test_others_have_the_draws_that_were_planned_for_them(ledger: str) -> None:
    """Without slack: no demonstration ends before its eighth token."""

    class Endless(Dying):
        def answer(self, prompt: list[int]) -> list[float]:
            del prompt
            return [0.999993, *[1e-6] * 7]

    options: dict[str, Any] = {"shots_per_label": 3, "labels": ["refund"], "ledger": ledger}
    for answers in (3, 2, 9):
        interrupted(Endless(answers), resume=True, **options).close()
    done = synthesizer(Endless(), **options).generate_all(resume=True)
    assert [one.token_count for one in done] == [6, 8, 7]
    assert draws_left(ledger) == [0]


def test_what_others_generated_is_of_the_run_and_its_draws_are_counted(ledger: str) -> None:
    made = synthesizer(shots_per_label=2, ledger=ledger)

    def interrupt(one: dpf.Demonstration) -> None:
        made.generate(one.label)
        raise Interrupted

    with pytest.raises(Interrupted):
        made.generate_all(on_demonstration=interrupt)
    made.close()
    assert draws_left(ledger) == [6]
    released = synthesizer(shots_per_label=2, ledger=ledger).generate_all(resume=True)
    assert [one.label for one in released] == ["refund", "delivery"] * 2


def test_a_disjoint_part_is_continued_by_itself(ledger: str) -> None:
    counts = {"disjoint_parts": 4, "shots_per_label": 12, "prompts_per_draw": 25}
    options: dict[str, Any] = counts | {"labels": ["refund"]}
    interrupted(23, ledger=ledger, **options).close()
    assert sorted(draws_left(ledger)) == [15, 19, 19, 19]  # a demonstration each, and four draws of another
    done = synthesizer(ledger=ledger, **options).generate_all(resume=True)
    assert [one.text for one in done] == ["my parcel is late"] * 12
    assert sum(draws_left(ledger)) == 96 - 61


def test_the_interrupted_demonstration_resumes_first(ledger: str) -> None:
    """One label has lost a demonstration, and another one is interrupted in the middle."""
    options: dict[str, Any] = {"tokens_per_draw": 8, "shots_per_label": 1, "ledger": ledger}
    for answers in (0, 2):
        interrupted(answers, resume=True, **options).close()
    seen: list[dpf.Demonstration] = []
    with pytest.raises(dpf.BudgetExceeded, match=r"1 of 'refund' cannot be made.*The other one is rel"):
        synthesizer(**options).generate_all(resume=True, on_demonstration=seen.append)
    assert [(one.label, one.token_count, one.finished) for one in seen] == [("delivery", 2, False)]


def test_what_is_stored_is_released_text_and_public_facts(ledger: str, tmp_path: Path) -> None:
    texts = [f"swordfish {number}" for number in range(400)]
    records = [dpf.Record(text, str(TASK.labels[i % 2])) for i, text in enumerate(texts)]  # type: ignore[index]
    interrupted(7, records=records, ledger=ledger).close()
    assert all(b"swordfish" not in path.read_bytes() for path in tmp_path.iterdir())
    entries: Any = account(ledger).export()["entries"]
    progress = [json.loads(entry["progress"]) for entry in entries]
    assert [list(each) for each in progress] == [["writer", "released", "unfinished"]] * 2
    assert [one["text"] for one in progress[0]["released"]] == ["my parcel is late"]
    assert list(progress[1]["unfinished"]) == ["delivery"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 9},
        {"shots_per_label": 2},
        {"labels": ["refund"]},
        {"prompts_per_draw": 90},
        {"budget": dpf.PrivacyBudget(3.0, 1e-5)},
        {"record_token_cap": 90},
        {"holdout": 0.1, "prompts_per_draw": 50},
        {"mechanism": dpf.mechanisms.ReportNoisyMax(top_k=8)},
    ],
)
def test_a_run_of_another_plan_is_not_continued(ledger: str, options: dict[str, Any]) -> None:
    open_large(ledger, parallel=False)
    interrupted(3, ledger=ledger).close()
    other = synthesizer(ledger=ledger, **options)
    assert not other.unfinished
    other.generate_all(resume=True)
    assert "resume" not in acts(ledger)
    assert synthesizer(ledger=ledger).unfinished


@pytest.mark.parametrize("same", [True, False])
def test_a_run_of_a_model_with_other_tokens_is_not_continued(ledger: str, same: bool) -> None:
    """Of as many tokens; the backend has no identity that would tell them apart."""

    class Other(Dying):
        def tokenize(self, text: str) -> list[int]:
            unknown = self.vocabulary_size if same else 0
            return [min(token, unknown) for token in super().tokenize(text)]

    interrupted(3, ledger=ledger).close()
    other = synthesizer(Other(), ledger=ledger)
    assert other.set_up.backend.model_identity is None
    assert other.unfinished is same


def test_the_newest_run_is_continued(ledger: str) -> None:
    open_large(ledger)
    for answers in (7, 3):
        interrupted(answers, ledger=ledger).close()
    later = synthesizer(ledger=ledger)
    later.generate_all(resume=True)
    assert later.set_up.backend.draws == 10 - 3


def test_who_resumes_again_takes_its_run_back(ledger: str) -> None:
    options: dict[str, Any] = {"ledger": ledger, "shots_per_label": 2, "budget": dpf.PrivacyBudget(4.0, 1e-5)}
    own = synthesizer(**options)
    own.generate("refund")
    with synthesizer(**options) as other:
        made = other.generate_all(resume=True)
    for _ in "ab":
        assert own.generate_all(resume=True) == made
    assert acts(ledger).count("reserve") == 2


def test_what_is_left_for_another_label_of_a_stratum_stays_open(ledger: str) -> None:
    options: dict[str, Any] = {"ledger": ledger, "task": replace(TASK, labels=None)}
    with synthesizer(labels=["refund", "delivery"], **options) as made:
        for _ in "ab":
            made.generate("refund")
    with synthesizer(labels=["refund", "delivery"], **options) as later:
        assert later.unfinished
        assert "delivery" in [one.label for one in later.generate_all(resume=True)]


def test_runs_of_one_plan_are_told_apart_by_their_names(ledger: str) -> None:
    open_large(ledger)
    made = synthesizer(ledger=ledger)
    nights = {name: made.generate_all(resume=name) for name in ("night 1", "night 2")}
    one, two = ({each.certificate for each in night} for night in nights.values())
    assert one.isdisjoint(two)
    assert made.generate_all(resume="night 1") == nights["night 1"]
    with synthesizer(ledger=ledger) as later:  # to which each night is there for nothing
        assert {name: later.generate_all(resume=name) for name in nights} == nights
    assert acts(ledger).count("reserve") == 4
    assert not synthesizer(ledger=ledger).unfinished


def test_of_two_that_resume_at_once_one_gets_every_stratum(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(7, ledger=ledger, shots_per_label=2).close()
    resume, resumed = Account.resume, {"first": threading.Event(), "second": threading.Event()}

    class Waiting(Dying):
        """Is asked once its run is resumed, and answers once the other one is, too."""

        def __init__(self, own: str, other: str) -> None:
            super().__init__()
            self.own, self.other = own, other

        def next_token_logprobs(self, *arguments: Any) -> Any:
            resumed[self.own].set()
            assert resumed[self.other].wait(30)
            return super().next_token_logprobs(*arguments)

    def run(own: str, other: str) -> object:
        with synthesizer(Waiting(own, other), ledger=ledger, shots_per_label=2) as made:
            return outcome(made.generate_all, resume=True)[0]

    def followed(self: Account, *arguments: Any, **named: Any) -> Any:
        found = resume(self, *arguments, **named)
        if not later:  # the first process has replaced a lease: the second now resumes
            later.append(threads.submit(run, "second", "first"))
            assert resumed["second"].wait(30)
        return found

    later: list[Future[object]] = []
    monkeypatch.setattr(Account, "resume", followed)
    with ThreadPoolExecutor(1) as threads:
        assert run("first", "second") is dpf.RunTakenOver
        assert later[0].result(30) is None
    assert acts(ledger).count("release") == 4


def test_a_budget_too_small_for_the_rest_withholds_nothing_of_what_has_begun(ledger: str) -> None:
    interrupted(3, ledger=ledger).close()
    account(ledger).change_budget(dpf.PrivacyBudget(0.5, 1e-5))
    told = list[dpf.Demonstration]()
    with synthesizer(ledger=ledger) as later, pytest.raises(dpf.BudgetExceeded, match="does not fit"):
        later.generate_all(resume=True, on_demonstration=told.append)
    assert [one.label for one in told] == ["refund"]


def test_two_that_begin_at_once_pay_for_one_run(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of, both, waiting = Account.run_of, threading.Barrier(2), ["first", "second"]

    def finds_none(self: Account, *arguments: Any) -> Any:
        found = run_of(self, *arguments)
        if len(arguments) == 1 and waiting:  # who begins asks for a whole run
            waiting.pop()
            both.wait(30)
        return found

    def run(_: int) -> object:
        with synthesizer(ledger=ledger) as made:
            return outcome(made.generate_all, resume=True)[0]

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(Account, "run_of", finds_none)
        assert set(threads.map(run, range(2))) != {None}  # at least one ends with an error
    with synthesizer(ledger=ledger) as later:
        assert [one.text for one in later.generate_all(resume=True)] == ["my parcel is late"] * 2
    assert acts(ledger).count("reserve") == 2


def test_who_begins_second_is_not_told_to_buy_budget(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, others = Account.check, list[dpf.Demonstration]()

    def begun_before(self: Account, plans: Any) -> Any:
        monkeypatch.setattr(Account, "check", check)
        others.extend(synthesizer(ledger=ledger).generate_all(resume=True))
        return check(self, plans)

    with synthesizer(ledger=ledger) as made:
        monkeypatch.setattr(Account, "check", begun_before)
        with pytest.raises(dpf.LedgerError, match="another process has begun this plan"):
            made.generate_all(resume=True)
    assert [one.text for one in others] == ["my parcel is late"] * 2


@pytest.mark.parametrize("options", [{}, factory.COUNTING], ids=["draws", "a histogram"])
def test_what_another_process_begins_during_a_resume_is_of_the_run(ledger: str, options: Any) -> None:
    """The other one was not stopped: it begins a label that neither had begun."""

    def told(one: dpf.Demonstration) -> None:
        seen.append(one)
        if len(seen) == 1:
            raise Interrupted
        if len(seen) == 3:  # told of the first one again, and of one of its own
            theirs.append(other.generate("delivery"))

    seen, theirs = list[dpf.Demonstration](), list[dpf.Demonstration]()
    other, made = (synthesizer(ledger=ledger, shots_per_label=2, **options) for _ in "ab")
    with pytest.raises(Interrupted):
        other.generate_all(resume=True, on_demonstration=told)
    found = made.generate_all(resume=True, on_demonstration=told)
    assert [one.label for one in found] == ["refund", "delivery"] * 2
    assert theirs[0] in found
    assert sorted(map(repr, seen[1:])) == sorted(map(repr, found))
    with synthesizer(ledger=ledger, shots_per_label=2, **options) as later:
        assert sorted(map(repr, later.generate_all(resume=True))) == sorted(map(repr, found))
    assert acts(ledger).count("reserve") == 2


def test_what_a_resume_had_no_time_to_return_is_returned_once_by_the_next(ledger: str) -> None:
    """It found two texts of another process, was told of one, and was interrupted."""

    def told(one: dpf.Demonstration) -> None:
        seen.append(one)
        if len(seen) == 3:
            theirs.extend(other.generate("delivery") for _ in "ab")
        if len(seen) in (1, 4):
            raise Interrupted

    seen, theirs = list[dpf.Demonstration](), list[dpf.Demonstration]()
    other, made = (synthesizer(ledger=ledger, shots_per_label=3) for _ in "ab")
    for one in (other, made):
        with pytest.raises(Interrupted):
            one.generate_all(resume=True, on_demonstration=told)
    found = made.generate_all(resume=True)
    assert [one.label for one in found] == ["refund", "delivery"] * 3
    assert acts(ledger).count("release") == 6


@pytest.mark.parametrize("act", ["check", "reserve"])
def test_what_another_process_begins_before_the_budget_is_asked_is_continued(
    ledger: str, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    def told(_: dpf.Demonstration) -> None:
        raise Interrupted

    def begun_before(self: Account, *arguments: Any) -> Any:
        monkeypatch.setattr(Account, act, real)
        other.generate("delivery")
        return real(self, *arguments)

    other, real = synthesizer(ledger=ledger), getattr(Account, act)
    with pytest.raises(Interrupted):
        other.generate_all(resume=True, on_demonstration=told)
    with synthesizer(ledger=ledger) as made:
        monkeypatch.setattr(Account, act, begun_before)
        assert [one.label for one in made.generate_all(resume=True)] == ["refund", "delivery"]
    assert acts(ledger).count("reserve") == 2


def test_a_run_that_was_taken_over_draws_no_more(ledger: str) -> None:
    class TakenOver(Dying):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if self.draws == 3 and support is not None and not others:
                others.extend(synthesizer(ledger=ledger).generate_all(resume=True))
            return super().next_token_logprobs(prompts, support)

    others: list[dpf.Demonstration] = []
    made = synthesizer(TakenOver(), ledger=ledger)
    with pytest.raises(dpf.LedgerError, match="draws no more"):
        made.generate_all()
    assert made.set_up.backend.draws == 4  # the fourth was charged before
    assert [one.text for one in others] == ["my parcel is late"] * 2
    made.close()
    assert acts(ledger).count("settle") == 0


def test_a_run_that_was_taken_over_promises_no_demonstration(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last token's draw and its record."""
    record, others = Account.record_release, list[dpf.Synthesizer]()

    def taken_over(self: Account, *arguments: Any) -> None:
        if not others:
            others.append(synthesizer(ledger=ledger))
            others[0].generate_all(resume=True)
        record(self, *arguments)

    monkeypatch.setattr(Account, "record_release", taken_over)
    made = synthesizer(ledger=ledger)
    for _ in "ab":
        with pytest.raises(dpf.LedgerError, match="resumed by another run") as refusal:
            made.generate("refund")
        assert "ask for it again" not in str(refusal.value)
    assert acts(ledger).count("release") == 2


def test_texts_of_two_runs_cost_the_sum_of_both(ledger: str) -> None:
    """One caller names another run while the first one's texts are made."""
    made = synthesizer(Dying(), ledger=ledger, budget=dpf.PrivacyBudget(4.0, 1e-5), shots_per_label=2)
    account(ledger).change_budget(dpf.PrivacyBudget(9.0, 1e-4))

    def stop(_: dpf.Demonstration) -> None:
        raise KeyboardInterrupt

    def other(_: dpf.Demonstration) -> None:
        if not made.newest_run("b"):
            with pytest.raises(KeyboardInterrupt):
                made.generate_all(resume="b", on_demonstration=stop)

    both = made.generate_all(resume="a", on_demonstration=other)
    assert len({one.certificate.run for one in both if one.certificate}) == 2
    assert both.spent == made.spent
    assert made.spent.epsilon > 7.9


def test_a_text_whose_record_came_late_is_its_own_runs(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_once(monkeypatch, "record_release", after=False)
    free, budget = replace(TASK, labels=None), dpf.PrivacyBudget(2.0, 1e-5)
    made = synthesizer(task=free, ledger=ledger, labels=["refund", "delivery"], budget=budget)
    account(ledger).change_budget(dpf.PrivacyBudget(9.0, 1e-4))
    with pytest.raises(dpf.LedgerError, match="locked"):
        made.generate_all(resume="a")
    made.generate("delivery")  # which records the other label's text, too
    assert len({one.certificate.run for one in made.generate_all(resume="b") if one.certificate}) == 1


@pytest.mark.parametrize("resume", [False, True])
def test_a_draw_whose_answer_is_lost_costs_its_label_alone(
    ledger: str, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    made = synthesizer(ledger=ledger, labels=["refund", "delivery"], max_tokens=4)
    fails_once(monkeypatch, "draw", after=True)
    with pytest.raises(dpf.LedgerError):
        made.generate_all(resume=resume)
    told = list[dpf.Demonstration]()
    with pytest.raises(dpf.BudgetExceeded, match="1 of 'refund' cannot be made"):
        made.generate_all(resume=resume, on_demonstration=told.append)
    assert [one.label for one in told] == ["delivery"]


@pytest.mark.parametrize("after", [False, True])
def test_a_ledger_that_fails_in_the_middle_leaves_a_run_that_the_same_synthesizer_continues(
    ledger: str, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    interrupted(7, ledger=ledger).close()
    later = synthesizer(ledger=ledger)
    fails_once(monkeypatch, "resume", after=after)
    with pytest.raises(dpf.LedgerError):
        later.generate_all(resume=True)
    assert [one.text for one in later.generate_all(resume=True)] == ["my parcel is late"] * 2


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_a_child_that_was_forked_within_a_run_makes_nothing_of_it(
    ledger: str, private: bool, durable: bool
) -> None:
    class Forking(Dying):
        child: int | None = None

        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if self.child is None and (support is not None) is private:
                self.child = os.fork()
            return super().next_token_logprobs(prompts, support)

    backend, (reading, writing) = Forking(), os.pipe()
    made = synthesizer(backend, ledger=ledger if durable else None)
    try:
        told = str([one.text for one in made.generate_all()])
    except BaseException as error:  # noqa: BLE001 - of the child, too
        told = f"{type(error).__name__}: {error}"
    if backend.child == 0:
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        what = "this draw was charged" if private else "this plan was reserved"
        assert answer.read().startswith(f"BudgetExceeded: {what} by the parent process")
    assert os.waitpid(backend.child or 0, 0)[1] == 0
    assert told == "['my parcel is late', 'my parcel is late']"
    if durable:
        assert acts(ledger).count("release") == 2  # of an account that agrees with its history


def test_a_child_of_a_named_run_makes_one_of_its_own(ledger: str) -> None:
    told = list[str]()

    def fork(one: dpf.Demonstration) -> None:
        if one.label == "delivery":  # the last
            told.append(in_child(lambda: len(made.generate_all())))

    made = synthesizer(ledger=ledger)
    account(ledger).change_budget(dpf.PrivacyBudget(9.0, 1e-4))
    both = made.generate_all(resume="night", on_demonstration=fork)
    assert told == ["2"]
    with synthesizer(ledger=ledger) as later:
        assert later.generate_all(resume="night") == both


@pytest.mark.parametrize(
    ("column", "value"),
    [("draws_left", 8), ("progress", '{"released": [], "unfinished": {}}'), ("run", "other"), ("lease", "")],
)
def test_a_row_that_was_changed_behind_the_ledgers_back_is_refused(
    ledger: str, tmp_path: Path, column: str, value: object
) -> None:
    interrupted(3, ledger=ledger).close()
    with closing(sqlite3.connect(tmp_path / "budget.db")) as file, file:
        file.execute(f"UPDATE dpfewshot_entry SET {column} = ?", (value,))  # noqa: S608 - of this test
    later = synthesizer(ledger=ledger)
    with pytest.raises(dpf.LedgerError, match="changed behind the ledger's back"):
        later.generate_all(resume=True)
    assert later.set_up.backend.draws == 0
    assert not dpf.open_account(ledger, "tickets").verify().ok


def open_large(url: str, **words: Any) -> None:
    """An account with room for several runs."""
    with dpf.BudgetLedger.open(url) as opened:
        opened.create("tickets", dpf.PrivacyBudget(20.0, 1e-3), **words)


def long_account(url: str) -> None:
    """One whose history is too long to be verified before each act."""
    with dpf.BudgetLedger.open(url) as opened:
        found = opened.create("tickets", dpf.PrivacyBudget(1000.0, 0.1))
        for _ in range(60):
            found.cancel(entry_of(found, None, dpf.PrivacySpend(0.001, 0.0)))


def test_a_cancelled_plan_that_was_put_back_is_not_resumed(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_account(ledger)

    class Gone(Dying):
        def next_token_logprobs(self, *_: Any) -> Any:
            raise self.error

    cancel, kept = Account.cancel, list[tuple[Any, ...]]()

    def copied(self: Account, entry: int) -> None:
        kept.extend(rows(tmp_path / "budget.db", f"SELECT * FROM dpfewshot_entry WHERE id = {entry}"))  # noqa: S608
        cancel(self, entry)

    monkeypatch.setattr(Account, "cancel", copied)
    interrupted(Gone(), ledger=ledger)
    with closing(sqlite3.connect(tmp_path / "budget.db")) as file, file:
        places = ", ".join("?" * len(kept[0]))
        file.execute(f"REPLACE INTO dpfewshot_entry VALUES ({places})", kept[0])  # noqa: S608
    later = synthesizer(ledger=ledger)
    with pytest.raises(dpf.LedgerError, match="changed behind the ledger's back"):
        later.generate_all(resume=True)
    assert later.set_up.backend.draws == 0


def test_a_text_that_somebody_put_into_the_row_is_not_handed_out(ledger: str, tmp_path: Path) -> None:
    long_account(ledger)
    interrupted(7, ledger=ledger).close()
    with closing(sqlite3.connect(tmp_path / "budget.db")) as file, file:
        [number, row] = file.execute(
            "SELECT id, progress FROM dpfewshot_entry WHERE progress LIKE '%my parcel is late%'"
        ).fetchone()
        entries = dpf.open_account(ledger, "tickets").snapshot().entries
        [kept] = [entry for entry in entries if entry["id"] == number]
        forged = row.replace("my parcel is late", "call 555-0100")
        told = replace(draws_of(kept) or DrawCounts(0, ""), progress=forged)
        file.execute(
            "UPDATE dpfewshot_entry SET progress = :progress, draws_hash = :draws_hash WHERE id = :id",
            columns(told) | {"id": number},
        )
    with pytest.raises(dpf.LedgerError, match="changed behind the ledger's back"):
        synthesizer(ledger=ledger).generate_all(resume=True)
    assert "does not hold the demonstrations" in str(dpf.open_account(ledger, "tickets").verify().problems)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stops=st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), max_size=6),
    tokens_per_draw=st.sampled_from([1, 3, 8]),
    shots=st.integers(1, 3),
)
def test_any_interruptions_draw_no_more_than_was_planned(
    stops: list[tuple[int, bool, bool]],
    tokens_per_draw: int,
    shots: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Backends that die and processes that are cut short, some of which leave their row in order."""
    url = f"sqlite:///{tmp_path_factory.mktemp('run')}/budget.db"
    drawn: Counter[int] = Counter()

    def counted(self: Reservation) -> object:
        permit = draw(self)
        drawn[self.entry] += 1
        return permit

    draw = Reservation.draw
    options = {"tokens_per_draw": tokens_per_draw, "shots_per_label": shots, "ledger": url}
    seen: Counter[str] = Counter()
    told: list[dpf.Demonstration] = []
    with monkeypatch.context() as patch:
        patch.setattr(Reservation, "draw", counted)
        for answers, cut, closes in [*stops, (None, False, False)]:
            made = synthesizer(Dying(answers, Interrupted() if cut else None), **options)
            told.clear()
            with suppress(Interrupted, dpf.BackendError, dpf.BudgetExceeded):
                made.generate_all(resume=True, on_demonstration=told.append)
            if closes:
                made.close()
            now = Counter(f"{one.label}: {one.text}" for one in told)
            assert not seen - now  # whoever resumes is told of all that was released before
            seen, plan = now, made.plan
            assert made.spent.epsilon <= 4.0
    assert len(drawn) <= 2
    assert all(number <= plan.steps for number in drawn.values())
    assert acts(url).count("release") == seen.total()  # each once, none made twice


DRAWS = 4


def child(folder: Path, dies_at: int | None, *, counted: bool = True) -> int:
    """A run in a process of its own, killed at its n-th step boundary. Returns its wait status."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            run_with_boundaries(folder, dies_at, counted=counted)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1]


def run_with_boundaries(folder: Path, dies_at: int | None, *, counted: bool) -> None:
    """A witness of its own writes down each draw, after its permit and before it happens."""
    passed = 0
    witness = os.open(folder / "witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def boundary() -> None:
        nonlocal passed
        if passed == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    def watched(kind: type, name: str) -> None:
        inner = getattr(kind, name)

        def outer(*arguments: Any, **named: Any) -> Any:
            boundary()
            result = inner(*arguments, **named)
            if kind is Reservation:
                os.write(witness, f"{arguments[0].entry}\n".encode())
            boundary()
            return result

        setattr(kind, name, outer)

    if not counted:
        DrawCounts.after = lambda self, progress: replace(self, progress=progress)  # type: ignore[method-assign]
    for name in ("reserve", "draw", "resume", "record_release", "settle", "record_progress"):
        watched(Account, name)
    watched(Reservation, "draw")
    plan: dict[str, Any] = {"labels": ["refund"], "shots_per_label": 2, "max_tokens": 4, "tokens_per_draw": 2}
    with synthesizer(**plan, ledger=url(folder)) as made:
        released = made.generate_all(resume=True)
    (folder / "passed").write_text(str(passed))
    (folder / "released").write_text("\n".join(one.text for one in released))


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'budget.db'}"


def folder_with_ledger(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    open_large(url(folder))
    return folder


def drawn_in(folder: Path) -> Counter[str]:
    return Counter((folder / "witness").read_text().split())


def test_killed_at_every_boundary_it_resumes_within_its_plan(tmp_path: Path) -> None:
    whole = folder_with_ledger(tmp_path, "whole")
    assert child(whole, None) == 0
    boundaries = int((whole / "passed").read_text())
    assert boundaries > 20
    for at in range(boundaries):
        folder = folder_with_ledger(tmp_path, str(at))
        assert child(folder, at) == signal.SIGKILL
        assert child(folder, None) == 0
        assert set(drawn_in(folder)) <= {"1"}  # one reservation, wherever it was killed
        assert drawn_in(folder).total() <= DRAWS
        assert len((folder / "released").read_text().split("\n")) == 2
        found = account(url(folder))
        assert (found.entries, found.snapshot().entries[0]["state"]) == (1, "settled")


def test_killed_at_every_boundary_of_a_resume_it_resumes_again(tmp_path: Path) -> None:
    resumes = 0
    for at in range(8):
        folder = folder_with_ledger(tmp_path, str(at))
        assert child(folder, 8) == signal.SIGKILL
        assert child(folder, at) == signal.SIGKILL
        assert child(folder, None) == 0
        assert drawn_in(folder).total() <= DRAWS
        resumes += acts(url(folder)).count("resume")
    assert resumes > 8


def test_control_when_nobody_counts_the_draws_it_is_found_out(tmp_path: Path) -> None:
    worst = 0
    for at in range(6, 20, 4):
        folder = folder_with_ledger(tmp_path, str(at))
        assert child(folder, at, counted=False) == signal.SIGKILL
        child(folder, None, counted=False)
        worst = max(worst, drawn_in(folder).total())
    assert worst > DRAWS
