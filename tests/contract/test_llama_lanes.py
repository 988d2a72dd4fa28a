"""LlamaCpp with several threads evaluates prompts side by side, with the bits of one at a time."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, conformance, packaged_model_path
from dpfewshot.backends.llama_cpp.streams import KVStreams
from dpfewshot.backends.streams import backend as streams
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.blocks import answers, same_bits
from tests.support.llama_prompts import backend, prefix, short_prompts, suffixes

FIXTURES = (backend, prefix, short_prompts, suffixes)
SETTINGS = {"context_tokens": 256, "kept_prompts": 7, "decode_batch": 8, "threads": 2, "weights": "file"}
EXTEND = KVStreams.extend
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def lanes():
    with LlamaCpp(packaged_model_path(), **SETTINGS) as loaded:
        assert "2 threads, 2 prompts at a time" in loaded.describe()
        yield loaded


def test_a_prompt_has_the_same_bits_in_every_lane_and_in_any_batch(lanes, short_prompts):
    for check in (
        conformance.check_batch_invariance(lanes, short_prompts[:5]),
        conformance.check_concurrency(lanes, short_prompts[:2]),
        conformance.check_prefix_reuse(lanes, short_prompts[:8]),
    ):
        assert check.passed, check.detail


def test_lanes_answer_as_one_context_does(lanes, backend, prefix, suffixes):
    """After a prefix, in blocks of one token and of several, with rows that cannot be evaluated."""
    expected = answers(backend, prefix, suffixes, [])[0]
    assert same_bits(answers(lanes, prefix, suffixes, [])[0], expected)
    with_bad = answers(lanes, prefix, [[7] * 257, *suffixes, [-1]], [])[0]
    assert same_bits(with_bad[1:-1], expected)
    assert np.isnan(with_bad[[0, -1]]).all()
    assert lanes.next_token_logprobs([]).shape == (0, lanes.vocabulary_size)


def test_a_lane_that_fails_fails_the_call_and_the_next_call_answers(lanes, suffixes, monkeypatch):
    expected = lanes.next_token_logprobs(suffixes)
    library, failed = inside.model(lanes).library, []
    decode = library.llama_decode

    def fail_once(*arguments):
        if threading.current_thread() is not threading.main_thread() and not failed:
            failed.append(1)
            return -3
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(library, "llama_decode", fail_once)
        with pytest.raises(BackendError, match="status -3") as raised:
            lanes.next_token_logprobs(suffixes * 4)
    assert raised.value.retryable
    assert same_bits(lanes.next_token_logprobs(suffixes), expected)


def test_a_lane_that_works_on_after_an_interrupt_is_waited_for(lanes, suffixes, monkeypatch):
    """An interrupt may end a call anywhere. No lane ever evaluates two prompts at once."""
    expected = lanes.next_token_logprobs(suffixes)
    busy, overlaps, begun = Counter(), [], threading.Event()

    def slow(self, stream, start, tokens, **options):
        busy[self] += 1
        overlaps.extend([self] * (busy[self] > 1))
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            time.sleep(0.3)
        logits = EXTEND(self, stream, start, tokens, **options)
        busy[self] -= 1
        return logits

    def escape(pools, batches, work):
        threading.Thread(target=work, args=(pools[1], batches[0])).start()
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(KVStreams, "extend", slow)
    with monkeypatch.context() as patch:
        patch.setattr(streams, "side_by_side", escape)
        with pytest.raises(KeyboardInterrupt):
            lanes.next_token_logprobs(suffixes)
    assert same_bits(lanes.next_token_logprobs(suffixes), expected)
    assert not overlaps


@pytest.mark.filterwarnings("error")
def test_contexts_that_change_one_anothers_bits_are_found_and_done_without(tmp_path, monkeypatch):
    """One unit in the last place, while another lane evaluates."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    evaluating = []

    def disturbed(self, stream, start, tokens, **options):
        evaluating.append(self)
        logits = EXTEND(self, stream, start, tokens, **options).copy()
        others = any(one is not self for one in evaluating)
        evaluating.remove(self)
        return np.nextafter(logits, np.float32(np.inf)) if others else logits

    monkeypatch.setattr(KVStreams, "extend", disturbed)
    with pytest.warns(RuntimeWarning, match="one at a time"):
        loaded = LlamaCpp(packaged_model_path(), **SETTINGS | {"decode_batch": 1})
    with loaded:
        assert loaded.batch_invariant
        assert "at a time" not in loaded.describe()
        prompts = [[5], [6, 7], [8, 9, 10]]
        alone = [loaded.next_token_logprobs([prompt]) for prompt in prompts]
        assert same_bits(loaded.next_token_logprobs(prompts), np.concatenate(alone))
