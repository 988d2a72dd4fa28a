"""Which requests may be under way together: those of one kind, a few at once; or one by itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar

TOGETHER, ALONE = "together", "alone"

_inside: ContextVar[str | None] = ContextVar("_inside", default=None)
"""How the running task, or the one that started it, is in."""


class Gate:
    """Lets requests of one kind through together, and requests of different kinds one kind after another.

    Args:
        limit: requests under way at once, at least 1. May be lowered.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kind: Hashable = None
        self._under_way = 0
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    @property
    def is_alone(self) -> bool:
        """Whether the running task is in `alone`."""
        return _inside.get() == ALONE

    @asynccontextmanager
    async def together(self, kind: Hashable) -> AsyncIterator[None]:
        """Wait for a place among requests of this kind; whoever is in, in either way, has one already."""
        async with self._in(TOGETHER, kind):
            yield

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until nothing is under way, before all that wait in `together`; let nothing else through.

        Never within `together`, which would wait for itself.
        """
        async with self._in(ALONE, object()):
            yield

    @asynccontextmanager
    async def _in(self, way: str, kind: Hashable) -> AsyncIterator[None]:
        if _inside.get() is not None:
            yield
            return
        await self._enter(way, kind)
        token = _inside.set(way)
        try:
            yield
        finally:
            _inside.reset(token)
            self._leave()

    async def _enter(self, way: str, kind: Hashable) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if way == ALONE:
            self._waiting.appendleft((kind, turn))
        else:
            self._waiting.append((kind, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()
            else:  # let in at the moment of being cancelled
                self._leave()
            raise

    def _leave(self) -> None:
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        """Let through from the front whoever may go."""
        while self._waiting:
            kind, turn = self._waiting[0]
            if not turn.cancelled():
                if self._under_way and (kind != self._kind or self._under_way >= self.limit):
                    return
                self._kind = kind
                self._under_way += 1
                turn.set_result(None)
            self._waiting.popleft()
