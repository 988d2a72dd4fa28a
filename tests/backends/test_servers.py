"""OpenAICompatible on real servers, with faults injected by a proxy in front of one."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from dpfewshot import PrivacyBudget, Record, Settings, Synthesizer, Task, icl
from dpfewshot.backends import LlamaCpp, LogprobBackend, OpenAICompatible, conformance, packaged_model_path
from dpfewshot.backends.servers import client, server
from dpfewshot.errors import BackendError
from dpfewshot.prompts.chat import chat_turns
from tests.support import colours, inside
from tests.support.server_faults import PROMPT, SECRET, changed, faults, swap
from tests.support.servers import forward, llama_server, scripted
from tests.support.small_models import small_model

FIXTURES = (faults,)
pytestmark = pytest.mark.model
KEY = "sk-of-the-tests"
TOKENS = 8192


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Each answer tells the probability of every token: of all 49,152 that takes a second."""
    return small_model(tmp_path_factory.mktemp("model") / "small.gguf", tokens=TOKENS)


@pytest.fixture(scope="session")
def base_url(model):
    with llama_server(model) as url:
        yield url


@pytest.fixture(scope="session")
def backend(base_url):
    with OpenAICompatible(base_url, "smollm2") as connected:
        yield connected


@pytest.fixture(scope="session")
def proxy(base_url):
    with scripted(forward(base_url)) as server:
        yield server


@pytest.fixture(scope="session")
def through_proxy(proxy):
    """Not verified again; its canary is asked at connection and when a prompt has no answer."""
    with OpenAICompatible(proxy.base_url, "smollm2", KEY, verify=False, timeout=30) as connected:
        yield connected


@pytest.fixture
def prompts(backend):
    return [backend.tokenize(text) for text in (PROMPT, "Where", "The capital of France is")]


def test_llama_server_is_recognised_and_conforms(backend, prompts):
    assert isinstance(backend, LogprobBackend)
    assert backend.describe().startswith("llama-server at 127.0.0.1:")
    assert backend.describe().endswith(", batch-invariant")
    assert re.fullmatch("claimed:[^/]+.*", backend.model_identity)
    assert backend.batch_invariant
    assert backend.context_tokens == 256
    assert backend.vocabulary_size == TOKENS
    assert inside.client(backend).gate.limit == 1  # the server has one slot
    conformance.require(
        [
            conformance.check_vocabulary(backend),
            conformance.check_text(backend, [PROMPT, "", " caf\u00e9 \U0001f30d<|im_end|>\x00"]),
            conformance.check_shapes(backend, prompts[:1]),
            conformance.check_normalisation(backend, prompts[1:2]),
        ]
    )


def test_vocabulary_and_tokens_are_those_of_the_same_model_in_process():
    whole = packaged_model_path()
    with (
        LlamaCpp(whole, threads=1, decode_batch=1) as local,
        llama_server(whole) as url,
        OpenAICompatible(url, "smollm2", verify=False) as backend,
    ):
        assert backend.vocabulary_size == 49152
        assert backend.end_token_ids == local.end_token_ids
        assert chat_turns(backend) == chat_turns(local)
        for text in (PROMPT, "a <|im_start|> b", "\ud800", "caf\u00e9\n\n"):
            assert backend.tokenize(text) == local.tokenize(text)
        everything = range(local.vocabulary_size)
        assert [backend.detokenize([t]) for t in everything] == [local.detokenize([t]) for t in everything]


def test_a_likely_token_that_ends_within_a_character_costs_no_answer(through_proxy, backend, faults):
    """Of such a token, if sampled, the server tells no log-probabilities."""
    euro = backend.tokenize("\u20ac")
    prompts = [euro * number for number in range(8, 20)]
    seen = faults(lambda _, real: real())
    answers = through_proxy.next_token_logprobs(prompts, euro[:1])
    assert np.exp(answers).mean() > 0.8
    assert len(seen) == len(prompts)


