"""One record's answer is its own row at most: no other row, error, warning or log line follows from it."""

from __future__ import annotations

import json
import logging
import time

import numpy as np
import pytest

from dpfewshot import PrivacyBudget
from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.servers import client
from dpfewshot.backends.servers.server import Server
from dpfewshot.errors import BackendError
from tests.support import factory, inside, servers
from tests.support.crash_reporter import collected
from tests.support.scripted_servers import VLLM, LlamaServer
from tests.support.scripts import Sentence
from tests.support.servers import Answers, scripted

ODD = [1, 7, 3, 9]
"""The prompt whose answers are odd."""

OTHERS = [[place, place + 1, place + 2, 9] for place in range(10, 22)]
SUPPORT = [5, 6, 8]
KEY = "sk-of-the-tests"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(client, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(client, "ATTEMPTS", 2)


def connected(server, **options):
    """Connected without being verified."""
    return OpenAICompatible(server.base_url, "served", verify=False, **({"timeout": 5.0} | options))


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
def test_what_is_sent_after_an_answer_is_no_other_prompts_row(proxy, monkeypatch):
    monkeypatch.setattr(servers, "Answers", proxy)
    with scripted(LlamaServer(slots=2)) as server, connected(server, concurrency=2) as backend:
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
def test_another_name_in_one_prompts_answer_is_its_row_of_nan(script, name):
    """Only a public prompt's answer says that the server serves another model."""
    with scripted(script()) as server, connected(server) as backend:
        alone = backend.next_token_logprobs(OTHERS, SUPPORT)
        server.answer = spoiled(script(), lambda found: found.update({name: "longer-context"}), ODD)
        beside = backend.next_token_logprobs([*OTHERS, ODD], SUPPORT)
        assert beside[:-1].tobytes() == alone.tobytes()
        told = script is VLLM or name == "model"
        assert np.isnan(beside[-1]).all() == told
        server.answer = spoiled(script(), lambda found: found.update({name: "longer-context"}))
        if told:
            with pytest.raises(BackendError, match="serves a different model"):
                backend.next_token_logprobs(OTHERS, SUPPORT)


@pytest.mark.parametrize("value", [-1.7976931348623157e308, 1.7976931348623157e308])
def test_a_value_beyond_float32_is_told_to_nobody(value):
    """Warnings are errors here, as with `-W error`."""

    def change(found):
        found["completion_probabilities"][0]["top_logprobs"][5]["logprob"] = value

    with scripted(spoiled(LlamaServer(), change, ODD)) as server, connected(server) as backend:
        found = backend.next_token_logprobs([OTHERS[0], ODD], SUPPORT)
    assert np.isfinite(found[0]).all()
    assert found[1, 0] == -np.inf if value < 0 else np.isnan(found[1]).all()


@pytest.mark.parametrize("way", ["at once", "prompt by prompt"])
def test_a_value_of_a_backends_own_beyond_float32_is_told_to_nobody(way):
    class Doubles(Sentence):
        def next_token_logprobs(self, prompts, support=None):
            private = support is not None
            if private and way == "prompt by prompt" and len(prompts) > 1:
                raise RuntimeError
            rows = super().next_token_logprobs(prompts, support).astype(np.float64)
            return np.where(np.arange(rows.shape[1]) == 1, -1e300, rows) if private else rows

    made = factory.synthesizer(Doubles(), budget=PrivacyBudget(8, 1e-5), max_tokens=4, prompts_per_draw=40)
    assert made.generate("refund").certified


def test_no_key_is_in_an_attribute():
    with scripted(LlamaServer()) as server, connected(server, api_key=KEY) as backend:
        with pytest.raises(BackendError) as raised:
            backend.next_token_logprobs([[1]], [-1])
        assert KEY not in collected(raised.value)
        assert KEY not in repr(vars(backend)) + repr(vars(inside.client(backend)))
        assert f"Bearer {KEY}" in server.keys


def test_what_is_half_made_can_be_shown():
    for kind in (OpenAICompatible, Server):
        assert kind.__name__ in repr(kind.__new__(kind))


@pytest.mark.parametrize("setting", ["logThreads", "logProcesses", "logMultiprocessing"])
def test_no_setting_of_logging_lets_requests_through(setting, caplog, monkeypatch):
    monkeypatch.setattr(logging, setting, False)
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.NOTSET)
    with scripted(LlamaServer()) as server, connected(server) as backend:
        backend.next_token_logprobs(OTHERS, SUPPORT)
    assert not [record for record in caplog.records if record.name.startswith(("httpcore2", "h11"))]


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
def test_a_server_that_tells_odd_types_is_refused(script, page, lie):
    answer = script()

    def lying(path, body):
        return (200, {}, lie) if path == page else answer(path, body)

    with scripted(lying) as server, pytest.raises(BackendError), connected(server) as backend:
        backend.next_token_logprobs(OTHERS, SUPPORT)
