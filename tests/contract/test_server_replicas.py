"""Replicas of a server: which one a prompt goes to, and which addresses may be replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfewshot.backends import OpenAICompatible, conformance
from dpfewshot.backends.servers import client
from dpfewshot.backends.servers.replicas import replica_of
from dpfewshot.errors import BackendError
from tests.support.replicas import PROMPTS, SUPPORT, connected
from tests.support.scripted_servers import VLLM, LlamaServer
from tests.support.servers import scripted


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(client, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(client, "ATTEMPTS", 2)


class Rounding(VLLM):
    """A replica on another processor: its values differ a little, and so tell where a row is from."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def logprobs(self, prompt, settings):
        found = super().logprobs(prompt, settings) + 1e-3 * np.cos(np.arange(104) * (1 + self.number))
        return found - np.log(np.exp(found).sum())


def test_a_prompt_goes_to_the_replica_that_its_own_tokens_name():
    """In any company and order, with or without a neighbour, and after any other prompts."""
    scripts = [Rounding(number) for number in range(3)]
    with connected(*scripts) as (backend, _):
        assert backend.batch_invariant
        assert backend.describe().startswith("3 replicas of vllm at 127.0.0.1:")

        @settings(max_examples=25, deadline=None)
        @given(
            st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=6), min_size=1, max_size=8), st.data()
        )
        def holds(prompts, data):
            place = data.draw(st.integers(0, len(prompts)))
            neighbour = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=6))
            found = backend.next_token_logprobs(prompts, SUPPORT)
            beside = backend.next_token_logprobs([*prompts[:place], neighbour, *prompts[place:]], SUPPORT)
            assert np.delete(beside, place, axis=0).tobytes() == found.tobytes()
            for prompt, row in zip(prompts, found, strict=True):
                own = scripts[replica_of(prompt, 3)].logprobs(prompt, {})
                np.testing.assert_allclose(row, own[SUPPORT], atol=1e-5)

        holds()
        seen = {replica_of(prompt, 3) for prompt in PROMPTS}
        assert seen == {0, 1, 2}


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(1, 9))
def test_the_rule_is_a_public_function_of_the_tokens(prompt, count):
    found = replica_of(prompt, count)
    assert 0 <= found < count
    assert found == replica_of(np.array(prompt, dtype=np.int32), count) == replica_of(tuple(prompt), count)


def test_the_rule_stays_as_it_is():
    """Another rule would give a resumed run other rows than its first half had, on replicas that differ."""
    assert [replica_of(prompt, 4) for prompt in ([], [1], [1, 2], [2, 1], [300, 70000])] == [3, 1, 3, 0, 2]


def chi_square(rule, count=4, prompts=20_000):
    """The statistic of prompts that begin alike, as those of one draw do."""
    found = np.bincount([rule([7] * 20 + [2 * n], count) for n in range(prompts)], minlength=count)
    return float(((found - prompts / count) ** 2).sum() / (prompts / count))


def test_prompts_spread_evenly_over_replicas():
    most = 46.0  # of a chi-square with 3 degrees of freedom: p < 1e-9
    assert chi_square(replica_of) < most
    assert chi_square(lambda prompt, count: sum(prompt) % count) > most


def test_the_order_of_equal_replicas_moves_no_bit():
    with connected(VLLM(), VLLM()) as (backend, servers):
        urls = [server.base_url for server in servers]
        with (
            OpenAICompatible(urls[::-1], "served", concurrency=1) as turned,
            OpenAICompatible(urls[0], "served", concurrency=1) as single,
        ):
            answers = [each.next_token_logprobs(PROMPTS, SUPPORT) for each in (backend, turned, single)]
    assert len({answer.tobytes() for answer in answers}) == 1


@pytest.mark.parametrize("script", [LlamaServer, VLLM])
def test_replicas_conform(script):
    with connected(script(), script()) as (backend, _):
        assert backend.batch_invariant
        prompts = [backend.tokenize("ab" * length) for length in (1, 3, 9, 2)]
        conformance.require(
            [
                conformance.check_text(backend, ["a<>[x]", "", "two\nlines"]),
                conformance.check_shapes(backend, prompts),
                conformance.check_support(backend, prompts),
                conformance.check_batch_invariance(backend, prompts),
                conformance.check_concurrency(backend, prompts),
                conformance.check_block_agreement(backend, prompts[0], prompts[1:], [3, 4]),
            ]
        )


class OtherName(VLLM):
    model = "another"


class OtherContext(VLLM):
    def models(self, _):
        return 200, {}, {"data": [{"id": "served", "owned_by": "vllm", "max_model_len": 256}]}


class OtherValues(VLLM):
    def logprobs(self, prompt, settings):
        return super().logprobs(prompt, settings)[::-1]


class OtherVocabulary(VLLM):
    def top(self, prompt, body):
        return {token: value for token, value in super().top(prompt, body).items() if token != "token_id:103"}


class Unnormalised(VLLM):
    def logprobs(self, prompt, settings):
        return super().logprobs(prompt, settings) - 0.5


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (OtherName, "differs from the one at .* in its model"),
        (OtherContext, "differs from the one at .* in its context"),
        (OtherValues, "differs from the one at .* in its log-probabilities"),
        (LlamaServer, "differs from the one at .* in its kind of server"),
        (Unnormalised, "probabilities sum to 0.6"),
        (OtherVocabulary, "differs from the one at .* in its vocabulary"),
    ],
)
def test_a_replica_that_differs_is_refused_by_its_address(other, says):
    with scripted(VLLM()) as sound, scripted(other()) as odd:
        host = odd.base_url.removeprefix("http://").removesuffix("/v1")
        with pytest.raises(BackendError, match=f"the replica at {host}.*{says}"):
            OpenAICompatible([sound.base_url, odd.base_url], "served", timeout=20, concurrency=1)


def test_a_replica_whose_answers_depend_on_others_is_named():
    class Varying(VLLM):
        asked = 0

        def logprobs(self, prompt, settings):
            self.asked += 1
            found = super().logprobs(prompt, settings) + 1e-4 * np.cos(np.arange(104) * self.asked)
            return found - np.log(np.exp(found).sum())

    with connected(VLLM(), Varying()) as (backend, servers):
        assert not backend.batch_invariant
        host = servers[1].base_url.removeprefix("http://").removesuffix("/v1")
        assert f"not batch-invariant at {host}: start vLLM" in backend.describe()


@pytest.mark.parametrize(
    "urls", [[], ["http://a/v1", "http://A:80/v1/"], ["http://user:secret@a/v1", "http://b/v1"], [None]]
)
def test_addresses_that_cannot_be_replicas_are_refused(urls):
    with pytest.raises(BackendError, match="base_url") as raised:
        OpenAICompatible(urls, "served")
    assert "secret" not in str(raised.value)
