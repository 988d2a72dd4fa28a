"""Callers of the example service cannot time a generation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory
from tests.support.scripts import Sentence

httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install '.[examples]'")
pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[examples]'")

from examples.service.app import create_app  # noqa: E402 - these need fastapi
from examples.service.pool import NotReady, Pool  # noqa: E402

pytestmark = pytest.mark.slow

UNITS = 30
SLOWER = 0.3
"""Seconds that a long record adds to a generation."""

PACE = 1.0


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


def synthesizer(backend: SlowForLongRecords, *, long: bool, shots: int = 4, **ledger: str) -> dpf.Synthesizer:
    """Everybody is in every draw; one record is long, or is not."""
    texts = [*["a ticket"] * (UNITS - 1), "late " * 60 if long else "a ticket"]
    records = [dpf.Record(text, "refund") for text in texts]
    settings = {"labels": ["refund"], "prompts_per_draw": UNITS, "max_tokens": 1, "shots_per_label": shots}
    return factory.synthesizer(backend, records, **settings, **ledger)


@asynccontextmanager
async def opened(app: Any) -> AsyncIterator[Any]:
    """A caller of the running application."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        yield client


async def seen_by_a_caller(*, long: bool) -> list[tuple[int, bool]]:
    """Statuses, and whether the answer took as long as the long record does, at moments between the ticks."""
    app = create_app(lambda: synthesizer(SlowForLongRecords(), long=long), pace=PACE)
    answers = []
    async with opened(app) as client:
        start = time.monotonic()
        for moment in (0.1, 0.5, 1.5, 1.6, 2.5):
            await asyncio.sleep(start + moment * PACE - time.monotonic())
            asked = time.monotonic()
            answer = await client.post("/demonstrations/refund")
            answers.append((answer.status_code, time.monotonic() - asked > SLOWER / 2))
    return answers


def test_what_a_caller_sees_does_not_depend_on_how_long_the_model_took() -> None:
    async def both() -> list[list[tuple[int, bool]]]:
        return list(await asyncio.gather(seen_by_a_caller(long=False), seen_by_a_caller(long=True)))

    short, long = asyncio.run(both())
    assert short == long == [(503, False), (503, False), (200, False), (503, False), (200, False)]


def test_control_waiting_for_a_generation_measures_the_records() -> None:
    def seconds(*, long: bool) -> float:
        made = synthesizer(SlowForLongRecords(), long=long)
        start = time.monotonic()
        asyncio.run(made.agenerate("refund"))
        return time.monotonic() - start

    assert seconds(long=True) > seconds(long=False) + SLOWER / 2


def filled(pool: Pool, seconds: float) -> None:
    async def run() -> None:
        filling = asyncio.create_task(pool.fill())
        await asyncio.wait([filling], timeout=seconds)
        filling.cancel()

    asyncio.run(run())


def test_a_generation_that_is_late_closes_the_pool() -> None:
    """Its lateness would tell: nothing of it comes out, then or later."""
    backend = SlowForLongRecords(seconds=30)
    pool = Pool(synthesizer(backend, long=True), pace=0.2)
    threading.Timer(0.5, backend.gate.set).start()
    filled(pool, 1.0)
    assert backend.asked == 1
    with pytest.raises(dpf.BackendError, match="closed"):
        pool.take("refund")


def test_a_pool_makes_what_the_budget_allows_and_then_says_so() -> None:
    pool = Pool(synthesizer(SlowForLongRecords(), long=False, shots=2), pace=0.2, ahead=3)
    with pytest.raises(NotReady):
        pool.take("refund")
    filled(pool, 1.4)
    assert [pool.take("refund").label for _ in range(2)] == ["refund"] * 2
    with pytest.raises(dpf.BudgetExceeded):
        pool.take("refund")
    with pytest.raises(dpf.InvalidPlan):
        pool.take("praise")


def test_a_pool_keeps_no_more_than_it_is_told_to() -> None:
    pool = Pool(synthesizer(SlowForLongRecords(), long=False), pace=0.2, ahead=1)
    filled(pool, 1.2)
    pool.take("refund")
    with pytest.raises(NotReady):
        pool.take("refund")


def test_a_ledger_that_is_gone_is_503_and_nothing_is_drawn(tmp_path: Path) -> None:
    backend = SlowForLongRecords()
    folder = tmp_path / "ledger"
    folder.mkdir()
    url = f"sqlite:///{folder / 'budget.db'}"
    with dpf.BudgetLedger.open(url) as ledger:
        ledger.create("tickets", dpf.PrivacyBudget(epsilon=4, delta=1e-5))
    made = synthesizer(backend, long=False, ledger=url)
    backend.prompts = 0

    async def ask(client: Any) -> tuple[int, str]:
        answer = await client.post("/demonstrations/refund")
        return answer.status_code, answer.json().get("error", "")

    async def run() -> None:
        folder.rename(tmp_path / "elsewhere")
        async with opened(create_app(lambda: made, pace=0.5)) as client:
            await asyncio.sleep(0.75)
            assert await ask(client) == (503, "ledger")
            assert backend.prompts <= 2  # the public prompt: no draw
            (tmp_path / "elsewhere").rename(folder)
            await asyncio.sleep(1.0)
            assert await ask(client) == (200, "")

    asyncio.run(run())
