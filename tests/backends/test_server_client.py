"""Requests: which are under way together, where and how they go, and what anybody can see of them."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import ssl
import subprocess
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import numpy as np
import pytest

from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.servers.client import Gate
from dpfewshot.backends.servers.server import Server
from dpfewshot.errors import BackendError
from tests.support import inside, servers
from tests.support.crash_reporter import collected
from tests.support.scripted_servers import VLLM, LlamaServer
from tests.support.servers import Answers, forward, scripted

pytestmark = pytest.mark.usefixtures("quick")

# ---- admission -------------------------------------------------------------------------------------------


class Watched:
    """A gate whose guests are counted."""

    def __init__(self, limit):
        self.gate = Gate(limit)
        self.inside = []
        self.seen = []

    async def enter(self, kind, seconds=0.0):
        async with self.gate.alone() if kind == "alone" else self.gate.together(kind):
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
            work = watched.enter(source.choice(["a", "b", "alone"]), source.choice([0.0, 0.001]))
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
        await asyncio.wait_for(watched.enter("c"), 1)

    for seed in range(20):
        asyncio.run(play(seed))


def test_who_is_alone_goes_before_all_that_wait():
    async def play():
        watched = Watched(1)
        waiting = [asyncio.create_task(watched.enter("a", 0.001)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(watched.enter("alone"), *waiting)
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


# ---- the way ---------------------------------------------------------------------------------------------

KEY = "sk-of-the-tests"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def server():
    with scripted(LlamaServer()) as running:
        yield running


def ask(url, prompts=((1, 2),), **options):
    """Connect and ask for prompts."""
    with OpenAICompatible(url, "served", KEY, verify=False, **options) as backend:
        return backend.next_token_logprobs(prompts, [5])


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
    with scripted(LlamaServer()) as elsewhere, ExitStack() as stack:
        moved = (status, {"location": elsewhere.base_url.removesuffix("/v1") + "/completion"}, {})
        if late:
            backend = stack.enter_context(OpenAICompatible(server.base_url, "served", KEY, verify=False))
        server.answer = lambda *_: moved
        with pytest.raises(BackendError, match="redirect, which is not followed"):
            _ = backend.next_token_logprobs([[1, 2]], [5]) if late else ask(server.base_url)
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
            "^unknown dialect 'none'; choose 'auto', 'llama-server', 'vllm'$",
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


# ---- what can be seen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["raiseExceptions", "logThreads", "logProcesses", "logMultiprocessing"])
def test_logs_at_every_level_are_the_same_whatever_was_drawn(server, setting, caplog, monkeypatch):
    """With every setting of logging: without `logThreads`, a record does not tell its thread."""
    monkeypatch.setattr(logging, setting, False)
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.NOTSET)
    told = []
    for drawn in ([[1, 2]], [[1, 2], [3] * 9, [4]]):
        caplog.clear()
        ask(server.base_url, drawn)
        told.append([(record.name, record.getMessage()) for record in caplog.records])
    assert told[0] == told[1]
    assert not [name for name, _ in told[0] if name.startswith(("httpcore2", "h11"))]


def test_no_key_is_in_an_attribute(server):
    with OpenAICompatible(server.base_url, "served", KEY, verify=False) as backend:
        with pytest.raises(BackendError) as raised:
            backend.next_token_logprobs([[1]], [-1])
        assert KEY not in collected(raised.value)
        assert KEY not in repr(backend) + repr(vars(backend)) + repr(vars(inside.client(backend)))
        assert f"Bearer {KEY}" in server.keys


def test_what_is_half_made_can_be_shown():
    for kind in (OpenAICompatible, Server):
        assert kind.__name__ in repr(kind.__new__(kind))


# ---- answers ---------------------------------------------------------------------------------------------

ODD = [1, 7, 3, 9]
"""The prompt whose answers are odd."""

OTHERS = [[place, place + 1, place + 2, 9] for place in range(10, 22)]
SUPPORT = [5, 6, 8]


class Late(Answers):
    """A proxy that gives up on the odd prompt, and passes on what the server says after all."""

    def write_answer(self, body):
        if (body or {}).get("prompt") != ODD:
            super().write_answer(body)
            return
        self.say(504, b"{}")
        time.sleep(0.003)
        self.say(200, json.dumps(self.server.answer(self.path, body)[2]).encode())

    def say(self, status, data):
        self.wfile.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
        self.wfile.flush()


class Doubling(Late):
    """A proxy that asked twice, and passes on both answers."""

    def say(self, status, data):
        if status == 200:
            super().say(status, data)
            super().say(status, data)


@pytest.mark.parametrize("proxy", [Late, Doubling])
def test_what_is_sent_after_an_answer_is_no_other_prompts_row(connect, proxy, monkeypatch):
    monkeypatch.setattr(servers, "Answers", proxy)
    backend = connect(LlamaServer(slots=2), verify=False, concurrency=2)
    alone = backend.next_token_logprobs(OTHERS, SUPPORT)
    for _ in range(4):
        beside = backend.next_token_logprobs([ODD, *OTHERS], SUPPORT)
        assert beside[1:].tobytes() == alone.tobytes()
        assert backend.next_token_logprobs(OTHERS, SUPPORT).tobytes() == alone.tobytes()
    assert np.isnan(beside[0]).all() == (proxy is Late)


def spoiled(script, change, prompt=None):
    """The script's answer function, with the completions of one prompt, or of all, changed."""

    def answer(path, body):
        status, headers, content = script(path, body)
        asked = (body or {}).get("prompt")
        if path.endswith(("/completion", "/completions")) and (prompt is None or prompt in (asked, *asked)):
            content = json.loads(json.dumps(content))
            change(content)
        return status, headers, content

    return answer


