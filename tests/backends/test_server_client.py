"""Which requests are under way together, where they go, and by which way."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import ssl
import subprocess
from urllib.parse import urlsplit

import pytest

from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.servers import client
from dpfewshot.backends.servers.client import Gate
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.crash_reporter import collected
from tests.support.scripted_servers import VLLM, LlamaServer
from tests.support.servers import forward, scripted


class Watched:
    """A gate whose guests are counted."""

    def __init__(self, limit):
        self.gate = Gate(limit)
        self.inside = []
        self.seen = []

    async def together(self, kind, seconds=0.0):
        async with self.gate.together(kind):
            await self._stay(kind, seconds)

    async def alone(self, seconds=0.0):
        async with self.gate.alone():
            await self._stay("alone", seconds)

    async def _stay(self, kind, seconds):
        self.inside.append(kind)
        self.seen.append(list(self.inside))
        try:
            await asyncio.sleep(seconds)
        finally:
            self.inside.remove(kind)


def test_kinds_never_mix_and_exclusive_requests_stay_alone_under_cancellation():
    async def play(seed):
        source = random.Random(seed)
        watched = Watched(3)
        tasks = []
        for _ in range(60):
            seconds = source.choice([0.0, 0.001])
            kind = source.choice(["a", "b", "alone"])
            work = watched.alone(seconds) if kind == "alone" else watched.together(kind, seconds)
            tasks.append(asyncio.create_task(work))
            if source.random() < 0.3:
                await asyncio.sleep(0)
            if source.random() < 0.3:
                source.choice(tasks).cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        for company in watched.seen:
            assert len(set(company)) == 1
            assert len(company) <= (1 if company[0] == "alone" else 3)
        assert max(map(len, watched.seen)) > 1
        assert inside.gate_is_empty(watched.gate)
        await asyncio.wait_for(watched.together("c"), 1)

    for seed in range(20):
        asyncio.run(play(seed))


def test_who_is_alone_goes_before_all_that_wait():
    async def play():
        watched = Watched(1)
        waiting = [asyncio.create_task(watched.together("a", 0.001)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(watched.alone(), *waiting)
        assert watched.seen == [["a"], ["alone"], ["a"], ["a"]]

    asyncio.run(play())


def test_who_is_in_has_a_place_for_what_it_starts():
    async def play():
        gate = Gate(1)

        async def inner():
            async with gate.together("other"):
                return gate.is_alone

        async with gate.alone(), gate.alone():
            assert await asyncio.gather(inner(), inner()) == [True, True]
        async with gate.together("a"):
            assert await asyncio.gather(inner(), inner()) == [False, False]
        assert not gate.is_alone

    asyncio.run(asyncio.wait_for(play(), 5))


KEY = "sk-of-the-tests"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(client, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(client, "ATTEMPTS", 2)


@pytest.fixture
def server():
    with scripted(LlamaServer()) as running:
        yield running


def ask(url, **options):
    """Connect and ask for one prompt."""
    with OpenAICompatible(url, "served", KEY, verify=False, **options) as backend:
        return backend.next_token_logprobs([[1, 2]], [5])


@pytest.fixture
def proxy():
    """An HTTP proxy that forwards; requests to it have whole addresses."""

    def answer(address, body):
        parts = urlsplit(address)
        return forward(f"http://{parts.netloc}/v1")(parts.path, body)

    with scripted(answer) as running:
        yield running


def test_no_proxy_of_the_environment_sees_a_request(server, proxy, monkeypatch):
    address = proxy.base_url.removesuffix("/v1")
    for name in PROXIES:
        monkeypatch.setenv(name, address)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    ask(server.base_url)
    assert proxy.headers == []
    assert f"Bearer {KEY}" in server.keys


def test_a_proxy_that_is_given_is_used_for_every_request(server, proxy):
    address = proxy.base_url.removesuffix("/v1").replace("http://", "http://user:p%40ss@")
    direct = ask(server.base_url)
    count = len(server.headers)
    assert ask(server.base_url, proxy=address).tobytes() == direct.tobytes()
    assert len(proxy.headers) == len(server.headers) - count == count
    assert {headers["proxy-authorization"] for _, headers in proxy.headers} == {"Basic dXNlcjpwQHNz"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "once connected"])
def test_no_redirect_is_followed(server, status, late):
    with scripted(LlamaServer()) as elsewhere:
        moved = (status, {"location": elsewhere.base_url.removesuffix("/v1") + "/completion"}, {})
        if not late:
            server.answer = lambda *_: moved
            with pytest.raises(BackendError, match="redirect, which is not followed"):
                ask(server.base_url)
        else:
            with OpenAICompatible(server.base_url, "served", KEY, verify=False) as backend:
                server.answer = lambda *_: moved
                with pytest.raises(BackendError, match="redirect, which is not followed"):
                    backend.next_token_logprobs([[1, 2]], [5])
        assert elsewhere.headers == []


def test_no_cookie_and_no_key_of_the_environment_is_sent(server, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    answer = server.answer

    def sets_cookies(path, body):
        status, headers, content = answer(path, body)
        return status, {**headers, "set-cookie": "session=1; Path=/"}, content

    server.answer = sets_cookies
    with OpenAICompatible(server.base_url, "served", verify=False) as backend:
        backend.next_token_logprobs([[1, 2]], [5])
    names = {name for _, headers in server.headers for name in headers}
    assert names == {"host", "user-agent", "content-type", "content-length"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of an authority of our own, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate to test with")
    folder = tmp_path_factory.mktemp("authority")
    made = [folder / "certificate.pem", folder / "key.pem"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(made[0]), "-keyout", str(made[1])]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)  # noqa: S607
    return made


@pytest.fixture
def encrypted(server, certificate):
    """The server's address in https."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server.base_url.replace("http://", "https://")


