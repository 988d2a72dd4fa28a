"""Draws of several tokens take turns, so that none loses the prompts that it keeps."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpfewshot.backends.streams import threads as turns
from dpfewshot.backends.streams.threads import Turns
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.processes import true_in_child
from tests.support.streams import Streams, Toy

TOKENS = 6
PREFIXES = [[1, 2, 3, label] for label in range(4, 8)]
SUFFIXES = [[number] * 5 for number in range(1, 5)]


def draw(toy: Toy, prefix: list[int]) -> list[bytes]:
    """The answers of a public block and of a private one, which grow together."""
    found = []
    public = toy.open_block(prefix, [[9]], TOKENS, public=True)
    private = toy.open_block(prefix, SUFFIXES, TOKENS)
    for token in range(TOKENS):
        found += [public.next_token_logprobs().tobytes(), private.next_token_logprobs().tobytes()]
        public.append(token)
        private.append(token)
    public.close()
    private.close()
    return found


def test_draws_side_by_side_evaluate_no_token_more_than_one_after_another() -> None:
    alone, together = Toy(kept_prompts=4), Toy(lambda: time.sleep(0.0005), kept_prompts=4)
    expected = [draw(alone, prefix) for prefix in PREFIXES]
    with ThreadPoolExecutor(len(PREFIXES)) as threads:
        assert list(threads.map(lambda prefix: draw(together, prefix), PREFIXES)) == expected
    assert sum(together.model.evaluated) == sum(alone.model.evaluated)


def test_labels_in_turn_keep_their_prefixes() -> None:
    toy = Toy()
    for prefix in PREFIXES * 3:
        toy.open_block(prefix, [[5]], 1).next_token_logprobs()
    assert toy.model.evaluated.count(len(PREFIXES[0])) == len(PREFIXES)


def test_a_thread_does_not_wait_for_itself() -> None:
    toy = Toy(kept_prompts=8)
    blocks = [toy.open_block(prefix, SUFFIXES, TOKENS) for prefix in PREFIXES]
    assert all(not np.isnan(block.next_token_logprobs()).any() for block in blocks)


def test_a_turn_that_nobody_uses_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.05)
    held = Turns()
    left = held.take()
    assert left is not None
    with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as another:
        taken = thread.submit(held.take).result(timeout=20)
        assert taken is not None
        with taken.working():
            left.end()  # ends nothing: the turn is another's
            waits = another.submit(held.take)
            time.sleep(0.2)
            assert not waits.done()
        taken.end()
        assert waits.result(timeout=20) is not None


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    held, order = Turns(), []
    first = held.take()
    assert first is not None

    def take(number: int) -> None:
        turn = held.take()
        assert turn is not None
        order.append(number)
        turn.end()

    with ThreadPoolExecutor(4) as threads:
        waits = []
        for number in range(4):
            waits.append(threads.submit(take, number))
            time.sleep(0.05)
        first.end()
        for each in waits:
            each.result(timeout=20)
    assert order == [0, 1, 2, 3]


def test_an_interrupt_of_who_waits_leaves_the_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    held = Turns()
    first = held.take()
    assert first is not None

    class Interrupted(turns.SimpleQueue):  # type: ignore[name-defined,misc]
        def get(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patched:
        patched.setattr(turns, "SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.submit(held.take).result(timeout=20)
    first.end()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(held.take).result(timeout=20) is not None


def test_a_block_that_computes_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.02)
    held = Turns()
    turn = held.take()
    assert turn is not None
    with ThreadPoolExecutor(1) as thread:
        with turn.working():
            waits = thread.submit(held.take)
            time.sleep(0.2)
            assert not waits.done()
        turn.end()
        assert waits.result(timeout=20) is not None


class Full(Toy):
    """Has memory for no stream."""

    def _open_streams(self, streams: int, lanes: int) -> Streams:
        del streams, lanes
        raise BackendError("no memory")


def test_a_block_that_could_not_be_opened_ends_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    toy = Full(kept_prompts=4)
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread, pytest.raises(BackendError, match="no memory"):
            thread.submit(toy.open_block, PREFIXES[0], SUFFIXES, TOKENS).result(timeout=20)


def test_a_block_that_was_dropped_ends_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    toy = Toy(kept_prompts=4)
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            block = thread.submit(toy.open_block, PREFIXES[0], SUFFIXES, TOKENS).result(timeout=20)
        del block, thread


def test_who_waits_learns_that_the_backend_was_closed() -> None:
    toy = Toy(kept_prompts=4)
    held = toy.open_block(PREFIXES[0], SUFFIXES, TOKENS)
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(toy.open_block, PREFIXES[1], SUFFIXES, TOKENS)
        toy.close()
        held.close()
        with pytest.raises(BackendError, match="is closed"):
            waits.result(timeout=20)


def test_a_forked_child_waits_for_no_lock_of_its_parent() -> None:
    held, locked, forked = Turns(), threading.Event(), threading.Event()
    turn = held.take()
    assert turn is not None

    def lock() -> None:
        with inside.lock_of_turns(held):
            locked.set()
            forked.wait()

    def ended() -> bool:
        signal.alarm(5)  # the child ends then, without an answer
        turn.end()
        return True

    thread = threading.Thread(target=lock)
    thread.start()
    locked.wait()
    assert true_in_child(ended)
    forked.set()
    thread.join()