@pytest.mark.parametrize("script", [LlamaServer, VLLM])
@pytest.mark.parametrize("name", ["model", "system_fingerprint"])
def test_another_name_in_one_prompts_answer_is_its_row_of_nan(connect, script, name):
    """Only a public prompt's answer says that the server serves another model."""
    backend = connect(script(), verify=False)
    (server,) = backend.servers
    alone = backend.next_token_logprobs(OTHERS, SUPPORT)
    server.answer = spoiled(script(), lambda found: found.update({name: "longer-context"}), ODD)
    beside = backend.next_token_logprobs([*OTHERS, ODD], SUPPORT)
    assert beside[:-1].tobytes() == alone.tobytes()
    assert np.isnan(beside[-1]).all()
    server.answer = spoiled(script(), lambda found: found.update({name: "longer-context"}))
    with pytest.raises(BackendError, match="serves a different model"):
        backend.next_token_logprobs(OTHERS, SUPPORT)


@pytest.mark.parametrize("value", [-1.7976931348623157e308, 1.7976931348623157e308])
def test_a_value_beyond_float32_is_told_to_nobody(connect, value):
    """Warnings are errors here, as with `-W error`."""

    def change(found):
        found["completion_probabilities"][0]["top_logprobs"][5]["logprob"] = value

    backend = connect(spoiled(LlamaServer(), change, ODD), verify=False)
    found = backend.next_token_logprobs([OTHERS[0], ODD], SUPPORT)
    assert np.isfinite(found[0]).all()
    assert found[1, 0] == -np.inf if value < 0 else np.isnan(found[1]).all()


@pytest.mark.parametrize(
    ("script", "page", "lie"),
    [
        (VLLM, "/v1/models", {"data": [None]}),
        (VLLM, "/v1/models", {"data": [{"id": ["served"], "owned_by": "vllm"}]}),
        (VLLM, "/v1/models", {"data": 5}),
        (VLLM, "/v1/models", {"data": [{"id": "served", "owned_by": "vllm", "max_model_len": "512"}]}),
        (LlamaServer, "/props", [1]),
        (LlamaServer, "/props", {"total_slots": "4"}),
        (LlamaServer, "/props", {"total_slots": True}),
        (LlamaServer, "/props", {"default_generation_settings": {"n_ctx": "512"}}),
        (LlamaServer, "/props", {"default_generation_settings": {"n_ctx": -1}}),
        (LlamaServer, "/props", {"default_generation_settings": 5}),
    ],
)
def test_a_server_that_tells_odd_types_is_refused(connect, script, page, lie):
    answer = script()

    def lying(path, body):
        return (200, {}, lie) if path == page else answer(path, body)

    with pytest.raises(BackendError):
        connect(lying, verify=False).next_token_logprobs(OTHERS, SUPPORT)
