"""Requests to one server: admitted, sent to one address and no other, and retried if that can help.

A request without an answer raises a `Fault`, which the caller turns into a row of NaN or a `BackendError`:

    Fault            a lasting status that does not depend on the request: another key, a redirect
    ├── Refused      the server rejects this request (400, 413, 422)
    ├── Absent       it has no such page or model (404, 405, 501)
    └── Unanswered   retries or time are used up
        └── Overloaded   and a status reported overload (429, 503)

None quotes a server's answer to a private request: servers quote prompts in their errors.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from dpfewshot.errors import BackendError, needs_extra

if TYPE_CHECKING:
    import httpcore2

Result = TypeVar("Result")

ATTEMPTS = 5
"""The most attempts of a request."""

FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0
"""Seconds before the first retry, doubled for each further one up to the longest, all with jitter."""

PATIENCE = 5
"""An answer is waited for this many timeouts: an abandoned request keeps the server busy."""

OK, REDIRECTS = 200, range(300, 400)

REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses of a request at fault: never retried."""

ABSENT: Final = frozenset({404, 405, 501})
"""Statuses of a missing page or model."""

OVERLOAD: Final = frozenset({429, 503})
"""Statuses that other requests cause: a quota or a full queue."""

TRANSIENT: Final = OVERLOAD | {408, 409, 425} | (frozenset(range(500, 600)) - ABSENT)
"""Statuses after which a retry may succeed."""

TEXTS: Final = "texts"
"""The kind of requests that tokenise and detokenise."""

_TOGETHER, _ALONE, _PATIENT = "together", "alone", "alone and patient"
_admitted: ContextVar[str | None] = ContextVar("_admitted", default=None)
"""How the running task, or the task that started it, was admitted."""

_jitter = secrets.SystemRandom()


# ---- faults ----------------------------------------------------------------------------------------------


class Fault(Exception):
    """A request without an answer. Its text says what the server does, and reveals nothing of the request."""

    retryable = False

    def error(self, server: str) -> BackendError:
        """Return the error for this fault of a public request."""
        return BackendError(f"{server} {self}", retryable=self.retryable)


class Refused(Fault):
    """The server rejects this request; a retry would fail too.

    Attributes:
        message: the server's text if the request was public; else empty.
    """

    def __init__(self, message: str) -> None:
        super().__init__("refuses a public request")
        self.message = message


class Absent(Fault):
    """The server has no such page or model."""


class Unanswered(Fault):
    """Retries or time are used up.

    Attributes:
        delay: seconds that the server asks to wait before a retry.
    """

    retryable = True

    def __init__(self, cause: str, *, delay: float = 0.0) -> None:
        super().__init__(f"does not answer: {cause}")
        self.cause = cause
        self.delay = delay


class Overloaded(Unanswered):
    """Retries or time are used up, and a status reported overload."""


class Malformed(Exception):
    """An answer of an undocumented form; retried."""


# ---- admission -------------------------------------------------------------------------------------------


