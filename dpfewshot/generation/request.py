"""Options for generating one demonstration, and how its caller stops it: threads and asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dpfewshot.generation.workers import Workers


Result = TypeVar("Result")

_POLL = 0.05
"""Seconds after which a thread that waits for a lock checks whether it was stopped."""


class Stopped(BaseException):
    """Ends a generation whose caller was cancelled. Like asyncio's own, it is not an `Exception`."""


class StopSignal:
    """Set by the event loop; the thread checks it between two tokens, which is a public schedule."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def set(self) -> None:
        """Ask the thread to stop."""
        self._stopped.set()

    def check(self) -> None:
        """Raise if the thread was asked to stop.

        Raises:
            Stopped: it was.
        """
        if self._stopped.is_set():
            raise Stopped

    def acquire(self, lock: threading.RLock) -> None:
        """Acquire the lock, or stop waiting for it.

        Raises:
            Stopped: the thread was asked to stop.
        """
        self.check()
        while not lock.acquire(timeout=_POLL):
            self.check()


class Worker:
    """One thread, started on first use. It runs one piece of work after another."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def after_fork(self) -> None:
        """Drop the thread, which exists in the parent alone."""
        self._executor = None

    async def run(self, work: Callable[[StopSignal], Result]) -> Result:
        """Run work in the thread and await its result.

        If the awaiting task is cancelled, queued work is dropped. Running work is asked to stop and awaited,
        so that afterwards nothing runs and no lock is held.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="dpfewshot")
        signal = StopSignal()
        # in the caller's context, so that spans and request ids are the caller's
        running: Future[Result] = self._executor.submit(contextvars.copy_context().run, work, signal)
        outcome = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            signal.set()
            outcome.add_done_callback(_retrieve_exception)
            running.cancel()
            while not outcome.done():
                with suppress(asyncio.CancelledError):  # a second one must not leave the work running
                    await asyncio.wait([outcome])
            raise


def _retrieve_exception(outcome: asyncio.Future[Result]) -> None:
    # asyncio would log an exception that is never retrieved
    if not outcome.cancelled():
        outcome.exception()


@dataclass(frozen=True, repr=False)
class GenerationRequest:
    """What to generate, how long, and whom to call.

    Attributes:
        label: a planned one.
        max_tokens: of the whole demonstration, `prior_tokens` included.
        prior_tokens: released by an interrupted run: fewer than `max_tokens`, none of which ends it.
        on_token: records each further token. It does not check `stop`, so that all tokens of a worker's draw
            are recorded.
        stop: checked before each draw, and between two tokens that the caller's thread releases.
        checkpointed: whether the run that the checkpoint follows makes the request.
        workers: make the draws; None: the caller's thread does.
        others: labels of the run's demonstrations to come, which keep their draws if a worker dies.
    """

    label: str
    max_tokens: int
    prior_tokens: Sequence[int] = ()
    on_token: Callable[[int], None] = lambda _token: None
    stop: StopSignal = field(default_factory=StopSignal)
    checkpointed: bool = False
    workers: Workers | None = None
    others: Sequence[str] = ()

    def released(self, token: int) -> None:
        """Record a token of the caller's thread, then check for a stop.

        Raises:
            Stopped: the request was cancelled.
        """
        self.on_token(token)
        self.stop.check()
