"""An event loop in a thread of its own: usable from any thread, also from inside a running loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

Result = TypeVar("Result")

TALKATIVE = ("httpcore", "h11", "anyio", "asyncio")
"""How loggers begin that write requests, prompts included, or how many there are."""

SUPPRESSING = (
    "_SUPPRESS_INSTRUMENTATION_KEY",
    "_SUPPRESS_HTTP_INSTRUMENTATION_KEY",
    "suppress_instrumentation",
)
"""Where OpenTelemetry keeps the keys that its instrumentations look for, or the key itself."""


class Worker:
    """A thread that runs coroutines.

    What it sends is private, so nothing that client libraries log in its thread gets to a handler,
    whatever level the application asks for. Their logging in other threads is left alone. For the same
    reason work has none of its caller's context variables: whatever traces the caller finds no span to
    hang requests on, and OpenTelemetry is told to make none.
    """

    def __init__(self) -> None:
        self._silenced: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dpfewshot-server", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and wait for its result; an interrupt of the waiting thread cancels it."""
        future = _untraced().run(asyncio.run_coroutine_threadsafe, work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def silence(self) -> None:
        """Drop what the client libraries log in this thread, as far as they are imported by now."""
        names = {name for name in logging.root.manager.loggerDict if name.startswith(TALKATIVE)}
        for name in names - self._silenced:
            logging.getLogger(name).addFilter(self._is_elsewhere)
        self._silenced |= names

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what is under way, whose callers get a `CancelledError`, run a last thing, and stop.

        Garbage may be collected in the thread itself, which cannot wait for itself: then it only stops.
        """
        if threading.current_thread() is self._thread:
            last.close()
            self._loop.stop()
            return
        self.run(_cancel_others())
        self.run(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for name in self._silenced:
            logging.getLogger(name).removeFilter(self._is_elsewhere)

    def _is_elsewhere(self, _record: logging.LogRecord) -> bool:
        return threading.get_ident() != self._thread.ident


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _untraced() -> Context:
    """An empty context, but for OpenTelemetry's keys that turn instrumentation off, where it is installed."""
    context = Context()
    context.run(_suppress_instrumentation)
    return context


def _suppress_instrumentation() -> None:
    try:
        from opentelemetry import context as telemetry
    except ImportError:
        return
    current = telemetry.get_current()
    for key in SUPPRESSING:
        current = telemetry.set_value(getattr(telemetry, key, key), True, current)
    telemetry.attach(current)