class Gate:
    """Admits requests of one kind at a time to a server, up to a limit, or a single request alone.

    Args:
        limit: the most requests in flight, at least 1. May be lowered later.
        replicas: the gates of all replicas of the server, to which this one is added; None if it has none.
    """

    def __init__(self, limit: int, replicas: list[Gate] | None = None) -> None:
        self.limit = limit
        self._replicas = [] if replicas is None else replicas
        self._replicas.append(self)
        self._kind: Hashable = None
        self._under_way = 0
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    def together(self, kind: Hashable) -> AbstractAsyncContextManager[None]:
        """Wait for a place among requests of this kind. A task that is admitted already does not wait."""
        return self._admission(_TOGETHER, [self], kind)

    def alone(self, *, everywhere: bool = False, patient: bool = False) -> AbstractAsyncContextManager[None]:
        """Wait until no request is in flight, ahead of all that wait in `together`, and admit nothing else.

        Statuses of overload are retried within for the whole timeout, in any number of attempts. Do not enter
        it within `together`: it would wait for itself.

        Args:
            everywhere: whether to wait for the requests to all replicas, and not only to this server.
            patient: whether to retry all failures in that way, refusals included. For public requests, to a
                server that may still be busy with abandoned requests, or restart after a crash.
        """
        # All tasks enter the gates in one order, so no two of them wait for each other.
        gates = self._replicas if everywhere else [self]
        return self._admission(_PATIENT if patient else _ALONE, gates, object())

    @property
    def is_alone(self) -> bool:
        """Whether the running task was admitted by `alone`."""
        return _admitted.get() in {_ALONE, _PATIENT}

    @asynccontextmanager
    async def _admission(self, way: str, gates: list[Gate], kind: Hashable) -> AsyncIterator[None]:
        inside = _admitted.get()
        async with AsyncExitStack() as entered:
            for gate in gates if inside is None else ():
                await gate._enter(kind, first=way != _TOGETHER)  # noqa: SLF001 - of the same class
                entered.callback(gate._leave)  # noqa: SLF001
            token = _admitted.set(inside if inside is not None and way == _TOGETHER else way)
            try:
                yield
            finally:
                _admitted.reset(token)

    async def _enter(self, kind: Hashable, *, first: bool) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.insert(0 if first else len(self._waiting), (kind, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted and cancelled at the same moment
                self._under_way -= 1
            self._admit()
            raise

    def _leave(self) -> None:
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        """Admit from the front of the queue as many as the rules allow."""
        while self._waiting:
            kind, turn = self._waiting[0]
            if not turn.cancelled():
                if self._under_way and (kind != self._kind or self._under_way >= self.limit):
                    return
                self._kind = kind
                self._under_way += 1
                turn.set_result(None)
            self._waiting.popleft()


# ---- requests --------------------------------------------------------------------------------------------


class Client:
    """An HTTP/1.1 client of one server, used in one event loop.

    It uses `httpcore2`, the layer below httpx2, which has no cookies and no redirects, ignores `.netrc` and
    the environment's proxies, and is invisible to httpx instrumentation. TLS trusts certifi's authorities or
    `ca_bundle`, never SSL_CERT_FILE, and logs no keys to SSLKEYLOGFILE.

    Every request opens a connection. On a reused one, whatever a server or proxy sends after an answer would
    be read as the answer to the next request: one record's vector would become another's.

    Args:
        base_url: the base of the OpenAI-compatible endpoints, usually ending in "/v1".
        gate: admits requests; the clock of a waiting request has not started.
        timeout: seconds from a request's first attempt during which it is retried; an attempt is abandoned
            after five times as long. It applies to each request and never to a whole draw: whether a deadline
            is met must not depend on how many prompts were drawn.
        api_key, proxy, ca_bundle: see `OpenAICompatible`; a proxy's address may hold user and password.

    Attributes:
        root: `base_url` without "/v1".
        host: the server's host and port, for messages.
    """

    def __init__(
        self,
        base_url: str,
        *,
        gate: Gate,
        timeout: float,
        api_key: str | None,
        proxy: str | None,
        ca_bundle: str | None,
    ) -> None:
        with needs_extra("OpenAICompatible", "openai"):
            import httpcore2
        address = server_address(base_url)
        self.base = base_url.rstrip("/")
        self.root = self.base.removesuffix("/v1")
        self.host = address.netloc
        self.gate = gate
        self._timeout = timeout
        context = _trusting(ca_bundle) if address.scheme == "https" or proxy is not None else None
        headers = [(b"Host", address.netloc.encode()), (b"User-Agent", b"dpfewshot")]
        if api_key is not None:
            headers.append((b"Authorization", _bearer(api_key)))
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(proxy, context),
            max_connections=None,
            max_keepalive_connections=0,
        )
        self._failures = (httpcore2.NetworkError, httpcore2.ProtocolError)

        async def send(url: str, content: bytes | None) -> httpcore2.Response:
            if content is None:
                return await pool.request("GET", url, headers=headers)
            content_type = (b"Content-Type", b"application/json")
            return await pool.request("POST", url, headers=[*headers, content_type], content=content)

        # No attribute holds the key or a password, so that no representation shows them.
        self._send, self.close = send, pool.aclose

    async def get(self, url: str) -> Any:
        """Return the JSON at a URL; None if there is no such page. Otherwise like `ask`."""
        try:
            return await self.ask(url, None, lambda answer: answer, public=True)
        except (Absent, Refused):
            return None

    async def ask(
        self,
        url: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], Result],
        *,
        public: bool = False,
        kind: Hashable = TEXTS,
    ) -> Result:
        """Send a JSON body, or ask for a page without one, and read the JSON answer; a `Fault` without one.

        Args:
            read: turns the answer into a result, or raises `Malformed`, which is retried like a failure.
            public: whether the request holds nothing private, so that a refusal may be quoted.
            kind: requests of different kinds are never in flight together.
        """
        send = partial(self._send, url, None if body is None else json.dumps(body).encode())
        async with self.gate.together(kind):
            loop = asyncio.get_running_loop()
            start = loop.time()
            attempt, overloaded, patient = 0, False, _admitted.get() == _PATIENT
            while True:
                found = await self._attempt(
                    send, read, start + self._timeout * PATIENCE - loop.time(), public
                )
                if not isinstance(found, Fault):
                    return found
                if isinstance(found, Refused) and patient:
                    found = Unanswered("a refusal")
                if not isinstance(found, Unanswered):
                    raise found
                attempt += 1
                overloaded = overloaded or isinstance(found, Overloaded)
                exhausted = attempt >= ATTEMPTS and not patient and not (overloaded and self.gate.is_alone)
                backoff = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (attempt - 1)) * _jitter.uniform(0.5, 1.5)
                delay = max(backoff, found.delay)
                if exhausted or loop.time() + delay >= start + self._timeout:
                    raise Overloaded(found.cause) if overloaded else found
                await asyncio.sleep(delay)

    async def _attempt(
        self,
        send: Callable[[], Awaitable[httpcore2.Response]],
        read: Callable[[Any], Result],
        seconds: float,
        public: bool,
    ) -> Result | Fault:
        """Send once. A fault is returned: raised here, it would carry the request along as its context."""
        try:
            async with asyncio.timeout(seconds):
                found = await send()
            return read(json.loads(found.content)) if found.status == OK else _fault_of(found, public)
        except TimeoutError:
            return Unanswered("timeout")
        except (ValueError, Malformed):
            return Unanswered("an answer of an undocumented form")
        except self._failures:
            return Unanswered("the connection failed")
        except Exception as error:  # noqa: BLE001 - a client library's exceptions may quote the request
            return Unanswered(f"the client library failed ({type(error).__name__})")


