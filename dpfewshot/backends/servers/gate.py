"""Admission of requests: several of one kind at once, or one alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar

TOGETHER, ALONE = "together", "alone"

_inside: ContextVar[str | None] = ContextVar("_inside", default=None)
"""How the running task, or the task that started it, was admitted."""


class Gate:
    """Admits requests of one kind at a time, up to a limit, or a single request alone.

    Args:
        limit: the most requests in flight, at least 1. May be lowered later.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kind: Hashable = None
        self._under_way = 0
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    @property
    def is_alone(self) -> bool:
        """Whether the running task was admitted by `alone`."""
        return _inside.get() == ALONE

    @asynccontextmanager
    async def together(self, kind: Hashable) -> AsyncIterator[None]:
        """Wait for a place among requests of this kind. A task that is admitted already does not wait."""
        async with self._in(TOGETHER, kind):
            yield

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no request is in flight, ahead of all that wait in `together`, and admit nothing else.

        Do not enter it within `together`: it would wait for itself.
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
            else:  # admitted and cancelled at the same moment
                self._leave()
            raise

    def _leave(self) -> None:
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        """Admit from the front of the queue as many as the rules allow."""
        while self._waiting:
            kind, turn = self._waiting[0]
            if not turn.cancelled():
                if self._under_way and (kind != self._kind or self._under_way >= self.limit):
                    return
                self._kind = kind
                self._under_way += 1
                turn.set_result(None)
            self._waiting.popleft()
