"""Backends that keep streams: lanes side by side, draws in turn, and nothing freed that is in use."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dpfewshot.backends.streams import backend as streams
from dpfewshot.backends.streams import threads as turns
from dpfewshot.backends.streams.backend import StreamBackend
from dpfewshot.backends.streams.threads import Turns, lanes_of, side_by_side
from dpfewshot.errors import BackendError
from tests.support import inside
from tests.support.processes import true_in_child


class Model:
    """Only adds numbers up."""

    vocabulary_size = 50
    end_token_ids = frozenset({0})
    bos = longest = None
    most_streams = 1000

    def __init__(self, during: Any) -> None:
        self.during = during
        self.freed = False
        self.faults: list[str] = []
        self.evaluated: list[int] = []

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        del special
        return [len(text) % 50]

    def open_streams(self, streams: int, tokens: int, lanes: int) -> Streams:
        del tokens, lanes
        return Streams(streams, self, self.during)

    def log_softmax(self, logits: np.ndarray, columns: Any) -> np.ndarray:
        return logits[columns]

    def close(self) -> None:
        self.freed = True


class Streams:
    """One context: it says when it computes with freed memory."""

    cells = 256
    failed = False

    def __init__(self, streams: int, model: Model, during: Any) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(streams)]
        self.model, self.during, self.freed = model, during, False

    def copy(self, source: int, target: int) -> None:
        self.tokens[target] = list(self.tokens[source])

    def extend(self, stream: int, start: int, tokens: list[int]) -> np.ndarray:
        self.during()
        if self.freed or self.model.freed:
            self.model.faults.append("used after it was freed")
        self.model.evaluated.append(len(tokens))
        self.tokens[stream] = self.tokens[stream][:start] + list(tokens)
        return np.arange(50.0) * sum(self.tokens[stream])

    def step(self, first: int, tokens: list[int], positions: list[int], active: int) -> list[np.ndarray]:
        return [self.extend(first + index, positions[index], [tokens[index]]) for index in range(active)]

    def close(self) -> None:
        self.freed = True


class Toy(StreamBackend[Any]):
    """Answers at once; its model notes how many tokens each call evaluates."""

    def __init__(self, during: Any = lambda: None, *, kept_prompts: int = 0) -> None:
        self.model = Model(during)
        super().__init__(self.model, context_tokens=64, kept_prompts=kept_prompts, decode_batch=1, lanes=3)

    def _settle(self) -> None:
        """Nothing is checked."""


LANES = ("first", "second", "third")


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, 1), (2, 2), (8, 8), (9, 4), (11, 5), (12, 6), (16, 8), (64, 8), (100, 7)]
)
def test_lanes_share_the_threads(threads: int, expected: int) -> None:
    assert lanes_of(threads) == expected
    assert threads - expected < lanes_of(threads) * (threads // expected) <= threads


@pytest.mark.parametrize("items", [0, 1, 2, 3, 50])
def test_every_item_is_done_once_and_one_lane_or_one_item_needs_no_thread(items: int) -> None:
    done: Counter[int] = Counter()
    side_by_side(LANES, range(items), lambda _, item: done.update([item]))
    assert done == Counter(range(items))
    threads = set()
    for lanes, count in ((LANES[:1], items), (LANES, min(1, items))):
        side_by_side(lanes, range(count), lambda *_: threads.add(threading.current_thread()))
    assert threads <= {threading.current_thread()}


def test_all_lanes_work_at_once_and_each_on_one_item_at_a_time() -> None:
    together, busy = threading.Barrier(len(LANES)), dict.fromkeys(LANES, 0)

    def work(lane: str, item: int) -> None:
        busy[lane] += 1
        assert busy[lane] == 1
        if item < len(LANES):
            together.wait(timeout=30)
        busy[lane] -= 1

    side_by_side(LANES, range(30), work)


@pytest.mark.parametrize("failing", LANES[:2])
def test_a_failure_ends_all_lanes_before_it_is_raised(failing: str) -> None:
    """In the calling thread's lane or in another: no lane takes a further item, and none works on."""
    together, working, done = threading.Barrier(2), [], []

    def work(lane: str, item: int) -> None:
        working.append(lane)
        together.wait(timeout=30)
        if lane == failing:
            working.remove(lane)
            raise ValueError(item)
        time.sleep(0.1)
        working.remove(lane)
        done.append(item)

    with pytest.raises(ValueError, match=r"[01]"):
        side_by_side(LANES[:2], range(20), work)
    assert not working
    assert len(done) == 1


