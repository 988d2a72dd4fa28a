"""Inside a service: coroutines that are cancelled, threads and forks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dpfewshot as dpf
from dpfewshot.account.account import Account
from dpfewshot.runtime.stopping import StopSignal
from tests.support import factory, inside
from tests.support.processes import in_child
from tests.support.scripts import Hooked, Sentence, tickets

# newer Pythons warn of what is tested here: a fork beside threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
BUDGET = dpf.PrivacyBudget(epsilon=4.0, delta=1e-5)
NOTHING = dpf.PrivacySpend(0.0, 0.0)
SECRET = "swordfish"


class Gated(Hooked):
    def __init__(self) -> None:
        super().__init__(self.wait)
        self.gate = threading.Semaphore(0)
        self.arrived = threading.Event()
        self.fails: Exception | None = None

    def wait(self, _number: int) -> None:
        if not self.gate.acquire(blocking=False):
            self.arrived.set()
            assert self.gate.acquire(timeout=30)
        if self.fails is not None:
            raise self.fails

    def open(self, answers: int = 10_000) -> None:
        self.gate.release(answers)


def synthesizer(backend: Any = None, **options: Any) -> dpf.Synthesizer:
    records = [dpf.Record(f"{SECRET} {i}", one.label) for i, one in enumerate(tickets())]
    settings = {"prompts_per_draw": 100} | options
    return factory.synthesizer(backend or Hooked(), records, **settings)


async def arrival(backend: Gated) -> None:
    while not backend.arrived.is_set():  # noqa: ASYNC110 - a thread arrives, no task
        await asyncio.sleep(0.001)


async def cancelled(task: asyncio.Task[Any], backend: Gated) -> None:
    """Cancel it in the middle of a token, and let that token come to its end."""
    await arrival(backend)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()  # what runs is waited for
    backend.open(1)
    with pytest.raises(asyncio.CancelledError):
        await task


# ---- asyncio ---------------------------------------------------------------------------------------------


def test_a_cancelled_coroutine_stops_at_the_next_token_and_its_charge_stands(url: str) -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, shots_per_label=2, ledger=url)
        await cancelled(asyncio.create_task(made.agenerate("refund")), backend)
        assert inside.draws_left(made) == [15]
        assert made.spent.epsilon > 3.9
        backend.open()
        assert (await made.agenerate("refund")).text == "my parcel is late"
        assert made.generate("delivery").text == "my parcel is late"

    asyncio.run(scenario())
    gc.collect()


def test_cancelled_before_the_first_draw_gives_everything_back(url: str) -> None:
    async def scenario() -> None:
        made = synthesizer(ledger=url)
        with inside.turn(made, "refund"):
            waiting = asyncio.create_task(made.agenerate("refund"))
            queued = asyncio.create_task(made.agenerate("refund"))
            await asyncio.sleep(0.05)
            for task in (queued, waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert made.spent == NOTHING
        assert (await made.agenerate("refund")).text == "my parcel is late"

    asyncio.run(scenario())


def test_cancelled_between_reserving_and_drawing_gives_everything_back(url: str) -> None:
    class GatedInPublic(Gated):
        def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
            if support is None:
                self.wait(0)
            return Sentence.next_token_logprobs(self, prompts, support)

    async def scenario() -> None:
        backend = GatedInPublic()
        made = synthesizer(backend, ledger=url)
        task = asyncio.create_task(made.agenerate("refund"))
        await arrival(backend)
        assert made.spent.epsilon > 3.9  # reserved, and nothing drawn
        await cancelled(task, backend)
        assert made.spent == NOTHING

    asyncio.run(scenario())


def test_the_event_loop_stays_free_and_a_label_takes_turns() -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, shots_per_label=3)
        tasks = [asyncio.create_task(made.agenerate("refund")) for _ in range(3)]
        tasks.append(asyncio.create_task(made.agenerate("delivery")))
        ticks = 0
        await arrival(backend)
        for _ in range(20):
            await asyncio.sleep(0.001)
            ticks += 1
        assert ticks == 20
        backend.open()
        assert [one.text for one in await asyncio.gather(*tasks)] == ["my parcel is late"] * 4

    asyncio.run(scenario())


def test_a_timeout_is_a_cancellation() -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, shots_per_label=2)
        threading.Timer(0.3, backend.open).start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await made.agenerate("refund")
        assert (await made.agenerate("refund")).certified

    asyncio.run(scenario())


def test_a_failure_after_the_cancellation_is_nobodys_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        backend = Gated()
        backend.fails = dpf.BackendError("the server is gone")
        made = synthesizer(backend)
        await cancelled(asyncio.create_task(made.agenerate("refund")), backend)

    asyncio.run(scenario())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_cancelled_run_resumes(url: str) -> None:
    async def scenario() -> None:
        backend = Gated()
        made = synthesizer(backend, ledger=url)
        backend.open(2)
        task = asyncio.create_task(made.agenerate_all())
        await cancelled(task, backend)
        backend.open()
        demonstrations = await made.agenerate_all(resume=True)
        assert [one.text for one in demonstrations] == ["my parcel is late"] * 2
        assert made.spent.epsilon <= 4.0

    asyncio.run(scenario())


# ---- threads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_many_threads_share_one_synthesizer(durable: bool, url: str) -> None:
    account: dict[str, Any] = {"ledger": url} if durable else {"account": Account.in_memory(BUDGET)}
    made = synthesizer(shots_per_label=4, **account)

    def work(number: int) -> str:
        try:
            return made.generate(("refund", "delivery")[number % 2]).text
        except dpf.BudgetExceeded:
            return "refused"

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(work, range(24)))
    assert set(texts) == {"my parcel is late", "refused"}
    # 32 draws a label; a demonstration takes five, and is begun while eight are left
    assert texts.count("my parcel is late") == 2 * 5
    assert 3.9 < made.spent.epsilon <= 4.0


def test_a_thread_that_waits_may_find_the_reservation_dropped_at_any_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the one that holds the lock drops it where nothing was drawn: a choice of a part needs no lock."""
    run = inside.run_of(synthesizer(), "refund")
    states = itertools.cycle([run.reserve(StopSignal()), None])
    monkeypatch.setattr(type(run), "reservation", property(lambda _: next(states)), raising=False)
    for _ in range(2):  # whichever state it finds first
        assert (run.draws_left, run.texts_left, run.has_begun("refund"), run.histogram) == (8, 8, False, None)
        assert run.released == run.released_ever == []
        next(states)


