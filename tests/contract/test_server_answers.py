"""One record's answer is its own row at most: no other row, error, warning or log line follows from it."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import servers
from scripted_servers import LlamaServer
from servers import Answers, scripted

from dpfewshot.backends.openai_compatible import OpenAICompatible
from dpfewshot.backends.servers import transport

ODD = [1, 7, 3, 9]
"""The prompt whose answers are odd."""

OTHERS = [[place, place + 1, place + 2, 9] for place in range(10, 22)]
SUPPORT = [5, 6, 8]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(transport, "ATTEMPTS", 2)


def connected(server, **options):
    """Connected without being verified."""
    return OpenAICompatible(server.base_url, "served", verify=False, **({"timeout": 5.0} | options))


class Late(Answers):
    """A proxy that gives up on the odd prompt, and passes on what the server says after all."""

    def _answer(self, body):
        if (body or {}).get("prompt") != ODD:
            super()._answer(body)
            return
        self._say(504, b"{}")
        time.sleep(0.003)
        self._say(200, json.dumps(self.server.answer(self.path, body)[2]).encode())

    def _say(self, status, data):
        self.wfile.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
        self.wfile.flush()


class Doubling(Late):
    """A proxy that asked twice, and passes on both answers."""

    def _say(self, status, data):
        if status == 200:
            super()._say(status, data)
            super()._say(status, data)


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
