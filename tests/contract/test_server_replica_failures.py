"""What fails at one of several replicas: a prompt's own row, or the call for all prompts."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dpfewshot import BudgetLedger, PrivacyBudget, Record, Task
from dpfewshot.backends import OpenAICompatible
from dpfewshot.backends.servers import transport
from dpfewshot.errors import BackendError, BackendNotBatchInvariant
from tests.support import factory, inside
from tests.support.processes import true_in_child
from tests.support.replicas import AT, PROMPTS, SUPPORT, connected
from tests.support.scripted_servers import VLLM, VOCABULARY, LlamaServer, weights

TASK = Task("tickets", "Do it.", "Kind", "Text", ("A",))
RECORDS = [Record(f"private {number}", "A") for number in range(40)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(transport, "ATTEMPTS", 2)


def dead(*_):
    """The answer of a server that is gone."""


@pytest.mark.parametrize("gone", [[1], [0, 1]], ids=["one", "both"])
@pytest.mark.parametrize("answer", [dead, lambda *_: (401, {}, {}), lambda *_: (400, {}, {})])
def test_a_dead_replica_fails_every_call_in_the_same_words(gone, answer):
    """Whether a private prompt was at that replica must not show."""
    with connected(LlamaServer(), LlamaServer(), verify=False, seconds=0.2) as (backend, servers):
        for replica in gone:
            servers[replica].answer = answer
        told = set()
        for prompts in (AT[0][:2], AT[1][:2], PROMPTS, [], [[]]):
            with pytest.raises(BackendError) as raised:
                backend.next_token_logprobs(prompts, SUPPORT)
            told.add((str(raised.value), raised.value.retryable))
        assert len(told) == 1
        host = servers[gone[0]].base_url.removeprefix("http://").removesuffix("/v1")
        assert f"llama-server at {host} " in told.pop()[0]


def test_a_replica_that_serves_another_model_fails_every_call():
    scripts = [LlamaServer(), LlamaServer()]
    with connected(*scripts, verify=False, seconds=5.0) as (backend, _):
        scripts[1].model = "another"
        for prompts in AT:
            with pytest.raises(BackendError, match="serves a different model"):
                backend.next_token_logprobs(prompts, SUPPORT)


def test_a_prompt_that_its_replica_refuses_is_its_row_of_nan():
    scripts = [LlamaServer(), LlamaServer()]
    with connected(*scripts, verify=False) as (backend, _):
        alone = backend.next_token_logprobs(PROMPTS, SUPPORT)
        refused = AT[1][0]
        scripts[1].fault = lambda prompt, _: (400, {}, {}) if prompt == refused else None
        found = backend.next_token_logprobs(PROMPTS, SUPPORT)
    place = PROMPTS.index(refused)
    assert np.isnan(found[place]).all()
    assert np.delete(found, place, axis=0).tobytes() == np.delete(alone, place, axis=0).tobytes()


class Sharing(LlamaServer):
    """A replica that shares a machine with another: it fails whatever is computed beside anything else."""

    lock, total = threading.Lock(), 0

    def completion(self, body):
        with Sharing.lock:
            Sharing.total += 1
        try:
            time.sleep(0.005)
            return (500, {}, {}) if Sharing.total > 1 else super().completion(body)
        finally:
            with Sharing.lock:
                Sharing.total -= 1


def test_a_prompt_is_blamed_only_while_no_replica_has_another():
    with connected(Sharing(), Sharing(), verify=False) as (backend, _):
        found = backend.next_token_logprobs(PROMPTS * 4, SUPPORT)
    values = [weights(prompt, {})[: len(VOCABULARY)] for prompt in PROMPTS]
    expected = [(row - np.log(np.exp(row).sum()))[SUPPORT] for row in values]
    np.testing.assert_allclose(found, expected * 4, atol=1e-5)


def test_requests_to_each_replica_are_limited_by_its_own_slots():
    scripts = [LlamaServer(slots=1), LlamaServer(slots=3)]
    for script in scripts:
        script.seconds = lambda _: 0.02
    with connected(*scripts, verify=False, concurrency=8) as (backend, _):
        for script in scripts:
            script.crowds.clear()
        backend.next_token_logprobs(PROMPTS, SUPPORT)
    assert [max(under_way for _, under_way in script.crowds) for script in scripts] == [1, 3]


def test_a_replica_that_dies_in_a_draw_fails_it_and_the_draw_stays_charged(tmp_path):
    """The second replica is gone from the first private prompt on, wherever that one is sent."""
    ledger = f"sqlite:///{tmp_path}/budget.db"
    with connected(VLLM(), VLLM(), seconds=0.3) as (backend, servers):
        made = factory.synthesizer(
            backend, RECORDS, task=TASK, budget=PrivacyBudget(4, 1e-6), mechanism=None, prompts_per_draw=4,
            max_tokens=3, tokens_per_draw=1, ledger=ledger, dataset="tickets", create=True,
        )  # fmt: skip
        assert made.set_up.writer is not None
        private = tuple(backend.tokenize("private"))
        alive = servers[0].answer, servers[1].answer

        def watched(replica):
            def answer(path, body):
                prompts = (body or {}).get("prompt")
                if isinstance(prompts, list) and any(str(private)[1:-1] in str(each) for each in prompts):
                    servers[1].answer = dead
                return alive[replica](path, body)

            return answer

        for replica, server in enumerate(servers):
            server.answer = watched(replica)
        with pytest.raises(BackendError, match="does not answer") as raised:
            made.generate("A")
        assert raised.value.retryable
        (left,) = inside.draws_left(made)
        assert sum(left) == 2  # of three
        spent = made.spent
        assert spent.epsilon == pytest.approx(4, rel=0.05)
        servers[0].answer, servers[1].answer = alive
        made.close()
    assert BudgetLedger.open(ledger).account("tickets").spent.epsilon <= spent.epsilon


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_connects_to_every_replica_and_checks_it():
    with connected(VLLM(), VLLM()) as (backend, servers):
        expected = backend.next_token_logprobs(PROMPTS, SUPPORT).tobytes()

        def is_refused():
            try:
                backend.next_token_logprobs(PROMPTS, SUPPORT)
            except BackendNotBatchInvariant as error:
                return str(servers[1].server_address[1]) in str(error)
            return False

        assert true_in_child(lambda: backend.next_token_logprobs(PROMPTS, SUPPORT).tobytes() == expected)
        script, asked = servers[1].answer, []

        def turned(prompt, _):
            asked.append(prompt)
            found = weights(prompt, {}) + 1e-4 * np.cos(np.arange(104) * len(asked))
            return found - np.log(np.exp(found).sum())

        script.logprobs = turned
        assert true_in_child(is_refused)


def test_closing_closes_every_connection():
    before = set(threading.enumerate())  # other tests' connections may close at any time
    with connected(VLLM(), VLLM(), verify=False) as (backend, _):
        backend.close()
        with pytest.raises(BackendError, match="closed"):
            backend.next_token_logprobs(PROMPTS, SUPPORT)
        opened = set(threading.enumerate()) - before
        assert not any(thread.name == "dpfewshot-server" for thread in opened)


@pytest.mark.parametrize("other", ["", "/", "/v1", "//v1/", "/v1/"])
def test_one_server_is_not_two_replicas(other):
    url = "http://127.0.0.1:9"
    with pytest.raises(BackendError, match=r"holds 127\.0\.0\.1:9 twice"):
        OpenAICompatible([f"{url}/v1", url + other], "served")


@pytest.mark.parametrize("addresses", [None, [], [None], 7])
def test_what_is_no_address_is_refused(addresses):
    with pytest.raises(BackendError, match="base_url is an address, or a list of at least one"):
        OpenAICompatible(addresses, "served")
