"""HTTP to one address, and to no other: no environment variable is read, and no redirect is followed."""

from __future__ import annotations

import ssl
from collections.abc import KeysView
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from dpfewshot.errors import BackendError, MissingExtra

if TYPE_CHECKING:
    import httpcore


@dataclass(frozen=True)
class Response:
    """What a server answered.

    Attributes:
        status: the HTTP status.
        retry_after: seconds after which the server wants to be asked again; 0 if it does not say.
        content: the body.
    """

    status: int
    retry_after: float
    content: bytes


class Withheld:
    """Values by name that no representation shows: keys and passwords. May be passed on with `**`."""

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

    It is `httpcore`, the layer under httpx: it has no cookies, redirects, `.netrc` or proxies of the
    environment, and what instruments httpx does not see it. TLS trusts certifi's authorities or
    `ca_bundle`, never SSL_CERT_FILE, and its keys are not logged to SSLKEYLOGFILE.

    Every request has a connection of its own: what a server or a proxy sends after one answer would be
    read as the answer to the next request, and one record's vector become another's.

    Args:
        address: the server's.
        api_key: sent as a bearer token; None sends none.
        proxy: the address of an HTTP proxy, user and password included; None connects directly.
        ca_bundle: a file or folder of PEM certificates to trust, in place of certifi's.

    Raises:
        MissingExtra: httpcore is not installed.
        BackendError: an address, a key or a bundle that cannot be used. Quotes no key.
    """

    def __init__(
        self, address: SplitResult, api_key: str | None, *, proxy: str | None, ca_bundle: str | None
    ) -> None:
        try:
            import httpcore
        except ImportError as error:
            raise MissingExtra("OpenAICompatible", "openai") from error
        encrypted = address.scheme == "https"
        context = _trusting(ca_bundle) if encrypted or proxy is not None else None
        headers = [(b"Host", address.netloc.encode()), (b"User-Agent", b"dpfewshot")]
        if api_key is not None:
            headers.append((b"Authorization", _bearer(api_key)))
        pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            proxy=None if proxy is None else _proxy(proxy, context),
            max_connections=None,
            max_keepalive_connections=0,
        )
        self._withheld = Withheld(pool=pool, headers=headers)
        self.failures: tuple[type[Exception], ...] = (httpcore.NetworkError, httpcore.ProtocolError)

    async def request(self, method: str, url: str, body: bytes | None) -> Response:
        """Send one request and read its whole answer, whatever its status.

        Raises:
            Exception: one of `failures`, and whatever else the client library raises.
        """
        content_type = [] if body is None else [(b"Content-Type", b"application/json")]
        headers = [*self._withheld["headers"], *content_type]
        found = await self._withheld["pool"].request(method, url, headers=headers, content=body)
        told = {name.lower(): value for name, value in found.headers}.get(b"retry-after", b"")
        return Response(found.status, float(told) if told.isdigit() else 0.0, found.content)

    async def close(self) -> None:
        """Close the connections."""
        await self._withheld["pool"].aclose()


def server_address(url: str) -> SplitResult:
    """The parts of a server's address.

    Raises:
        BackendError: it is none. The message does not quote it: it may hold a password.
    """
    parts = _split(url, "base_url", "http://localhost:8000/v1")
    if "@" in parts.netloc:
        raise BackendError("base_url holds a user or password: give a key as api_key instead")
    return parts


def _split(url: str, name: str, example: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and url.isascii()
        _ = parts.port  # reading it raises where it is no number
    except ValueError:
        sound = False
    if not sound:
        raise BackendError(f"{name} is not an http or https address in ASCII; an example: {example}")
    return parts


def _bearer(api_key: str) -> bytes:
    # A key that was read from a file often ends in a newline, which the client library would quote.
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise BackendError("api_key is empty, or holds a space, a line end or what is not ASCII")
    return f"Bearer {api_key}".encode()


def _proxy(url: str, context: ssl.SSLContext | None) -> httpcore.Proxy:
    import httpcore

    parts = _split(url, "proxy", "http://proxy:3128")
    user = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    place = parts.netloc.rpartition("@")[2]
    return httpcore.Proxy(
        f"{parts.scheme}://{place}", auth=user, ssl_context=context if parts.scheme == "https" else None
    )


def _trusting(ca_bundle: str | None) -> ssl.SSLContext:
    """A context that checks names and certificates; `ssl.create_default_context` reads the environment."""
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
