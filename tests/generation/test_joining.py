"""Processes that each call `generate` share one run: words are counted once, and all texts are recorded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.account.reservation import Reservation
from dpfewshot.audit.certified import check_certificates
from dpfewshot.errors import LedgerError
from dpfewshot.generation import row
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.runtime.stopping import StopSignal
from dpfewshot.sample_data import SUPPORT_TICKETS, support_tickets
from dpfewshot.writing.writer import HistogramWriter
from tests.support.resuming import fails_once
from tests.support.small_models import small

FIXTURES = (small,)

BUDGET = dpf.PrivacyBudget(2, 1e-5)
LABELS = ("Refund", "Delivery")


@pytest.fixture(scope="module")
def model(small: str) -> Iterator[dpf.backends.LlamaCpp]:
    with dpf.backends.LlamaCpp(small, context_tokens=256, kept_prompts=15, threads=1) as backend:
        yield backend


@pytest.fixture
def process(model: dpf.backends.LlamaCpp, ledger_url: str) -> Callable[..., dpf.Synthesizer]:
    """Makes a synthesizer as each process would, on an account that could pay for several plans."""
    dpf.BudgetLedger.open(ledger_url).create("tickets", dpf.PrivacyBudget(8, 1e-4))

    def made(**settings: Any) -> dpf.Synthesizer:
        account = dpf.open_account(ledger_url, "tickets")
        return dpf.Synthesizer(
            *(SUPPORT_TICKETS, support_tickets(), model),
            **{"budget": BUDGET, "max_tokens": 8, "labels": LABELS, "account": account, **settings},
        )

    return made


def acts(url: str) -> Counter[object]:
    return Counter(event["act"] for event in dpf.open_account(url, "tickets").history())


def check(url: str, made: list[dpf.Demonstration], planned: dpf.Synthesizer) -> None:
    """All texts are certified and in the ledger, which was charged for one plan."""
    ledger = dpf.BudgetLedger.open(url)
    assert check_certificates(made, ledger).verified
    assert ledger.account("tickets").verify().problems == ()
    assert ledger.account("tickets").spent == dpf.PrivacySpend(planned.plan.epsilon, planned.plan.delta)
    assert len({one.certificate.run for one in made if one.certificate}) == 1
    assert acts(url)["release"] == len(made)


def test_labels_that_two_processes_generate_are_one_run(process: Any, ledger_url: str) -> None:
    first, second = process(), process()
    made = [first.generate("Refund"), second.generate("Delivery")]
    assert [first.unfinished, second.unfinished] == [False, False]
    with process(shots_per_label=2) as later:
        together = later.generate_all(resume=True)
    assert [one.text for one in together[:2]] == [one.text for one in made]
    check(ledger_url, list(together), first)
    assert acts(ledger_url)["reserve"] == 2


def test_a_label_that_two_processes_generate_is_counted_once(process: Any, ledger_url: str) -> None:
    first, second = process(), process()
    made = [each.generate("Refund") for each in (first, second, first, second, second, first)]
    assert len({one.text for one in made}) == len(made)
    assert first.counted_words()["Refund"] == second.counted_words()["Refund"]
    check(ledger_url, made, first)
    assert (acts(ledger_url)["reserve"], acts(ledger_url)["resume"]) == (1, 0)


def test_whoever_writes_all_texts_goes_on_beside_one_that_asks_for_one(process: Any, ledger_url: str) -> None:
    first, second = process(shots_per_label=2), process()
    extra: list[dpf.Demonstration] = []

    def ask(_: dpf.Demonstration) -> None:
        if len(extra) < 2:
            extra.append(second.generate("Refund"))

    made = first.generate_all(on_demonstration=ask)
    assert Counter(one.label for one in made) == {"Refund": 2, "Delivery": 2}
    check(ledger_url, [*made, *extra], first)


def test_a_label_that_one_process_begins_is_among_all_of_another(process: Any, ledger_url: str) -> None:
    first, second = process(shots_per_label=2), process()
    asked: list[dpf.Demonstration] = []

    def ask(_: dpf.Demonstration) -> None:
        if not asked:
            asked.append(second.generate("Delivery"))

    made = first.generate_all(resume=True, on_demonstration=ask)
    assert asked[0].text in [one.text for one in made]
    check(ledger_url, list(made), first)


class Died(BaseException):
    pass


def died_at(kind: type, step: str, process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process died at this step; others do not wait for it."""

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(kind, step, dies)
        with pytest.raises(Died):
            process().generate("Refund")
    monkeypatch.setattr(row, "_COUNTED_WITHIN", 0)


