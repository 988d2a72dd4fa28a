"""Callers of the example service cannot time a generation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory
from tests.support.scripts import Sentence

httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install '.[examples]'")
pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[examples]'")

from examples.service.app import create_app  # noqa: E402 - these need fastapi
from examples.service.pool import BUDGET, LATE, NEW_PLAN, TAKEN_OVER, Pool  # noqa: E402

pytestmark = pytest.mark.slow

UNITS = 30
SLOWER = 0.3
"""Seconds that a long record adds to a generation."""

PACE = 2.0


class SlowForLongRecords(Sentence):
    """Needs longer for a draw that holds a long record, as language models do."""

    def __init__(self, seconds: float = SLOWER) -> None:
        super().__init__(sure=0.999999)
        self.seconds = seconds
        self.gate = threading.Event()
        self.asked = 0

    def next_token_logprobs(self, prompts: Any, support: Any = None) -> Any:
        if support is not None and max(map(len, prompts)) > 50:
            self.asked += 1
            self.gate.wait(self.seconds)
        return super().next_token_logprobs(prompts, support)


def synthesizer(backend: SlowForLongRecords, url: str, *, long: bool, shots: int = 3) -> dpf.Synthesizer:
    """Everybody is in every draw; one record is long, or is not."""
    texts = [*["a ticket"] * (UNITS - 1), "late " * 60 if long else "a ticket"]
    records = [dpf.Record(text, "refund") for text in texts]
    settings = {"labels": ["refund"], "prompts_per_draw": UNITS, "max_tokens": 1, "shots_per_label": shots}
    return factory.synthesizer(backend, records, **settings, ledger=url)


@asynccontextmanager
async def opened(app: Any) -> AsyncIterator[Any]:
    """A caller of the running application."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        yield client


async def seen_by_a_caller(url: str, *, long: bool) -> list[tuple[int, int, bool]]:
    """Statuses, texts, and whether answers took as long as the long record does, at moments between ticks."""
    app = create_app(lambda: synthesizer(SlowForLongRecords(), url, long=long), pace=PACE)
    answers = []
    async with opened(app) as client:
        start = time.monotonic()
        first = await client.get("/demonstrations", params={"label": "refund"})  # loads what serves it
        assert first.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        for moment in (0.1, 0.5, 1.5, 1.6, 2.5):
            await asyncio.sleep(start + moment * PACE - time.monotonic())
            asked = time.monotonic()
            answer = await client.get("/demonstrations", params={"label": "refund"})
            late = time.monotonic() - asked > SLOWER / 2
            answers.append((answer.status_code, len(answer.json()), late))
    return answers


def test_what_a_caller_sees_does_not_depend_on_how_long_the_model_took(tmp_path: Path) -> None:
    async def both() -> list[list[tuple[int, int, bool]]]:
        urls = [f"sqlite:///{tmp_path / name}.db" for name in ("short", "long")]
        asked = [seen_by_a_caller(url, long=long) for url, long in zip(urls, (False, True), strict=True)]
        return list(await asyncio.gather(*asked))

    short, long = asyncio.run(both())
    nothing = (503, 1, False)  # its one key says why
    assert short == long == [nothing, nothing, (200, 1, False), (200, 1, False), (200, 2, False)]


def test_control_waiting_for_a_generation_measures_the_records(tmp_path: Path) -> None:
    def seconds(name: str, *, long: bool) -> float:
        made = synthesizer(SlowForLongRecords(), f"sqlite:///{tmp_path / name}.db", long=long)
        start = time.monotonic()
        asyncio.run(made.agenerate("refund"))
        return time.monotonic() - start

    short = min(seconds(name, long=False) for name in "abc")  # one alone may meet a busy moment
    assert seconds("long", long=True) > short + SLOWER / 2


def filled(pool: Pool, seconds: float = 60) -> None:
    async def run() -> None:
        filling = asyncio.create_task(pool.fill())
        await asyncio.wait([filling], timeout=seconds)
        filling.cancel()
        await asyncio.wait([filling])

    asyncio.run(run())


def test_a_generation_that_is_late_closes_the_pool(url: str) -> None:
    """Its lateness would tell: nothing of it comes out, then or later."""
    backend = SlowForLongRecords(seconds=30)
    pool = Pool(lambda: synthesizer(backend, url, long=True), pace=0.2)
    threading.Timer(0.5, backend.gate.set).start()
    filled(pool)
    assert backend.asked == 1
    assert (pool.problem, pool.ready) == (LATE, [])


