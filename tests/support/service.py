"""Synthesizers inside a service: models that wait at a gate, tasks that are cancelled, forked children."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import dpfewshot as dpf
from tests.support import factory
from tests.support.scripts import Hooked, tickets

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
