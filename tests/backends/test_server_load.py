"""A prompt's row is a function of that prompt: load, queues, quotas and slow neighbours do not move it."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.scripted_servers import VLLM, LlamaServer

pytestmark = pytest.mark.usefixtures("quick")

LITTLE = 0.2
"""Seconds of the timeout where it matters, so that a second is given to an answer; elsewhere plenty."""

SHORT = [[place, 2] for place in range(10)]
LONG = [50] * 40
SUPPORT = [5, 6, 7]


@pytest.fixture
def unverified(connect):
    """Connects to a script without verifying it."""
    return lambda script, timeout=30.0: connect(script, hurry=timeout, verify=False)


@pytest.mark.parametrize("tells_slots", [True, False])
@pytest.mark.parametrize(
    ("seconds", "is_null"), [(0.4, False), (1.4, True)], ids=["answered in time", "too slow by itself"]
)
def test_a_long_record_in_the_only_slot_moves_no_other_row(unverified, tells_slots, seconds, is_null):
    """The abandoned request goes on in the slot, as on a server that does not see that its client is gone."""
    script = LlamaServer(slots=1, tells_slots=tells_slots)
    backend = unverified(script, LITTLE)
    alone = backend.next_token_logprobs(SHORT, SUPPORT)
    script.seconds = lambda prompt: seconds if prompt[:1] == LONG[:1] else 0.005
    count = 1 if is_null else 3
    found = backend.next_token_logprobs([*[LONG] * count, *SHORT], SUPPORT)
    assert np.isnan(found[:count]).all() if is_null else np.isfinite(found[:count]).all()
    assert found[count:].tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    "answer",
    [
        *((status, {}, {}) for status in (429, 503, 500, 502, 504, 400, 403, 404)),
        (429, {"retry-after": "0"}, {}),
        (200, {}, {"model": "served"}),
        None,  # a null value in an answer
    ],
    ids=str,
)
def test_what_a_server_under_load_says_is_no_row(unverified, answer):
    script = LlamaServer(slots=8)
    script.seconds = lambda _: 0.002
    backend = unverified(script)
    alone = backend.next_token_logprobs([*SHORT, LONG], SUPPORT)
    computed = script.computed

    def spoiled(prompt, body):
        found = computed(prompt, body)
        if script.under_way > 1:
            found[2]["completion_probabilities"][0]["top_logprobs"][5]["logprob"] = None
        return found

    if answer is None:
        script.computed = spoiled
    script.fault = lambda _, under_way: answer if under_way > 1 else None
    assert backend.next_token_logprobs([*SHORT, LONG], SUPPORT).tobytes() == alone.tobytes()
    assert max(under_way for _, under_way in script.crowds) > 1


@pytest.mark.parametrize("seed", range(3))
def test_neighbouring_draws_have_the_same_rows_whatever_a_server_does_under_load(unverified, seed):
    """Slow, full and failing as it likes while several requests are under way; sound for a single one."""
    source = random.Random(seed)
    script = LlamaServer(slots=2, tells_slots=False)
    backend = unverified(script, 1.0)
    answers = [(429, {}, {}), (500, {}, {}), (503, {}, {}), (400, {}, {}), (200, {}, b"{"), None, None]

    def fault(_, under_way):
        if under_way == 1:
            return None
        time.sleep(source.choice([0, 0, 0.01, 0.6]))
        return source.choice(answers)

    script.fault = fault
    script.seconds = lambda prompt: 0.001 * len(prompt)
    drawn = [[place] * source.choice([1, 2, 60]) for place in range(8)]
    neighbour = [*drawn[:4], LONG * 3, *drawn[4:]]
    found, beside = (backend.next_token_logprobs(each, SUPPORT) for each in (drawn, neighbour))
    assert np.isfinite(found).all()
    assert found.tobytes() == np.delete(beside, 4, axis=0).tobytes()


def test_a_prompt_is_blamed_only_after_the_canary_and_with_nothing_beside_it(unverified):
    script = LlamaServer(slots=4)
    backend = unverified(script)
    canary = backend.tokenize("Write a question about a place.\n\nText:")
    script.seconds = lambda _: 0.02
    script.fault = lambda prompt, _: (500, {}, {}) if prompt == LONG else None
    script.crowds.clear()
    found = backend.next_token_logprobs([*SHORT, LONG, *SHORT], SUPPORT)
    assert np.isnan(found[10]).all()
    assert np.isfinite(np.delete(found, 10, axis=0)).all()
    order = [prompt for prompt, _ in script.crowds]
    last = len(order) - 1 - order[::-1].index(LONG)
    assert order[last - 2 : last + 2] == [canary, LONG, LONG, canary]
    assert [under_way for _, under_way in script.crowds[last - 2 : last + 2]] == [1, 1, 1, 1]
    assert max(under_way for _, under_way in script.crowds) == 4


def test_no_other_thread_asks_beside_a_prompt_that_is_asked_alone(unverified):
    script = LlamaServer(slots=4)
    backend = unverified(script)
    script.seconds = lambda _: 0.005
    script.fault = lambda prompt, _: (500, {}, {}) if prompt == LONG else None
    script.crowds.clear()
    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(backend.next_token_logprobs, SHORT * 3, SUPPORT)
        assert np.isnan(backend.next_token_logprobs([LONG], SUPPORT)).all()
    # Two attempts among others, and two alone.
    assert [under_way for prompt, under_way in script.crowds if prompt == LONG][2:] == [1, 1]


@pytest.mark.parametrize("status", [429, 503])
def test_a_quota_fails_the_draw_in_the_same_words_whatever_was_drawn(unverified, status):
    """A quota counts what else was asked: it makes no row of zeros, however long it lasts."""
    script = LlamaServer()
    backend = unverified(script, LITTLE)
    script.fault = lambda prompt, _: (
        (status, {}, {"error": str(prompt)}) if prompt in (LONG, SHORT[0]) else None
    )
    told = set()
    for drawn in ([LONG], [*SHORT], [SHORT[1], LONG, *SHORT]):
        with pytest.raises(BackendError, match="overloaded or enforces a quota") as raised:
            backend.next_token_logprobs(drawn, SUPPORT)
        told.add((str(raised.value), raised.value.retryable))
    assert len(told) == 1


def test_a_quota_that_passes_is_waited_for(unverified):
    script = LlamaServer()
    backend = unverified(script)
    alone = backend.next_token_logprobs(SHORT, SUPPORT)
    until = time.monotonic() + 0.15
    script.fault = lambda *_: (429, {}, {}) if time.monotonic() < until else None
    assert backend.next_token_logprobs(SHORT, SUPPORT).tobytes() == alone.tobytes()


@pytest.mark.parametrize("status", [401, 403, 404, 409, 418, 500, 502, 504])
def test_an_error_speaks_of_the_public_prompt_alone(unverified, status):
    """What one prompt is answered alone is its row of NaN; an error that only its data set has would tell."""
    backend = unverified(script := LlamaServer(), LITTLE)
    script.fault = lambda prompt, _: (status, {}, {}) if prompt == LONG else None
    found = backend.next_token_logprobs([SHORT[0], LONG], SUPPORT)
    assert np.isnan(found).all(axis=1).tolist() == [False, True]
    script.fault = lambda *_: (status, {}, {})
    told = set()
    for drawn in ([SHORT[0]], [LONG, SHORT[0]]):
        with pytest.raises(BackendError) as raised:
            backend.next_token_logprobs(drawn, SUPPORT)
        told.add(str(raised.value))
    assert len(told) == 1


def test_a_text_that_waits_behind_others_is_tokenised(unverified):
    script = LlamaServer()
    backend = unverified(script)
    expected = backend.tokenize("a text")
    tokenize, under_way = script.tokenize, []

    def crowded(body):
        under_way.append(body)
        try:
            time.sleep(0.02)
            return (503, {}, {}) if len(under_way) > 1 else tokenize(body)
        finally:
            under_way.pop()

    script.tokenize = crowded
    script.slots = 8
    inside.client(backend).gate.limit = 8
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(backend.tokenize, ["a text"] * 6)) == [expected] * 6


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_server_that_no_longer_tokenises_makes_nulls_of_no_records(unverified, status):
    """A null means a text at fault: where a public text has no answer either, the error is retryable."""
    backend = unverified(script := LlamaServer(), LITTLE)
    script.tokenize = lambda _: (status, {}, {})
    with pytest.raises(BackendError) as raised:
        backend.tokenize("a text")
    assert raised.value.retryable


def test_requests_for_chosen_ids_are_never_beside_others(unverified):
    """vLLM gives all requests of a batch the kind of answer that one of them asked for."""

    class Counting(VLLM):
        def __init__(self):
            super().__init__()
            self.under_way, self.mixed, self.crowd, self.lock = [], 0, 0, threading.Lock()

        def completions(self, body):
            kind = "logprob_token_ids" in body
            with self.lock:
                self.under_way.append(kind)
                self.mixed += len(set(self.under_way)) > 1
                self.crowd = max(self.crowd, len(self.under_way))
            try:
                time.sleep(0.005)
                return super().completions(body)
            finally:
                with self.lock:
                    self.under_way.remove(kind)

    backend = unverified(script := Counting())
    with ThreadPoolExecutor(4) as threads:  # a canary at any moment
        for answer in threads.map(backend.next_token_logprobs, [SHORT * 8] * 4, [SUPPORT, None] * 2):
            assert np.isfinite(answer).all()
    assert script.crowd > 1
    assert script.mixed == 0