def test_an_authority_is_trusted_where_it_is_given(encrypted, certificate, tmp_path, monkeypatch):
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert ask(encrypted, ca_bundle=str(certificate[0])).shape == (1, 1)
    assert not (tmp_path / "keys").exists()


def test_the_environment_names_no_authority(encrypted, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("SSL_CERT_DIR", str(certificate[0].parent))
    with pytest.raises(BackendError, match="the connection failed"):
        ask(encrypted)


def test_llama_server_is_told_to_cache_no_prompt(server):
    """Its cache is on unless a request says otherwise, and moves the bits of prompts that begin alike."""
    with OpenAICompatible(server.base_url, "served") as backend:
        assert backend.batch_invariant
        alone = backend.next_token_logprobs([[1, 2, 3, 4]], [0])
        again = backend.next_token_logprobs([[1, 2, 3, 9], [1, 2, 3, 4]], [0])
    assert alone[0].tobytes() == again[1].tobytes()


def test_every_request_on_the_wire_keeps_prompts_out_of_caches():
    bodies = []
    for script, page, is_kept_out in (
        (LlamaServer(), "/completion", lambda body: body["cache_prompt"] is False),
        (VLLM(), "/v1/completions", lambda body: len(body.get("cache_salt", "")) > 20),
    ):

        def recording(path, body, script=script, page=page, is_kept_out=is_kept_out):
            if path == page:
                bodies.append(is_kept_out(body))
            return script(path, body)

        with scripted(recording) as server, OpenAICompatible(server.base_url, "served") as backend:
            backend.next_token_logprobs([[1], [2]], [5])
            backend.next_token_logprobs([[1], [2]])
    assert len(bodies) > 20
    assert all(bodies)


def test_logs_at_every_level_are_the_same_whatever_was_drawn(server, caplog):
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.NOTSET)
    told = []
    for drawn in ([[1, 2]], [[1, 2], [3] * 9, [4]]):
        caplog.clear()
        with OpenAICompatible(server.base_url, "served", KEY, verify=False) as backend:
            backend.next_token_logprobs(drawn, [5])
        told.append([(record.name, record.getMessage()) for record in caplog.records])
    assert told[0] == told[1]


URL = "http://127.0.0.1:1/v1"
SECRET_URL = f"http://me:{KEY}@host/v1"
TWICE = r"holds 127\.0\.0\.1:1 twice"
NO_ADDRESS = "base_url is an address, or a list of at least one"


@pytest.mark.parametrize(
    ("base_url", "options", "says"),
    [
        (URL, {}, "the connection failed"),
        (URL, {"proxy": f"http://me:{KEY}@127.0.0.1:1"}, "the connection failed"),
        (URL, {"proxy": f"socks5://me:{KEY}@host:1"}, "proxy is not an http or https address"),
        (
            URL,
            {"dialect": "none"},
            "^unknown dialect 'none'; choose 'auto', 'llama-server', 'vllm', 'openai'$",
        ),
        (URL, {"concurrency": 0}, "concurrency=0"),
        (URL, {"timeout": 0.0}, "timeout=0"),
        ("https://host/v1", {"ca_bundle": "none.pem"}, "ca_bundle"),
        *[
            (URL, {"api_key": key}, "api_key is empty, or holds")
            for key in (f"{KEY}\n", f"{KEY}\u00e9", f"{KEY} \x00", "")
        ],
        (SECRET_URL, {}, "base_url holds a user or password: pass a key as api_key"),
        ("http://host:port/v1", {}, "base_url is not an http"),
        ("localhost:8000", {}, "base_url is not an http"),
        ([SECRET_URL, "http://b/v1"], {}, "base_url"),
        (["http://a/v1", "http://A:80/v1/"], {}, "holds A:80 twice"),
        *[([URL, "http://127.0.0.1:1" + end], {}, TWICE) for end in ("", "/", "/v1", "//v1/", "/v1/")],
        *[(no_address, {}, NO_ADDRESS) for no_address in (None, [], [None], 7)],
    ],
)
def test_what_the_constructor_refuses_it_explains_and_quotes_no_key(base_url, options, says):
    with pytest.raises(BackendError, match=says) as raised:
        OpenAICompatible(base_url, "served", **{"api_key": KEY, **options})
    assert KEY not in collected(raised.value)
    assert raised.value.retryable == (says == "the connection failed")
