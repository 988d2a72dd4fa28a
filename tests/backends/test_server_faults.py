"""What a client makes of a server's faults: a retry, a prompt's row of NaN, or an error without a prompt."""

from __future__ import annotations

import json
import logging
import traceback

import numpy as np
import pytest

from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.servers import client
from dpfewshot.errors import BackendError
from tests.support.scripted_servers import LlamaServer
from tests.support.server_faults import PROMPT, SECRET, changed, faults, hurried, spoil, top_of
from tests.support.servers import scripted

FIXTURES = (faults, hurried)
KEY = "sk-of-the-tests"


@pytest.fixture(scope="module")
def proxy():
    """A script of llama-server; test_servers.py asks a real one, whose vocabulary takes seconds to send."""
    script = LlamaServer()

    def answer(path, body):
        status, headers, found = script(path, body)
        return status, headers, json.dumps(found).encode()

    with scripted(answer) as server:
        yield server


@pytest.fixture(scope="module")
def through_proxy(proxy):
    with OpenAICompatible(proxy.base_url, "served", KEY, verify=False, timeout=30) as connected:
        yield connected


@pytest.fixture(scope="module")
def prompts(through_proxy):
    return [through_proxy.tokenize(text) for text in (PROMPT, "Where", "The capital of France is")]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda _: None, id="dropped"),
        pytest.param(lambda real: (200, {"content-length": 10**7}, real()[2][:1000]), id="half a reply"),
        pytest.param(lambda _: (429, {"retry-after": "0"}, {}), id="429"),
        pytest.param(lambda _: (500, {}, {"error": PROMPT}), id="500"),
        pytest.param(lambda _: (200, {}, b"{"), id="no JSON"),
        pytest.param(
            lambda real: changed(real(), lambda found: found["completion_probabilities"].clear()),
            id="no choice",
        ),
        pytest.param(
            lambda real: changed(real(), lambda f: f["completion_probabilities"].append({})), id="two choices"
        ),
    ],
)
def test_what_passes_is_retried_and_changes_nothing(through_proxy, prompts, faults, fault):
    expected = through_proxy.next_token_logprobs(prompts[1:2], [5, 6])
    failures = [fault]
    seen = faults(lambda _, real: failures.pop()(real) if failures else real())
    assert through_proxy.next_token_logprobs(prompts[1:2], [5, 6]).tobytes() == expected.tobytes()
    assert len(seen) == 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda _: (400, {}, {"error": PROMPT}), id="refused"),
        pytest.param(lambda real: changed(real(), lambda found: spoil(found, float("nan"))), id="NaN"),
        pytest.param(lambda real: changed(real(), lambda found: spoil(found, None)), id="null"),
        pytest.param(lambda real: changed(real(), lambda found: spoil(found, 3.0)), id="above 0"),
        pytest.param(lambda real: changed(real(), lambda found: top_of(found).pop()), id="missing"),
    ],
)
def test_what_one_prompt_causes_is_its_row_of_nan(through_proxy, prompts, faults, fault, monkeypatch):
    monkeypatch.setattr(client, "ATTEMPTS", 2)
    faults(lambda body, real: fault(real) if body["prompt"] == prompts[0] else real())
    found = through_proxy.next_token_logprobs(prompts[:2])
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("case", [(503, True), (429, True), (None, True), (401, False), (404, False)])
def test_a_server_that_is_gone_fails_everything_and_says_nothing_of_prompts(
    hurried, prompts, faults, caplog, case
):
    status, retryable = case
    caplog.set_level(logging.DEBUG)
    faults(lambda *_: None if status is None else (status, {}, {"error": {"message": PROMPT}}))
    with pytest.raises(BackendError) as raised:
        hurried.next_token_logprobs(prompts, [5])
    assert raised.value.retryable is retryable
    told = "".join(traceback.format_exception(raised.value)) + caplog.text + repr(hurried)
    cause = raised.value
    while cause is not None:  # what is suppressed in a traceback is still carried along
        told += repr(vars(cause)) + repr(cause)
        cause = cause.__context__
    for secret in (SECRET, KEY, str(prompts[0])[1:-1]):
        assert secret not in told
    assert "http" not in caplog.text
