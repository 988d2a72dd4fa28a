"""Requests to one server: limited in number, retried if that can help, each with its own deadline."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from dpfewshot.backends.servers.client import Client, Response, server_address
from dpfewshot.backends.servers.faults import Absent, Denied, Malformed, Overloaded, Refused, Unanswered
from dpfewshot.backends.servers.gate import Gate

Result = TypeVar("Result")

ATTEMPTS = 5
"""The most attempts of a request."""

FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0
"""Seconds before the first retry, doubled for each further one up to the longest, all with jitter."""

PATIENCE = 5
"""An answer is waited for this many timeouts: an abandoned request keeps the server busy."""

REFUSALS = frozenset({400, 413, 422})
"""Statuses of a request at fault: never retried."""

ABSENT = frozenset({404, 405, 501})
"""Statuses of a missing page or model."""

OVERLOAD = frozenset({429, 503})
"""Statuses that other requests cause: a quota or a full queue."""

TRANSIENT = OVERLOAD | {408, 409, 425}
"""Statuses besides 5xx after which a retry may succeed."""

OK, REDIRECTS = 200, range(300, 400)

SERVER_ERRORS = 500
"""The first status of a server at fault itself."""

TEXTS = "texts"
"""The kind of requests that tokenise and detokenise."""

_jitter = secrets.SystemRandom()
_patient: ContextVar[bool] = ContextVar("_patient", default=False)


@dataclass(frozen=True)
class Failure:
    """A failed attempt: the cause in our own words, and whether and when to retry."""

    cause: str
    transient: bool = True
    status: int = 0
    message: str = ""
    delay: float = 0.0


class Transport:
    """Sends requests to one server, in one event loop.

    Args:
        base_url: the base of the OpenAI-compatible endpoints, usually ending in "/v1".
        api_key, proxy, ca_bundle: see `Client`.
        gate: admits requests; the clock of a waiting request has not started.
        timeout: seconds from a request's first attempt during which it is retried; an attempt is abandoned
            after five times as long. It applies to each request and never to a whole draw: whether a deadline
            is met must not depend on how many prompts were drawn.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        gate: Gate,
        timeout: float,
        proxy: str | None = None,
        ca_bundle: str | None = None,
    ) -> None:
        address = server_address(base_url)
        self.base = base_url.rstrip("/")
        self.root = self.base.removesuffix("/v1")
        self.host = address.netloc
        self._timeout = timeout
        self._gate = gate
        self._client = Client(address, api_key, proxy=proxy, ca_bundle=ca_bundle)

    @property
    def concurrency(self) -> int:
        """The most requests in flight."""
        return self._gate.limit

    def limit_to(self, slots: int | None) -> None:
        """Lower the limit to what the server computes at once: a queue there would use up requests' time."""
        if slots is not None:
            self._gate.limit = max(1, min(self._gate.limit, slots))

    @asynccontextmanager
    async def alone(self, *, everywhere: bool, patient: bool = False) -> AsyncIterator[None]:
        """Have no other request of this backend in flight to the server within.

        Statuses of overload are retried there for the whole timeout, in any number of attempts.

        Args:
            everywhere: whether to have none in flight to any replica either.
            patient: whether to retry all failures in that way, refusals included. For public requests, to a
                server that may still be busy with abandoned requests, or restart after a crash.
        """
        async with self._gate.alone(everywhere=everywhere):
            token = _patient.set(patient)
            try:
                yield
            finally:
                _patient.reset(token)

    async def get(self, url: str) -> Any:
        """Return the JSON at a URL; None if there is no such page. Otherwise like `post`."""
        try:
            return await self._ask("GET", url, None, lambda answer: answer, public=True, kind=TEXTS)
        except (Absent, Refused):
            return None

    async def post(
        self,
        url: str,
        body: dict[str, Any],
        read: Callable[[Any], Result],
        *,
        public: bool = False,
        kind: Hashable = TEXTS,
    ) -> Result:
        """Send a JSON body and read the JSON answer.

        Args:
            url: the whole URL.
            body: sent as JSON.
            read: turns the answer into a result, or raises `Malformed`, which is retried like a failure.
            public: whether the request holds nothing private, so that a refusal may be quoted.
            kind: requests of different kinds are never in flight together.

        Raises:
            Refused: the server rejects this request.
            Unanswered: retries or time are used up.
            Absent: the server has no such page or model.
            Denied: the server wants a different key, or redirects.
        """
        return await self._ask("POST", url, body, read, public=public, kind=kind)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask(
        self,
        method: str,
        url: str,
        body: Any,
        read: Callable[[Any], Result],
        *,
        public: bool,
        kind: Hashable,
    ) -> Result:
        content = None if body is None else json.dumps(body).encode()
        async with self._gate.together(kind):
            loop = asyncio.get_running_loop()
            start = loop.time()
            end, enough = start + self._timeout * PATIENCE, start + self._timeout
            attempt, overloaded = 0, False
            while True:
                outcome = await self._attempt(method, url, content, read, end - loop.time())
                if not isinstance(outcome, Failure):
                    return outcome
                patient = _patient.get()
                if not (patient and outcome.status in REFUSALS):
                    _raise_lasting(outcome, public=public)
                attempt += 1
                overloaded = overloaded or outcome.status in OVERLOAD
                exhausted = attempt >= ATTEMPTS and not patient and not (overloaded and self._gate.is_alone)
                delay = _delay(attempt, outcome)
                if exhausted or loop.time() + delay >= enough:
                    raise Overloaded(outcome.cause) if overloaded else Unanswered(outcome.cause)
                await asyncio.sleep(delay)

    async def _attempt(
        self, method: str, url: str, content: bytes | None, read: Callable[[Any], Result], seconds: float
    ) -> Result | Failure:
        """Send once. A failure is returned, since an exception would carry the request along."""
        try:
            async with asyncio.timeout(seconds):
                found = await self._client.request(method, url, content)
            return read(json.loads(found.content)) if found.status == OK else _failure_of(found)
        except TimeoutError:
            return Failure("timeout")
        except (ValueError, Malformed):
            return Failure("an answer of an undocumented form")
        except self._client.failures:
            return Failure("the connection failed")
        except Exception as error:  # noqa: BLE001 - a client library's exceptions may quote the request
            return Failure(f"the client library failed ({type(error).__name__})")


def _raise_lasting(failure: Failure, *, public: bool) -> None:
    """Raise for a failure that a retry cannot mend."""
    if failure.status in REFUSALS:
        raise Refused(failure.message if public else "")
    if failure.status in ABSENT:
        raise Absent
    if not failure.transient:
        raise Denied(failure.cause)


def _delay(attempt: int, failure: Failure) -> float:
    """Return the seconds before the next attempt."""
    backoff: float = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (attempt - 1)) * _jitter.uniform(0.5, 1.5)
    return max(backoff, failure.delay)


def _failure_of(found: Response) -> Failure:
    status = found.status
    cause = f"status {status}"
    if status in REDIRECTS:
        cause += ", a redirect, which is not followed: use the address that it leads to"
    transient = status in TRANSIENT or (status >= SERVER_ERRORS and status not in ABSENT)
    message = found.content.decode(errors="replace")[:4096] if status in REFUSALS else ""
    return Failure(cause, transient, status, message, found.retry_after)
