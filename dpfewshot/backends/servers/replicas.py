"""Replicas of one server: one model at several addresses, and a rule that names each prompt's replica."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import Context
from typing import Any, Final, TypeVar

import numpy as np

from dpfewshot.backends.protocol import Logprobs, Tokens
from dpfewshot.backends.servers.client import server_address
from dpfewshot.backends.servers.server import Server
from dpfewshot.errors import BackendError

RULE: Final = b"dpfewshot replica of a prompt, 1"
"""The public constant that the hash of a prompt begins with."""

TALKATIVE: Final = ("httpcore2", "h11", "anyio", "asyncio")
"""Prefixes of loggers that write requests, with prompts, or reveal their number."""

SUPPRESSING: Final = (
    "_SUPPRESS_INSTRUMENTATION_KEY",
    "_SUPPRESS_HTTP_INSTRUMENTATION_KEY",
    "suppress_instrumentation",
)
"""Names of OpenTelemetry's keys that suppress instrumentation, or a key itself."""

Result = TypeVar("Result")


def replica_of(prompt: Tokens, count: int) -> int:
    """Return the number of a prompt's replica, in 0 to `count` - 1: a function of its own tokens.

    It is SHA-256 of `RULE` and the token ids, 8 bytes each, modulo `count`.
    """
    digest = hashlib.sha256(RULE + np.asarray(prompt, dtype="<u8").tobytes()).digest()
    return int.from_bytes(digest) % count


class Replicas:
    """One process's servers, for `OpenAICompatible`: `run` waits for what the other methods return.

    Args:
        servers: the replicas, in the order of their addresses. The first tokenises, and the others are
            compared with it.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers, self.first = servers, servers[0]
        self._loop = PrivateLoop()
        self._loop.silence()

    async def open(self) -> None:
        """Connect to all, and refuse one that differs from the first."""
        for server in self.servers:  # one by one: replicas may share a machine
            await self.named(server, server.open())
            self._loop.silence()  # the first request imports further parts of the client
            expected = self.first.facts()
            for name, value in server.facts().items():
                if value != expected[name]:
                    raise self.different(server, name)

    async def rows(self, prompts: Sequence[Tokens], support: Tokens | None) -> Logprobs:
        """Return rows of log-probabilities, each from its prompt's replica.

        Every call ends with a public prompt to every replica: a dead replica fails the call whether or not
        one of the private prompts was there. Of several failures, the first in the order of addresses is
        raised, so the error depends on the replicas alone.
        """
        places: list[list[int]] = [[] for _ in self.servers]
        for place, prompt in enumerate(prompts):
            places[replica_of(prompt, len(places))].append(place)

        async def own_rows(server: Server, own: Sequence[int]) -> Logprobs:
            return await server.understood(server.rows([prompts[place] for place in own], support))

        async def checked(server: Server, rows: Logprobs | BaseException) -> Logprobs:
            if isinstance(rows, BaseException):
                raise rows
            await server.understood(server.look_at_canary(support))
            return rows

        found = await asyncio.gather(*map(own_rows, self.servers, places), return_exceptions=True)
        if len(self.servers) > 1:  # once all rows are there
            found = await asyncio.gather(*map(checked, self.servers, found), return_exceptions=True)
        width = self.first.dialect.vocabulary_size if support is None else len(support)
        rows = np.empty((len(prompts), width), dtype=np.float32)
        for own, answer in zip(places, found, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            rows[own] = answer
        return rows

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of these servers, and wait for its result."""
        try:
            return self._loop.run(self.first.understood(work))
        except CancelledError:
            raise BackendError("this OpenAICompatible was closed during the call") from None

    def different(self, server: Server, name: str) -> BackendError:
        """Return the error for a replica that differs from the first."""
        return BackendError(
            f"the replica at {server.client.host} differs from the one at {self.first.client.host} in its "
            f"{name}: serve one model with the same settings at every address"
        )

    async def named(self, server: Server, work: Coroutine[Any, Any, Result]) -> Result:
        """Await work of a server. Its errors say which of several replicas they are about."""
        try:
            return await server.understood(work)
        except BackendError as error:
            if len(self.servers) == 1:
                raise
            told = f"the replica at {server.client.host}: {error}"
            raise BackendError(told, retryable=error.retryable) from None

    def close(self) -> None:
        """Close the connections and stop the thread."""
        self._loop.close(self._close())

    async def _close(self) -> None:
        for server in self.servers:
            await server.client.close()


class PrivateLoop:
    """An event loop in a thread of its own, usable from any thread, even within a running loop.

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
        self._process = os.getpid()
        self._closing = False
        self._gate = threading.RLock()  # held to look at `_closing`, and to submit work meanwhile

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for its result; an interrupt or `close` cancels it."""
        with self._gate:
            if self._closing:  # nobody would end it
                work.close()
                raise CancelledError
            future = self._submitted(work)
        return self._result_of(future)

    def _submitted(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        context = Context()
        context.run(_suppress_instrumentation)
        return context.run(asyncio.run_coroutine_threadsafe, work, self._loop)

    @staticmethod
    def _result_of(future: Future[Result]) -> Result:
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
        A child that was forked meanwhile has no such thread, and nothing to close.
        """
        if os.getpid() != self._process:
            last.close()
            return
        if threading.current_thread() is self._thread:
            last.close()
            self._loop.stop()
            return
        with self._gate:
            self._closing = True
            cancelling = self._submitted(_cancel_others())
        self._result_of(cancelling)
        self._result_of(self._submitted(last))
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


def _suppress_instrumentation() -> None:
    try:
        from opentelemetry import context as telemetry
    except ImportError:
        return
    current = telemetry.get_current()
    for key in SUPPRESSING:
        current = telemetry.set_value(getattr(telemetry, key, key), True, current)
    telemetry.attach(current)


def check_addresses(base_urls: Sequence[str]) -> None:
    """Refuse what is no list of addresses, each there once."""
    if not base_urls or not all(isinstance(url, str) for url in base_urls):
        raise BackendError("base_url is an address, or a list of at least one address")
    seen = set()
    for url in base_urls:
        parts = server_address(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        path = re.sub("/+", "/", parts.path).rstrip("/").removesuffix("/v1")
        address = (parts.hostname, port, path)
        if address in seen:
            raise BackendError(
                f"base_url holds {parts.netloc} twice: a server is one replica, whose load one gate controls"
            )
        seen.add(address)