def test_no_prompt_is_taken_from_the_servers_cache(through_proxy, prompts, faults):
    seen = faults(lambda _, real: real())
    longer = [*prompts[2], *prompts[0]]
    expected = through_proxy.next_token_logprobs([longer], [5, 6])
    for before in ([longer[:-1]], [longer], [[*longer, 7]], [prompts[2]]):
        through_proxy.next_token_logprobs(before, [5, 6])
        assert through_proxy.next_token_logprobs([longer], [5, 6]).tobytes() == expected.tobytes()
    assert [body["cache_prompt"] for body in seen] == [False] * len(seen)


def test_a_slow_neighbour_and_a_full_queue_in_front_of_a_real_server_change_no_row(
    proxy, prompts, backend, faults, monkeypatch
):
    """The queue refuses whatever comes beside another request; the long prompt takes all of the time."""
    monkeypatch.setattr(client, "ATTEMPTS", 2)
    expected = backend.next_token_logprobs(prompts[1:], [5, 6])
    under_way = []

    def queue(body, real):
        under_way.append(body)
        try:
            if len(under_way) > 1:
                return 503, {}, {}
            return time.sleep(0.4) if body["prompt"] == prompts[0] else real()
        finally:
            under_way.pop()

    with OpenAICompatible(proxy.base_url, "smollm2", verify=False, timeout=30) as queued:
        inside.client(queued).gate.limit = 8  # as many as of a server that does not tell its slots
        faults(queue)
        found = queued.next_token_logprobs([*prompts, prompts[0], *prompts[1:]], [5, 6])
    assert np.isnan(found[[0, 3]]).all()
    assert found[[1, 2]].tobytes() == found[[4, 5]].tobytes() == expected.tobytes()


def test_a_demonstration_is_made_through_a_server(backend, monkeypatch):
    monkeypatch.setattr(
        "dpfewshot.writing.public_loop.COMPLETION", 1
    )  # a server takes a second for each token
    task = Task("t", "A ticket.", label_field="Category", text_field="Ticket", labels=("Refund",))
    records = [Record("Where is my money ?", "Refund"), Record("The shoes do not fit .", "Refund")]
    settings = Settings(prompts_per_draw=2, tokens_per_draw=2)
    budget = PrivacyBudget(epsilon=8, delta=1e-3)
    synthesizer = Synthesizer(task, records, backend, budget=budget, max_tokens=2, settings=settings)
    demonstration = synthesizer.generate("Refund")
    assert demonstration.certified
    assert 1 <= demonstration.token_count <= 2


def test_texts_are_labelled_and_labels_are_written_through_a_server(backend):
    """A text longer than the server's context is named by its position, and quoted nowhere."""
    words = icl.PromptFormat("Name the kind of place.", "Place", "Kind", ("city", "country"))
    shown = [colours.shown("Paris", "city"), colours.shown("France", "country")]
    classifier = icl.Classifier(words, backend, shown, calibrated=False)
    found = classifier.predict_proba(["Rome", "Italy"])
    assert found.sum(axis=1) == pytest.approx([1, 1])
    assert found[0, 0] > found[1, 0]
    assert icl.Extractor(words, backend, shown, max_tokens=1).predict("Rome") == "city"
    with pytest.raises(BackendError, match=r"no answer for texts\[1\]") as raised:
        classifier.predict(["Rome", f"{SECRET} " * 200])
    assert SECRET not in str(raised.value)


def test_prompts_that_cannot_be_sent_are_rows_of_nan(backend, prompts):
    support = [5, 6]
    unusable = [[], [7] * 256, [backend.vocabulary_size]]
    found = backend.next_token_logprobs([unusable[0], prompts[1], *unusable[1:]], support)
    assert np.isnan(found[[0, 2, 3]]).all()
    assert np.isfinite(backend.next_token_logprobs([[7] * 255], support)).all()  # leaves room for its token
    assert found[1].tobytes() == backend.next_token_logprobs(prompts[1:2], support)[0].tobytes()
    with pytest.raises(BackendError, match="support"):
        backend.next_token_logprobs(prompts, [-1])
    assert backend.next_token_logprobs([]).shape == (0, backend.vocabulary_size)


