"""Generation for asyncio: in a thread, which stops between two tokens when its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_LOOKS_AGAIN = 0.05
"""Seconds after which a thread that waits for its turn looks whether it was stopped."""


class Stopped(BaseException):
    """Ends a generation whose caller was cancelled. No Exception, as asyncio's own: nothing failed."""


class StopSignal:
    """Set by the event loop, looked at by the thread between two tokens: a public schedule."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def set(self) -> None:
        """Ask the thread to stop."""
        self._stopped.set()

    def check(self) -> None:
        """Stop here if that was asked for.

        Raises:
            Stopped: it was.
        """
        if self._stopped.is_set():
            raise Stopped

    def acquire(self, lock: threading.RLock) -> None:
        """Take the lock; give up waiting for it when stopped.

        Raises:
            Stopped: it was.
        """
        self.check()
        while not lock.acquire(timeout=_LOOKS_AGAIN):
            self.check()


class Worker:
    """One thread, made when it is needed: what is asked of it runs one after another."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def after_fork(self) -> None:
        """The parent's thread is not in the child."""
        self._executor = None

    async def run(self, work: Callable[[StopSignal], Result]) -> Result:
        """Run it in the thread and await what it returns.

        When the awaiting task is cancelled, work that waits for its turn is dropped; work that runs is asked
        to stop, and is waited for, so that afterwards nothing runs and nothing is held.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="dpfewshot")
        signal = StopSignal()
        # with the caller's context variables: a span or a request's id is that of the caller
        running: Future[Result] = self._executor.submit(contextvars.copy_context().run, work, signal)
        outcome = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            signal.set()
            outcome.add_done_callback(_look_at)
            if not running.cancel():
                await asyncio.wait([outcome])
            raise


def _look_at(outcome: asyncio.Future[Result]) -> None:
    # asyncio logs an exception that nobody looked at: here nobody wants it
    if not outcome.cancelled():
        outcome.exception()
