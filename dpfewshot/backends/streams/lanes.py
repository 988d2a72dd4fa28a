"""Work done side by side in lanes, where each item goes to whichever lane is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TypeVar

MOST_LANES = 8
"""More lanes would need more memory, and more prompts in a draw to be busy."""

Lane = TypeVar("Lane")
Item = TypeVar("Item")


def lanes_of(threads: int) -> int:
    """Return how many lanes share the worker threads: one each, or several each beyond `MOST_LANES`."""
    return threads // -(-threads // MOST_LANES)


def side_by_side(lanes: Sequence[Lane], items: Iterable[Item], work: Callable[[Lane, Item], object]) -> None:
    """Call `work` once for each item, and return when every lane has ended.

    An interrupt while a thread starts may leave its lane at work on one item more: whoever uses a lane again
    or frees it holds the lane's own lock (`StreamPool.in_use`).

    The calling thread works in the first lane, and a thread of its own in each other lane. After an exception
    or an interrupt, lanes finish their items and take no others; then the first exception is raised.

    Args:
        lanes: at least one. A lane works on one item at a time.
        items: the items, taken in order.
        work: called from several threads at once, each with a lane of its own.
    """
    waiting = deque(items)
    failures: list[BaseException] = []

    def serve(lane: Lane) -> None:
        with _kept(failures, waiting):
            for item in _drained(waiting):
                work(lane, item)

    def serve_beside(lane: Lane, ended: Event) -> None:
        serve(lane)
        ended.set()

    ends: list[Event] = []
    with _kept(failures, waiting), suppress(RuntimeError):  # no thread is left: fewer lanes do the work
        for lane in lanes[1 : len(waiting)]:
            ended = Event()
            Thread(target=serve_beside, args=(lane, ended), daemon=True).start()
            ends.append(ended)
    serve(lanes[0])
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
