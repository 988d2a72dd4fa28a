"""Draws of several tokens take turns: together, they would evict each other's prompts from the streams."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

PATIENCE: Final = 10.0
"""Seconds that a block may hold the turn without being asked. After these, another one takes it."""


class Turn:
    """A block's turn. Its holder ends it.

    Attributes:
        thread: the thread that took it.
        idle_since: when its block last answered, by the monotonic clock; infinite while it computes.
    """

    def __init__(self, turns: Turns) -> None:
        self.thread = threading.get_ident()
        self.idle_since = time.monotonic()
        self._turns = turns

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count as busy, waits for the backend's lock included."""
        self.idle_since = math.inf
        try:
            yield
        finally:
            self.idle_since = time.monotonic()

    def end(self) -> None:
        """Let another block begin. It may be called at any time, by the garbage collector too."""
        self._turns.end(self)


class Turns:
    """At most one block holds the turn. Others wait until it ends."""

    def __init__(self) -> None:
        self._holder: Turn | None = None
        self._free: SimpleQueue[None] = SimpleQueue()  # unlike a lock, a finalizer may put into it
        self._free.put(None)

    def take(self) -> Turn | None:
        """Wait for the turn, without holding any lock.

        Returns:
            The turn; None if this thread holds it with another block, for which it would wait in vain.
        """
        while True:
            holder = self._holder
            if holder is not None and holder.thread == threading.get_ident():
                return None
            left = PATIENCE if holder is None else _left(holder)
            try:
                self._free.get(timeout=min(left, PATIENCE))
            except Empty:
                if holder is not self._holder or (holder is not None and _left(holder) > 0):
                    continue
            self._holder = Turn(self)
            return self._holder

    def end(self, turn: Turn) -> None:
        """End a turn, unless another block took it meanwhile."""
        if self._holder is turn:
            self._holder = None
            self._free.put(None)


def _left(holder: Turn) -> float:
    """The seconds of its patience that are left; 0 if none."""
    return max(0.0, holder.idle_since + PATIENCE - time.monotonic())
