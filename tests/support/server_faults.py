"""Faults that a proxy puts in front of the module's server."""

from __future__ import annotations

import json

import pytest

from dpfewshot.backends.servers import client, server
from tests.support import inside

SECRET = "Zanzibar"
PROMPT = f"Name: {SECRET}"


@pytest.fixture
def hurried(through_proxy):
    """Gives up early: a quota is waited for as long as a request may take."""
    inside.hurry(through_proxy, 1.0)
    return through_proxy


@pytest.fixture
def faults(proxy, monkeypatch):
    """A function that installs a fault in front of `/completion`: it gets the body and the real answer."""
    monkeypatch.setattr(client, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(server, "CANARY_SECONDS", 1e9)  # by the clock it would be among what is counted
    forwarded = proxy.answer
    seen = []

    def install(fault):
        def answer(path, body):
            if not path.endswith("/completion"):
                return forwarded(path, body)
            seen.append(body)
            return fault(body, lambda: forwarded(path, body))

        proxy.answer = answer
        return seen

    yield install
    proxy.answer = forwarded


def changed(answer, change):
    status, headers, data = answer
    found = json.loads(data)
    change(found)
    return status, headers, found


def top_of(found):
    return found["completion_probabilities"][0]["top_logprobs"]


def spoil(found, value):
    top_of(found)[100]["logprob"] = value


def swap(found):
    """The log-probabilities of another model: those of the most and the least probable token exchanged."""
    top = top_of(found)
    top[0]["id"], top[-1]["id"] = top[-1]["id"], top[0]["id"]