def test_an_interrupt_waits_for_the_other_lane_however_often_it_comes() -> None:
    """The caller then frees or uses the lanes: a lane that worked on would mix two prompts."""
    started, ended = threading.Event(), threading.Event()

    def interrupt(number: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05 if number < 3 else 0)
        raise KeyboardInterrupt

    def work(lane: str, _: int) -> None:
        if lane == LANES[0]:
            started.wait(30)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            started.set()
            time.sleep(0.5)
            ended.set()

    count = iter(range(10))
    before = signal.signal(signal.SIGALRM, lambda *_: interrupt(next(count)))
    try:
        with pytest.raises(KeyboardInterrupt):
            side_by_side(LANES[:2], range(2), work)
        assert ended.is_set()
        assert next(count) > 1, "it came more than once"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_without_threads_the_caller_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", Refused)
    done: list[tuple[str, int]] = []
    side_by_side(LANES, range(4), lambda lane, item: done.append((lane, item)))
    assert done == [(LANES[0], item) for item in range(4)]


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


def test_a_turn_is_taken_over_when_nobody_uses_it_and_not_while_its_block_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.05)
    held = Turns()
    left = held.take()
    with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as another:
        turn = thread.submit(held.take).result(timeout=20)
        with turn.working():
            left.end()  # ends nothing: the turn is another's
            waits = another.submit(held.take)
            time.sleep(0.2)
            assert not waits.done()
        turn.end()
        waits.result(timeout=20)


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    held, order = Turns(), []
    first = held.take()

    def take(number: int) -> None:
        turn = held.take()
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

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patched:
        patched.setattr(inside.lock_of_turns(held), "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.submit(held.take).result(timeout=20)
    first.end()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(held.take).result(timeout=20)


@pytest.mark.parametrize("opens", [True, False], ids=["dropped", "not opened"])
def test_a_block_that_was_dropped_or_not_opened_ends_its_turn(
    opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise BackendError("no memory")

    monkeypatch.setattr(turns, "PATIENCE", 60.0)
    toy = Toy(kept_prompts=4)
    if not opens:
        monkeypatch.setattr(toy.model, "open_streams", full)
    for _ in range(2):
        with (
            nullcontext() if opens else pytest.raises(BackendError, match="no memory"),
            ThreadPoolExecutor(1) as thread,
        ):
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


PROMPTS = [[number] * 5 for number in range(1, 9)]


def test_a_close_from_within_a_call_frees_at_the_end_of_the_call() -> None:
    """As a signal's handler does, which runs in the thread that evaluates."""
    main = threading.current_thread()

    def during() -> None:
        time.sleep(0.01)
        if threading.current_thread() is main:
            toy.close()
            assert not toy.model.freed

    toy = Toy(during)
    assert not np.isnan(toy.next_token_logprobs(PROMPTS)).any()
    assert toy.model.freed
    assert toy.model.faults == []
    with pytest.raises(BackendError, match="is closed"):
        toy.next_token_logprobs(PROMPTS)


def test_a_lane_left_behind_evaluates_nothing_once_the_backend_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy = Toy(lambda: None)
    left: list[Any] = []

    def escape(pools: Any, batches: Any, work: Any) -> None:
        left.append(lambda: work(pools[1], batches[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "side_by_side", escape)
    with pytest.raises(KeyboardInterrupt):
        toy.next_token_logprobs(PROMPTS)
    toy.close()
    left[0]()
    assert toy.model.faults == []


def test_a_forked_child_closes_at_once_while_its_parent_computes() -> None:
    begun, ended = threading.Event(), threading.Event()

    def during() -> None:
        begun.set()
        ended.wait()

    toy = Toy(during)
    thread = threading.Thread(target=toy.next_token_logprobs, args=(PROMPTS[:1],))
    thread.start()
    begun.wait()
    assert true_in_child(lambda: toy.close() is None and not toy.model.freed)
    ended.set()
    thread.join()
    toy.close()
    assert toy.model.freed
