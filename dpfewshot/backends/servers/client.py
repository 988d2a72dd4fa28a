"""HTTP to one address and no other: it reads no environment variable and follows no redirect."""

from __future__ import annotations

import ssl
from collections.abc import KeysView
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from dpfewshot.errors import BackendError, MissingExtra

if TYPE_CHECKING:
    import httpcore2


@dataclass(frozen=True)
class Response:
    """A server's answer.

    Attributes:
        status: the HTTP status.
        retry_after: seconds to wait before a retry; 0 if the server does not say.
        content: the body.
    """

    status: int
    retry_after: float
    content: bytes


class Withheld:
    """Keys and passwords by name, which no representation shows. Can be unpacked with `**`."""

    __slots__ = ("_values",)

    def __init__(self, **values: Any) -> None:
        self._values = values

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._values.keys()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]


class Client:
    """An HTTP/1.1 client of one server, used in one event loop.

    It uses `httpcore2`, the layer below httpx2, which has no cookies and no redirects, ignores `.netrc` and
    the environment's proxies, and is invisible to httpx instrumentation. TLS trusts certifi's authorities or
    `ca_bundle`, never SSL_CERT_FILE, and logs no keys to SSLKEYLOGFILE.

    Every request opens a connection. On a reused one, whatever a server or proxy sends after an answer would
    be read as the answer to the next request: one record's vector would become another's.

    Args:
        address: the server's address.
        api_key: sent as a bearer token; None sends none.
        proxy: the address of an HTTP proxy, with user and password if needed; None connects directly.
        ca_bundle: a file or folder of PEM certificates to trust in place of certifi's.

    Raises:
        MissingExtra: httpcore2 is not installed.
        BackendError: an address, a key or a bundle is unusable. The message quotes no key.
    """

    def __init__(
        self, address: SplitResult, api_key: str | None, *, proxy: str | None, ca_bundle: str | None
    ) -> None:
        try:
            import httpcore2
        except ImportError as error:
            raise MissingExtra("OpenAICompatible", "openai") from error
        encrypted = address.scheme == "https"
        context = _trusting(ca_bundle) if encrypted or proxy is not None else None
        headers = [(b"Host", address.netloc.encode()), (b"User-Agent", b"dpfewshot")]
        if api_key is not None:
            headers.append((b"Authorization", _bearer(api_key)))
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(proxy, context),
            max_connections=None,
            max_keepalive_connections=0,
        )
        self._withheld = Withheld(pool=pool, headers=headers)
        self.failures: tuple[type[Exception], ...] = (httpcore2.NetworkError, httpcore2.ProtocolError)

    async def request(self, method: str, url: str, body: bytes | None) -> Response:
        """Send one request and read its whole answer, whatever its status.

        Raises:
            Exception: one of `failures`, or anything else that the client library raises.
        """
        content_type = [] if body is None else [(b"Content-Type", b"application/json")]
        headers = [*self._withheld["headers"], *content_type]
        found = await self._withheld["pool"].request(method, url, headers=headers, content=body)
        delay = {name.lower(): value for name, value in found.headers}.get(b"retry-after", b"")
        return Response(found.status, float(delay) if delay.isdigit() else 0.0, found.content)

    async def close(self) -> None:
        """Close the connections."""
        await self._withheld["pool"].aclose()


def server_address(url: str) -> SplitResult:
    """Return the parts of a server's address.

    Raises:
        BackendError: the address is invalid. The message does not quote it, since it may hold a password.
    """
    parts = _split(url, "base_url", "http://localhost:8000/v1")
    if "@" in parts.netloc:
        raise BackendError("base_url holds a user or password: pass a key as api_key instead")
    return parts


def _split(url: str, name: str, example: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and url.isascii()
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
    """Return a context that checks names and certificates, without the environment's settings.

    `ssl.create_default_context` would read them.
    """
    import certifi

    path = Path(certifi.where() if ca_bundle is None else ca_bundle)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if path.is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError):
        raise BackendError(f"ca_bundle={ca_bundle!r} holds no certificates in PEM form") from None
    return context