def _fault_of(found: httpcore2.Response, public: bool) -> Fault:
    """Return the fault that a status other than 200 means, in our own words."""
    cause = f"status {found.status}"
    if found.status in REFUSALS:
        return Refused(found.content.decode(errors="replace")[:4096] if public else "")
    if found.status in ABSENT:
        return Absent("has no such page, or does not know the model")
    if found.status in REDIRECTS:
        cause += ", a redirect, which is not followed: use the address that it leads to"
    if found.status not in TRANSIENT:
        return Fault(f"answered {cause}")
    delay = {name.lower(): value for name, value in found.headers}.get(b"retry-after", b"")
    seconds = float(delay) if delay.isdigit() else 0.0
    return (Overloaded if found.status in OVERLOAD else Unanswered)(cause, delay=seconds)


# ---- addresses -------------------------------------------------------------------------------------------


def server_address(url: str) -> SplitResult:
    """Return the parts of a server's address. No error quotes it, since it may hold a password."""
    parts = _split(url, "base_url", "http://localhost:8000/v1")
    if "@" in parts.netloc:
        raise BackendError("base_url holds a user or password: pass a key as api_key instead")
    if parts.query or parts.fragment:
        raise BackendError("base_url must end with its path, such as /v1")
    return parts


def _split(url: str, name: str, example: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname)
        sound = sound and url.isascii() and url.isprintable() and " " not in url
        _ = parts.port  # raises if it is not a number
    except ValueError:
        sound = False
    if not sound:
        raise BackendError(f"{name} is not an http or https address in ASCII; an example: {example}")
    return parts


def _bearer(api_key: str) -> bytes:
    # A key read from a file often ends in a newline, and the client library's error would quote the key.
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise BackendError(
            "api_key is empty, or holds a space, a newline or a character outside of printable ASCII"
        )
    return f"Bearer {api_key}".encode()


def _proxy(url: str, context: ssl.SSLContext | None) -> httpcore2.Proxy:
    import httpcore2

    parts = _split(url, "proxy", "http://proxy:3128")
    user = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    place = parts.netloc.rpartition("@")[2]
    return httpcore2.Proxy(
        f"{parts.scheme}://{place}", auth=user, ssl_context=context if parts.scheme == "https" else None
    )


def _trusting(ca_bundle: str | None) -> ssl.SSLContext:
    """Return a context that checks names and certificates, without the environment's settings."""
    import certifi

    path = Path(certifi.where() if ca_bundle is None else ca_bundle)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # `create_default_context` would read the environment
    try:
        if path.is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError):
        raise BackendError(f"ca_bundle={ca_bundle!r} holds no certificates in PEM form") from None
    return context