def test_it_works_inside_a_running_loop_and_in_threads(backend, prompts):
    expected = backend.next_token_logprobs(prompts[:2], [5]).tobytes()

    async def asked():
        return backend.next_token_logprobs(prompts[:2], [5]).tobytes()

    assert asyncio.run(asked()) == expected
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(backend.next_token_logprobs, [prompts[:2]] * 2, [[5]] * 2)
        assert [each.tobytes() for each in found] == [expected] * 2


def test_a_slow_server_is_given_up_in_time(proxy, prompts, faults):
    with OpenAICompatible(proxy.base_url, "smollm2", verify=False, timeout=30) as slow:
        inside.hurry(slow, 0.3)
        faults(lambda *_: time.sleep(3))
        start = time.monotonic()
        with pytest.raises(BackendError, match="does not answer: timeout"):
            slow.next_token_logprobs(prompts, [5])
        # Five times the timeout for the first prompt, and for the canary; the others are not asked.
        assert time.monotonic() - start < 6


def test_another_model_is_refused(through_proxy, prompts, faults, monkeypatch):
    faults(lambda _, real: changed(real(), lambda found: found.update(model="another")))
    with pytest.raises(BackendError, match="serves a different model"):
        through_proxy.next_token_logprobs(prompts[:1], [5])
    monkeypatch.setattr(server, "CANARY_SECONDS", 0.0)
    faults(lambda _, real: changed(real(), swap))
    with pytest.raises(BackendError, match="differently than before"):
        through_proxy.next_token_logprobs(prompts[:1], [5])


def test_closing_ends_what_is_under_way(proxy, prompts, faults):
    asked = OpenAICompatible(proxy.base_url, "smollm2", verify=False)
    started, release = threading.Event(), threading.Event()

    def wait(*_):
        started.set()
        release.wait(30)

    faults(wait)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(asked.next_token_logprobs, prompts, [5])
        started.wait(30)
        asked.close()
        with pytest.raises(BackendError, match="closed during"):
            answer.result(timeout=30)
        release.set()


def test_a_float32_model_has_the_probabilities_of_the_same_model_in_process(tmp_path, converting):
    """Quantised kernels differ by 0.04 to 0.09 from build to build; in float32 only rounding is left."""
    path = tmp_path / "float32.gguf"
    parameters = converting.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize, parameters.nthread = 0, True, 2
    whole = str(packaged_model_path()).encode()
    assert converting.llama_model_quantize(whole, str(path).encode(), parameters) == 0
    with LlamaCpp(path, threads=1) as local, llama_server(path) as url:
        prompts = [local.tokenize(text) for text in ("The capital of France is", PROMPT)]
        with OpenAICompatible(url, "smollm2", verify=False) as served:
            found, expected = (each.next_token_logprobs(prompts) for each in (served, local))
    assert np.abs(np.exp(found) - np.exp(expected)).max() < 1e-3


TEXTS = ["Name: Zanzibar", "Where", "My parcel is late", "Refund me"]


@pytest.mark.soak
def test_two_llama_servers_answer_as_one_until_one_is_killed():
    with ExitStack() as stack, llama_server(packaged_model_path()) as kept:
        urls = [kept, stack.enter_context(llama_server(packaged_model_path()))]
        with OpenAICompatible(urls, "smollm2", verify=False) as backend:
            prompts = [backend.tokenize(text) for text in TEXTS]
            found = backend.next_token_logprobs(prompts)
            with OpenAICompatible(kept, "smollm2", verify=False) as single:
                assert found.tobytes() == single.next_token_logprobs(prompts).tobytes()
            stack.close()
            inside.hurry(backend, 0.5)
            for prompt in prompts:  # wherever it is sent
                with pytest.raises(BackendError, match="does not answer"):
                    backend.next_token_logprobs([prompt])


@pytest.mark.soak
def test_two_llama_servers_conform():
    model = packaged_model_path()
    with (
        llama_server(model) as one,
        llama_server(model) as two,
        OpenAICompatible([one, two], "smollm2") as backend,
    ):
        assert backend.describe().startswith("2 replicas of llama-server at 127.0.0.1:")
        assert backend.batch_invariant
        conformance.require(conformance.examine(backend))
