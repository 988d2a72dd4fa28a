"""Work in a thread whose caller is cancelled, more than once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dpfewshot.runtime.stopping import StopSignal, in_thread, new_thread


def test_a_second_cancel_does_not_leave_the_work_running() -> None:
    ended, go_on = threading.Event(), threading.Event()

    def work(_: StopSignal) -> None:
        go_on.wait(timeout=20)
        ended.set()

    async def caller() -> None:
        task = asyncio.create_task(in_thread(new_thread(), work))
        await asyncio.sleep(0.05)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(caller())
