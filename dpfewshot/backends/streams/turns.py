"""Draws of several tokens take turns: together, they would evict each other's prompts from the streams."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

PATIENCE: Final = 10.0
"""Seconds that a block may hold the turn without being asked. After these, the next one takes it."""


class Turn:
    """A block's turn. Its holder ends it.

    Attributes:
        thread: the thread that asked for it.
        busy: whether its block computes, or waits for the backend's lock.
        idle_since: when the turn began or its block last answered, by the monotonic clock.
        given: holds something once the turn has begun.
    """

    def __init__(self, turns: Turns) -> None:
        self.thread = threading.get_ident()
        self.busy = False
        self.idle_since = time.monotonic()
        self.given: SimpleQueue[None] = SimpleQueue()
        self._turns = turns
        self._process = os.getpid()

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
        """Give the turn to the block that has waited longest. The garbage collector may call it.

        A forked child's copy does nothing: whoever held the lock at the fork is not there to free it.
        """
        if self._process == os.getpid():
            self._turns.end(self)

    def patience_left(self) -> float:
        """The seconds until another block may take it."""
        return PATIENCE if self.busy else max(0.0, self.idle_since + PATIENCE - time.monotonic())


class Turns:
    """At most one block holds the turn. Others wait for it, first come, first served."""

    def __init__(self) -> None:
        self._holder: Turn | None = None
        self._waiting: deque[Turn] = deque()
        self._lock = threading.RLock()  # a finalizer may run while its own thread holds it

    def take(self) -> Turn | None:
        """Wait for the turn.

        Returns:
            The turn; None if this thread holds it with another block, for which it would wait in vain.
        """
        turn = Turn(self)
        with self._lock:
            if self._holder is not None and self._holder.thread == turn.thread:
                return None
            self._waiting.append(turn)
            if self._holder is None:
                self._give()
        try:
            while not self._began(turn):
                pass
        except BaseException:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
            self.end(turn)
            raise
        return turn

    def end(self, turn: Turn) -> None:
        """End a turn, unless another block took it meanwhile."""
        with self._lock:
            if self._holder is turn:
                self._give()

    def _began(self, turn: Turn) -> bool:
        """Wait while the holder has patience left."""
        holder = self._holder
        try:
            turn.given.get(timeout=PATIENCE if holder is None else holder.patience_left())
        except Empty:
            with self._lock:
                if self._holder is holder and (holder is None or not holder.patience_left()):
                    self._give()
            return False
        return True

    def _give(self) -> None:
        """Give the turn to the block that has waited longest."""
        self._holder = self._waiting.popleft() if self._waiting else None
        if self._holder is not None:
            self._holder.idle_since = time.monotonic()
            self._holder.given.put(None)