def test_a_finished_plan_is_there_at_once_and_draws_nothing(url: str) -> None:
    first, second = SlowForLongRecords(), SlowForLongRecords()
    made = Pool(lambda: synthesizer(first, url, long=False), pace=PACE)
    filled(made)
    assert made.complete
    spent = dpf.open_account(url, "tickets").spent
    read = Pool(lambda: synthesizer(second, url, long=False), pace=1000)
    assert read.problem is None
    second.prompts = 0
    filled(read)
    assert [one.text for one in read.ready] == [one.text for one in made.ready]
    assert second.prompts == 0
    assert dpf.open_account(url, "tickets").spent == spent


def test_a_plan_that_does_not_fit_is_refused_for_good(url: str) -> None:
    dpf.open_account(url, "tickets", create=dpf.PrivacyBudget(1, 1e-6))
    pool = Pool(lambda: synthesizer(SlowForLongRecords(), url, long=False), pace=PACE)
    filled(pool)
    assert (pool.problem, pool.ready) == (BUDGET, [])


def test_a_plan_for_changed_records_waits_for_a_decision(url: str) -> None:
    account = dpf.open_account(url, "tickets", create=dpf.PrivacyBudget(9, 1e-4))
    filled(Pool(lambda: synthesizer(SlowForLongRecords(), url, long=False), pace=PACE))
    spent = account.spent

    def changed(*, may_begin: bool) -> Pool:
        backend = SlowForLongRecords()
        return Pool(lambda: synthesizer(backend, url, long=False, shots=2), pace=PACE, may_begin=may_begin)

    pool = changed(may_begin=False)
    filled(pool)
    assert (pool.problem, pool.ready, account.spent) == (NEW_PLAN, [], spent)
    pool = changed(may_begin=True)
    filled(pool)
    assert pool.complete
    assert account.spent.epsilon > spent.epsilon


def test_who_has_the_texts_gets_no_second_copy(url: str) -> None:
    async def run() -> None:
        app = create_app(lambda: synthesizer(SlowForLongRecords(), url, long=False, shots=1), pace=0.5)
        async with opened(app) as client:
            await answered(client, 200, "")
            first = await client.get("/demonstrations")
            assert first.headers["Cache-Control"] == "public, max-age=300"
            tag = first.headers["ETag"]
            for known in (["*"], [f'"old", W/{tag}'], ['"old"', tag]):  # the last as two lines
                headers = [("If-None-Match", one) for one in known]
                again = await client.get("/demonstrations", headers=headers)
                assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
            for unknown in ('"old"', '"*"', tag.strip('"')):
                other = await client.get("/demonstrations", headers={"If-None-Match": unknown})
                assert other.json() == first.json()

    asyncio.run(run())


def test_a_ledger_that_is_gone_is_503_and_nothing_is_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = SlowForLongRecords()
    folder = tmp_path / "ledger"
    folder.mkdir()
    url = f"sqlite:///{folder / 'budget.db'}"

    async def run() -> None:
        app = create_app(lambda: synthesizer(backend, url, long=False, shots=1), pace=PACE)
        async with opened(app) as client:
            folder.rename(tmp_path / "elsewhere")
            backend.prompts = 0
            await answered(client, 503, "the cause: ledger")
            assert any("the ledger is gone, which is tried again" in each.message for each in caplog.records)
            assert backend.prompts <= 2  # the public prompt: no draw
            (tmp_path / "elsewhere").rename(folder)
            await answered(client, 200, "")

    asyncio.run(run())


def test_a_replica_that_cannot_look_says_so_until_it_can(url: str, caplog: pytest.LogCaptureFixture) -> None:
    opened: list[object] = []

    def open_synthesizer() -> dpf.Synthesizer:
        made = synthesizer(SlowForLongRecords(), url, long=False)
        opened.append(made)
        if len(opened) == 1:
            made.agenerate_all = taken_over  # type: ignore[method-assign]
        if len(opened) == 2:
            assert pool.problem == TAKEN_OVER
            raise dpf.LedgerError("the server refuses the password")
        return made

    async def taken_over(**_: object) -> dpf.Demonstrations:
        raise dpf.RunTakenOver("another replica")

    pool = Pool(open_synthesizer, pace=0.02)
    filled(pool, 5)
    assert "the ledger is gone, which is tried again after a pace: the server refuses" in caplog.text
    assert len(opened) >= 3


async def answered(client: Any, status: int, words: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        answer = await client.get("/demonstrations")
        if answer.status_code == status and words in answer.text:
            return
        assert time.monotonic() < deadline, answer.text
        await asyncio.sleep(0.05)
