"""Lanes: every item once, each lane one item at a time, and nobody works on after the call."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter

import pytest

from dpfewshot.backends.streams.threads import lanes_of, side_by_side

LANES = ("first", "second", "third")


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, 1), (2, 2), (8, 8), (9, 4), (11, 5), (12, 6), (16, 8), (64, 8), (100, 7)]
)
def test_lanes_share_the_threads(threads: int, expected: int) -> None:
    assert lanes_of(threads) == expected
    assert threads - expected < lanes_of(threads) * (threads // expected) <= threads


@pytest.mark.parametrize("items", [0, 1, 2, 3, 50])
def test_every_item_is_done_once(items: int) -> None:
    done: Counter[int] = Counter()
    side_by_side(LANES, range(items), lambda _, item: done.update([item]))
    assert done == Counter(range(items))


def test_all_lanes_work_at_once_and_each_on_one_item_at_a_time() -> None:
    together, busy = threading.Barrier(len(LANES)), dict.fromkeys(LANES, 0)

    def work(lane: str, item: int) -> None:
        busy[lane] += 1
        assert busy[lane] == 1
        if item < len(LANES):
            together.wait(timeout=30)
        busy[lane] -= 1

    side_by_side(LANES, range(30), work)


def test_one_lane_or_one_item_needs_no_thread() -> None:
    found = []
    side_by_side(LANES[:1], range(3), lambda *_: found.append(threading.current_thread()))
    side_by_side(LANES, [0], lambda *_: found.append(threading.current_thread()))
    assert set(found) == {threading.current_thread()}


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