# ---- fork ------------------------------------------------------------------------------------------------


def test_a_budget_in_memory_is_refused_in_a_child() -> None:
    made = synthesizer()
    for _ in "ab":  # before and after the parent reserved
        told = in_child(lambda: made.generate("refund").text)
        assert told.startswith("LedgerError: ")
        assert "open_account" in told
        assert in_child(lambda: made.spent).startswith("LedgerError")
        made.generate("refund" if made.spent == NOTHING else "delivery")


def test_a_child_of_its_parents_number_has_no_budget_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers give out the number 1 many times."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    account = dpf.Account.in_memory(BUDGET)
    assert account.spent.epsilon == 0.0
    assert "each forked child would spend it again" in in_child(lambda: account.spent)


def test_a_child_reserves_for_itself_whatever_its_parent_holds(url: str) -> None:
    dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(9.0, 1e-3))
    made = synthesizer(shots_per_label=2, ledger=url)
    made.generate("refund")
    held = threading.Event()
    done = threading.Event()

    def hold() -> None:
        with inside.no_draws(made):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_child(lambda: made.generate("refund").text) == "my parcel is late"
    assert 7.9 < made.spent.epsilon <= 8.0
    assert in_child(lambda: made.generate("refund").text).startswith("BudgetExceeded")
    assert in_child(lambda: asyncio.run(made.agenerate("delivery")).text) == "my parcel is late"
    done.set()
    thread.join()
    assert made.generate("refund").text == "my parcel is late"  # the parent's own reservation stands


def test_a_child_that_is_forked_during_a_run_has_a_run_of_its_own(url: str) -> None:
    dpf.BudgetLedger.open(url).create("tickets", dpf.PrivacyBudget(9.0, 1e-3))
    made, told = synthesizer(ledger=url), list[str]()

    def meanwhile(one: dpf.Demonstration) -> None:
        told.append(in_child(lambda: made.generate(one.label).text))

    assert len(made.generate_all(on_demonstration=meanwhile)) == 2
    assert told == ["my parcel is late"] * 2
    assert made.account is not None
    assert [row["act"] for row in made.account.history()].count("reserve") == 4
