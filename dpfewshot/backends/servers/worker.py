"""An event loop in a thread of its own, usable from any thread, even within a running loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

Result = TypeVar("Result")

TALKATIVE = ("httpcore2", "h11", "anyio", "asyncio")
"""Prefixes of loggers that write requests, with prompts, or reveal their number."""

SUPPRESSING = (
    "_SUPPRESS_INSTRUMENTATION_KEY",
    "_SUPPRESS_HTTP_INSTRUMENTATION_KEY",
    "suppress_instrumentation",
)
"""Names of OpenTelemetry's keys that suppress instrumentation, or a key itself."""


class Worker:
    """A thread that runs coroutines.

    Its requests are private, so no handler sees what client libraries log in its thread, at any level.
    Their logs in other threads are unchanged. For the same reason, coroutines get none of their caller's
    context variables: a tracer finds no span to attach requests to, and OpenTelemetry's instrumentation is
    suppressed.
    """

    def __init__(self) -> None:
        self._silenced: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dpfewshot-server", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for its result; an interrupt of the waiting thread cancels it."""
        future = _untraced().run(asyncio.run_coroutine_threadsafe, work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def silence(self) -> None:
        """Drop what client libraries log in this thread, as far as they are imported already."""
        names = {name for name in logging.root.manager.loggerDict if name.startswith(TALKATIVE)}
        for name in names - self._silenced:
            logging.getLogger(name).addFilter(self._is_elsewhere)
        self._silenced |= names

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel pending work, whose callers get a `CancelledError`, run `last`, and stop.

        Garbage collection may call this in the thread itself, which cannot wait for itself and only stops.
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
    """Return an empty context, except for OpenTelemetry's keys that suppress instrumentation."""
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
