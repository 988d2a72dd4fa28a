"""What LlamaCpp tries on the loaded model: steps and lanes that change bits are done without."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from dpfewshot.backends import LlamaCpp, conformance, packaged_model_path
from dpfewshot.backends.llama_cpp.model import KVStreams
from dpfewshot.backends.streams import backend as streams
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.llama_prompts import backend, prefix, short_prompts, suffixes
from tests.support.small_models import small
from tests.support.streams import answers, same_bits

SETTINGS = {"context_tokens": 128, "kept_prompts": 7, "decode_batch": 8, "threads": 1, "weights": "file"}
STEP = KVStreams.step


@pytest.fixture
def trials(monkeypatch):
    """How often steps were tried."""
    seen = []
    check = conformance.check_block_invariance
    monkeypatch.setattr(
        conformance,
        "check_block_invariance",
        lambda *given, **named: seen.append(1) or check(*given, **named),
    )
    return seen


def by_company(_first, positions, active):
    return [sum(positions) % 2 == 1] * active


def by_seat(_first, _positions, active):
    return [seat % 2 == 1 for seat in range(active)]


def by_group(first, _positions, active):
    return [(first // 8) % 2 == 1] * active


def by_size(_first, _positions, active):
    return [active > 6] * active


def off_by_one_unit(moved):
    """A step whose logits are one unit in the last place higher where `moved` says so."""

    def step(self, first, tokens, positions, active):
        logits = [row.copy() for row in STEP(self, first, tokens, positions, active)]
        for row, is_moved in zip(logits, moved(first, positions, active), strict=True):
            row[:] = np.nextafter(row, np.float32(np.inf)) if is_moved and len(tokens) > 1 else row
        return logits

    return step


def take_steps(backend):
    """Ask for private prompts that take steps, which is when these are checked."""
    backend.open_block([], [[1]], 2).close()


pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "moved",
    [by_company, *(pytest.param(each, marks=pytest.mark.soak) for each in (by_seat, by_group, by_size))],
)
def test_a_kernel_that_heeds_its_neighbours_is_found_and_done_without(cache, monkeypatch, small, moved):
    monkeypatch.setattr(KVStreams, "step", off_by_one_unit(moved))
    loaded = LlamaCpp(small, **SETTINGS)
    with pytest.warns(RuntimeWarning, match="one by one"):
        take_steps(loaded)
    with loaded:
        assert loaded.batch_invariant
        assert inside.decode_batch(loaded) == 1
        assert "one by one" in loaded.describe()
        given = conformance.Samples.of(loaded)
        found = conformance.check_block_invariance(
            loaded, given.prefix, given.suffixes[:3], given.released[:1]
        )
        assert found.passed, found.detail
    [kept] = cache.iterdir()
    assert json.loads(kept.read_text())["verdict"] is False
    with LlamaCpp(small, **SETTINGS) as again, pytest.warns(RuntimeWarning, match="one by one"):
        take_steps(again)


def test_what_was_found_is_kept_for_this_file_build_and_settings(cache, trials, small, tmp_path, monkeypatch):
    def trials_with(file):
        with LlamaCpp(file, **SETTINGS) as loaded:
            take_steps(loaded)
            assert inside.decode_batch(loaded) == 8
        return len(trials)

    assert trials_with(small) == 1
    assert trials_with(small) == 1
    copy = tmp_path / "model.gguf"
    copy.symlink_to(small)
    assert trials_with(copy) == 1, "it is the content that counts"
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert trials_with(small) == 2
    assert len(list(cache.iterdir())) == 2
    assert {path.stat().st_mode & 0o077 for path in (cache, *cache.iterdir())} == {0}


def test_public_prompts_and_steps_one_by_one_need_no_trial(cache, trials, small):
    with LlamaCpp(small, **(SETTINGS | {"threads": 2})) as loaded:
        for prompts, tokens in (([[1]], 1), ([[1]], 2), ([[1], [2]], 2)):
            with closing(loaded.open_block([5], prompts, tokens, public=True)) as block:
                block.next_token_logprobs()
    with LlamaCpp(small, **(SETTINGS | {"decode_batch": 1})) as loaded:
        take_steps(loaded)
        assert loaded.batch_invariant
    assert not trials
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_after_an_interrupt_steps_are_checked_again(trials, small, monkeypatch):
    """While the check runs, and while the streams of a check that failed are freed."""
    monkeypatch.setattr(KVStreams, "step", off_by_one_unit(by_company))
    interrupts = iter((True, False, True, False, False))

    def interrupted(function):
        def run(*given, **named):
            if next(interrupts, False):
                raise KeyboardInterrupt
            return function(*given, **named)

        return run

    for owner, name in ((conformance, "check_block_invariance"), (KVStreams, "close")):
        monkeypatch.setattr(owner, name, interrupted(getattr(owner, name)))
    with LlamaCpp(small, **SETTINGS) as loaded:
        for expected in (0, 1):
            with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="one by one"):
                take_steps(loaded)
            assert len(trials) == expected
        with pytest.warns(RuntimeWarning, match="one by one"):
            take_steps(loaded)
        assert inside.decode_batch(loaded) == 1


@pytest.mark.usefixtures("cache")
def test_public_blocks_go_on_while_others_are_checked(small, monkeypatch):
    checking, checked = threading.Event(), threading.Event()

    def check(_):
        checking.set()
        return checked.wait(60)

    monkeypatch.setattr(LlamaCpp, "_check_steps", check)
    with LlamaCpp(small, **SETTINGS) as loaded, closing(loaded.open_block([5], [[1], [2]], 3, public=True)):
        thread = threading.Thread(target=take_steps, args=(loaded,))
        thread.start()
        assert checking.wait(60)
        for prompts, tokens in (([[1]], 1), ([[1]], 2), ([[1], [2]], 2)):
            with closing(loaded.open_block([5], prompts, tokens, public=True)) as block:
                block.next_token_logprobs()
        assert thread.is_alive()
        checked.set()
        thread.join()


FIXTURES = (backend, prefix, short_prompts, small, suffixes)
LANES = {"context_tokens": 256, "kept_prompts": 7, "decode_batch": 8, "threads": 2, "weights": "file"}
EXTEND = KVStreams.extend


@pytest.fixture(scope="module")
def lanes():
    with LlamaCpp(packaged_model_path(), **LANES) as loaded:
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
@pytest.mark.usefixtures("cache")
def test_contexts_that_change_one_anothers_bits_are_found_and_done_without(small, monkeypatch):
    """One unit in the last place, while another lane evaluates."""
    evaluating = []

    def disturbed(self, stream, start, tokens, **options):
        evaluating.append(self)
        logits = EXTEND(self, stream, start, tokens, **options).copy()
        others = any(one is not self for one in evaluating)
        evaluating.remove(self)
        return np.nextafter(logits, np.float32(np.inf)) if others else logits

    monkeypatch.setattr(KVStreams, "extend", disturbed)
    loaded = LlamaCpp(small, **LANES | {"decode_batch": 1})
    with pytest.warns(RuntimeWarning, match="one at a time"):
        loaded.next_token_logprobs([[1]])
    with loaded:
        assert loaded.batch_invariant
        assert "at a time" not in loaded.describe()
        prompts = [[5], [6, 7], [8, 9, 10]]
        alone = [loaded.next_token_logprobs([prompt]) for prompt in prompts]
        assert same_bits(loaded.next_token_logprobs(prompts), np.concatenate(alone))