def test_what_a_process_reserved_that_died_is_taken_over(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died_at(HistogramLoop, "_counted", process, monkeypatch)
    later = process()
    check(ledger_url, [later.generate("Refund")], later)
    assert acts(ledger_url)["resume"] == 1


def test_a_draw_that_a_process_made_is_not_taken_over(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    died_at(Reservation, "keep", process, monkeypatch)
    monkeypatch.setattr(row, "_RECORDED_WITHIN", 0.1)
    with pytest.raises(dpf.BudgetExceeded, match=r"words were counted and not recorded: .* lost"):
        process().generate("Refund")
    with pytest.raises(dpf.BudgetExceeded, match="1 of 'Refund' cannot be made"):
        process().generate_all(resume=True)


def test_words_that_may_be_lost_are_waited_for_once(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    died_at(Reservation, "keep", process, monkeypatch)
    monkeypatch.setattr(row, "_RECORDED_WITHIN", 0.1)
    waits: list[float] = []
    monkeypatch.setattr(StopSignal, "wait", lambda _, seconds: waits.append(seconds))
    with pytest.raises(dpf.BudgetExceeded, match="3 of 'Refund' cannot be made"):
        process(shots_per_label=3).generate_all(resume=True)
    assert len(waits) == 1


def test_two_processes_that_release_one_text_record_it_twice(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = process(), process()
    made = [first.generate("Refund"), second.generate("Refund")]

    def text(*_: object) -> list[int]:
        if len(made) == 2:  # the other one begins and ends while this one writes
            made.append(made[0])
            made[2] = second.generate("Refund")
        return [5, 6, 7]

    monkeypatch.setattr(HistogramWriter, "text", text)
    made.append(first.generate("Refund"))
    assert made[2] == made[3]
    check(ledger_url, made, first)


def before(act: str, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Let something happen once before the account does this."""
    inner, begun = getattr(Account, act), list[int]()

    def outer(self: Account, *arguments: Any, **named: Any) -> Any:
        if not begun:
            begun.append(1)
            then()
        return inner(self, *arguments, **named)

    monkeypatch.setattr(Account, act, outer)


def test_two_that_reserve_a_label_at_once_pay_once(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, others = process(), process(), list[dpf.Demonstration]()
    process().generate("Delivery")  # so that none of them begins the run
    before("reserve", monkeypatch, lambda: others.append(second.generate("Refund")))
    made = first.generate("Refund")
    assert acts(ledger_url)["reserve"] == 2
    assert made.certificate.reservation == others[0].certificate.reservation


def test_one_whose_count_is_taken_over_shares_the_other_one(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = process(shots_per_label=1), process()
    others: list[dpf.Demonstration] = []
    before("draw", monkeypatch, lambda: others.extend(second.generate_all(resume=True)))
    made = first.generate("Refund")
    assert first.counted_words()["Refund"] == second.counted_words()["Refund"]
    check(ledger_url, [made, *others], first)


def test_one_whose_count_is_taken_over_and_lost_says_so(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = process(), process()
    monkeypatch.setattr(row, "_COUNTED_BY_NEXT", 0)
    before("draw", monkeypatch, lambda: second._generation.resume(""))  # noqa: SLF001 - and ends
    with pytest.raises(LedgerError, match=r"has not: if it has ended, generate_all\(resume=True\) goes on"):
        first.generate("Refund")
    assert len(process().generate_all(resume=True)) == 2


def test_many_that_begin_at_once_pay_once(process: Any, ledger_url: str) -> None:
    processes = [process() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(each.generate, label) for each in processes for label in LABELS]
        made = [one.result(120) for one in asked]
    check(ledger_url, made, processes[0])


def test_where_each_text_costs_a_process_begins_a_run_of_its_own(process: Any) -> None:
    settings = {"mechanism": dpf.mechanisms.Gaussian(), "budget": dpf.PrivacyBudget(1, 1e-6)}
    first, second = process(**settings), process(**settings)
    one, other = first.generate("Refund"), second.generate("Refund")
    assert one.certificate.run != other.certificate.run


@pytest.mark.parametrize("resume", [True, False])
def test_all_of_a_process_that_joined_a_run_is_of_that_run(
    process: Any, ledger_url: str, resume: bool
) -> None:
    first, second = process(), process()
    made = [first.generate("Refund"), second.generate("Refund"), first.generate("Delivery")]
    found = second.generate_all(resume=resume)
    assert {one.text for one in found} >= ({one.text for one in made} if resume else {made[2].text})
    assert {one.certificate.run for one in found if one.certificate} == {made[0].certificate.run}
    assert (acts(ledger_url)["reserve"], second.spent) == (2, made[0].spent)


def test_who_joins_a_run_that_is_gone_joins_the_one_that_is_there(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, second, look = [process().generate("Refund")], process(), Account.run_of

    def gone(self: Account, *asked: Any) -> Any:
        monkeypatch.setattr(Account, "run_of", look)
        [entry] = look(self, *asked)
        return [replace(entry, draws=replace(entry.draws, key=replace(entry.draws.key, run="gone")))]

    monkeypatch.setattr(Account, "run_of", gone)
    made.append(second.generate("Refund"))
    check(ledger_url, made, second)


def test_a_process_that_closes_takes_nothing_over(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died_at(HistogramLoop, "_counted", process, monkeypatch)
    monkeypatch.setattr(row, "_COUNTED_WITHIN", 300)
    later = process()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(later.generate, "Refund")
        time.sleep(0.3)
        later.close()
        with pytest.raises(dpf.BudgetExceeded, match="closed"):
            asked.result(30)
    assert acts(ledger_url)["resume"] == 0


def test_a_text_of_another_process_takes_the_place_of_one_that_is_replaced(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, others = process(), process(), list[dpf.Demonstration]()
    made = first.generate_all(resume=True)
    with monkeypatch.context() as patched:
        before("record_release", patched, lambda: others.append(second.generate("Refund")))
        kept = first.generate_all(resume=True, keep=made[1:])
    assert len(kept) == 2
    stand = process().generate_all(resume=True)
    assert made[0].text not in [one.text for one in stand]
    assert {one.text for one in stand} == {one.text for one in (*kept, *others)}


@pytest.mark.parametrize("after", [False, True])
def test_a_text_whose_record_failed_is_returned_though_others_came_first(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    first, second, written = process(), process(), list[list[int]]()

    def text(*_: object) -> list[int]:
        written.append([5 + len(written), 6, 7])
        return written[-1]

    monkeypatch.setattr(HistogramWriter, "text", text)
    made = [first.generate("Refund")]
    with monkeypatch.context() as patched:
        fails_once(patched, "record_release", after=after)
        with pytest.raises(LedgerError):
            first.generate("Refund")
    made += [second.generate("Refund"), first.generate("Refund")]
    assert len(written) == 3  # it was not written again
    check(ledger_url, made, first)


def test_a_count_that_is_drawn_is_recorded_though_the_run_is_taken_over(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = process(), process()
    with ThreadPoolExecutor(1) as threads:
        others: list[Any] = []

        def taken_over() -> None:
            others.append(threads.submit(second.generate_all, resume=True))
            while not acts(ledger_url)["resume"]:
                time.sleep(0.01)

        before("record_progress", monkeypatch, taken_over)
        made = first.generate("Refund")
        check(ledger_url, [made, *others[0].result(60)], first)


def test_who_waits_for_a_count_shares_it_though_a_third_one_takes_the_run_over(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = process(), process(), process()
    with ThreadPoolExecutor(2) as threads:
        others: list[Any] = []

        def taken_over() -> None:
            for number, each in enumerate((second, third), start=1):
                others.append(threads.submit(each.generate_all, resume=True))
                while acts(ledger_url)["resume"] < number:
                    time.sleep(0.01)

        before("record_progress", monkeypatch, taken_over)
        made = first.generate("Refund")
        texts = [one for each in others for one in each.result(60)]
    assert len({str(each.counted_words()) for each in (second, third)}) == 1
    assert len({one.certificate.run for one in (made, *texts)}) == 1
    spent = dpf.open_account(ledger_url, "tickets").spent
    assert spent == dpf.PrivacySpend(first.plan.epsilon, first.plan.delta)


def test_a_count_whose_record_failed_is_kept_by_a_process_that_loses_the_run(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = process(), process()
    fails_once(monkeypatch, "record_progress", after=False)
    before("record_release", monkeypatch, lambda: second._generation.resume(""))  # noqa: SLF001
    made = [first.generate("Refund"), *process().generate_all(resume=True)]
    assert made[0].text in [one.text for one in made[1:]]
    check(ledger_url, made[1:], first)


def test_who_replaces_texts_does_so_beside_others(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, others = process(), process(), list[dpf.Demonstration]()
    made = first.generate_all(resume=True)
    before("record_progress", monkeypatch, lambda: others.append(second.generate("Refund")))
    kept = first.generate_all(resume=True, keep=made[1:])
    stand = process().generate_all(resume=True)
    assert made[0].text not in [one.text for one in stand]
    assert [one.text for one in kept] == [one.text for one in stand]  # who keeps some names all that stand
    check(ledger_url, [*made, *others, *(one for one in stand if one not in made)], first)


def test_who_cannot_replace_beside_others_says_so(
    process: Any, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process()
    made = first.generate_all(resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(Reservation, "stand", lambda *_: False)  # others record something each time
        with pytest.raises(dpf.LedgerError, match="not all are replaced"):
            first.generate_all(resume=True, keep=made[1:])
    assert [one.text for one in process().generate_all(resume=True)] == [one.text for one in made]
    check(ledger_url, made, first)
