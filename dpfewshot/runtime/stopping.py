"""How a caller stops a generation, and the one thread that works for asynchronous callers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

Result = TypeVar("Result")

POLL: Final = 0.05
"""Seconds after which a thread that waits for a lock or a worker checks whether it was stopped."""


class Stopped(BaseException):
    """Ends a generation whose caller was cancelled. Like asyncio's own, it is not an `Exception`."""


class StopSignal(threading.Event):
    """Set by the event loop; the thread checks it between two tokens, which is a public schedule."""

    def check(self) -> None:
        """Raise `Stopped` if the thread was asked to stop."""
        if self.is_set():
            raise Stopped

    @contextmanager
    def holding(self, lock: threading.RLock) -> Iterator[None]:
        """Hold the lock, or stop waiting for it as `check` does."""
        self.check()
        while not lock.acquire(timeout=POLL):
            self.check()
        try:
            yield
        finally:
            lock.release()  # this very one: a child that was forked meanwhile has put another in its place


def new_thread() -> ThreadPoolExecutor:
    """One thread, started on first use. It runs one piece of work after another."""
    return ThreadPoolExecutor(1, thread_name_prefix="dpfewshot")


async def in_thread(thread: ThreadPoolExecutor, work: Callable[[StopSignal], Result]) -> Result:
    """Run work in the thread and await its result.

    If the awaiting task is cancelled, queued work is dropped. Running work is asked to stop and awaited, so
    that afterwards nothing runs and no lock is held.
    """
    signal = StopSignal()
    # in the caller's context, so that spans and request ids are the caller's
    running: Future[Result] = thread.submit(contextvars.copy_context().run, work, signal)
    outcome = asyncio.wrap_future(running)
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        signal.set()
        # asyncio would log an exception that is never retrieved
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        running.cancel()
        while not outcome.done():
            with suppress(asyncio.CancelledError):  # a second one must not leave the work running
                await asyncio.wait([outcome])
        raise
