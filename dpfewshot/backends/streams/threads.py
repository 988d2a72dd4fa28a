"""Threads of backends in this process: prompts evaluated side by side, and draws that take turns."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from dpfewshot.runtime.forking import start_afresh_in_children

MOST_LANES: Final = 8
"""More lanes would need more memory, and more prompts in a draw to be busy."""

PATIENCE: Final = 10.0
"""Seconds that a block may hold the turn without being asked. After these, the next one takes it."""

Lane = TypeVar("Lane")
Item = TypeVar("Item")


# ---- lanes -----------------------------------------------------------------------------------------------


def lanes_of(threads: int) -> int:
    """Return how many lanes share the worker threads: one each, or several each beyond `MOST_LANES`."""
    return threads // -(-threads // MOST_LANES)


def side_by_side(lanes: Sequence[Lane], items: Iterable[Item], work: Callable[[Lane, Item], object]) -> None:
    """Call `work` once for each item, in whichever lane is free, and return when every lane has ended.

    The calling thread works in the first lane, and a thread of its own in each other lane. After an exception
    or an interrupt, lanes finish their items and take no others; then the first exception is raised. An
    interrupt while a thread starts may leave its lane at work on one item more: whoever uses a lane again or
    frees it holds the lane's own lock (`StreamPool.in_use`).
    """
    waiting = deque(items)
    failures: list[BaseException] = []

    def serve(lane: Lane, ended: threading.Event) -> None:
        with _kept(failures, waiting):
            for item in _drained(waiting):
                work(lane, item)
        ended.set()

    ends: list[threading.Event] = []
    with _kept(failures, waiting), suppress(RuntimeError):  # no thread is left: fewer lanes do the work
        for lane in lanes[1 : len(waiting)]:
            ended = threading.Event()
            threading.Thread(target=serve, args=(lane, ended), daemon=True).start()
            ends.append(ended)
    serve(lanes[0], threading.Event())
    for ended in ends:
        while not ended.is_set():  # an interrupted Thread.join takes the thread for ended
            with _kept(failures, waiting):
                ended.wait()
    if failures:
        raise failures[0]


@contextmanager
def _kept(failures: list[BaseException], waiting: deque[Item]) -> Iterator[None]:
    """Keep an exception for later, and leave undone what waits."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - raised when every lane has ended
        waiting.clear()
        failures.append(error)


def _drained(waiting: deque[Item]) -> Iterator[Item]:
    """Yield items until none is left; several threads may take from one queue."""
    with suppress(IndexError):
        while True:
            yield waiting.popleft()


# ---- turns -----------------------------------------------------------------------------------------------


class Turn:
    """A block's turn, or none that was taken: then nobody waits for its end. Its holder ends it.

    Attributes:
        thread: the thread that asked for it.
        busy: whether its block computes, or waits for the backend's lock.
        idle_since: when the turn began or its block last answered, by the monotonic clock.
    """

    def __init__(self, turns: Turns) -> None:
        self.thread = threading.get_ident()
        self.busy = False
        self.idle_since = time.monotonic()
        self._turns = turns

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count as busy."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False  # before the clock's call, where an interrupt may come
            self.idle_since = time.monotonic()

    def end(self) -> None:
        """Give the turn to the block that has waited longest. The garbage collector may call it."""
        self._turns.end(self)

    def patience_left(self) -> float:
        """The seconds until another block may take it."""
        return PATIENCE if self.busy else max(0.0, self.idle_since + PATIENCE - time.monotonic())


class Turns:
    """At most one block of several tokens holds the turn: together, blocks would evict each other's prompts.

    Others wait for it, first come, first served.
    """

    def __init__(self) -> None:
        self.after_fork()
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Begin anew: whoever held the lock at the fork is not in the child to free it."""
        self._queue: deque[Turn] = deque()  # the first one is held, the others wait
        self._lock = threading.RLock()  # a finalizer may run while its own thread holds it
        self._moved = threading.Condition(self._lock)

    def take(self) -> Turn:
        """Wait for the turn, unless this thread holds it with another block: it would wait in vain."""
        turn = Turn(self)
        with self._lock:
            if self._queue and self._queue[0].thread == turn.thread:
                return turn
            self._queue.append(turn)
            try:
                while turn in self._queue and (holder := self._queue[0]) is not turn:
                    self._moved.wait(holder.patience_left())
                    if not holder.patience_left():
                        self.end(holder)
            except BaseException:
                self.end(turn)
                raise
        return turn

    def end(self, turn: Turn) -> None:
        """End a turn, unless another block took it meanwhile, or give up waiting for it."""
        with self._lock, suppress(ValueError, IndexError):  # it has ended, or a finalizer ends the next one
            self._queue.remove(turn)
            self._moved.notify_all()
            self._queue[0].idle_since = time.monotonic()
