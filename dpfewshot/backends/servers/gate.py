"""Admission of requests: several of one kind at once, or one alone, at one server or at all replicas."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar

TOGETHER, ALONE = "together", "alone"

_inside: ContextVar[str | None] = ContextVar("_inside", default=None)
"""How the running task, or the task that started it, was admitted."""


class Gate:
    """Admits requests of one kind at a time to a server, up to a limit, or a single request alone.

    Args:
        limit: the most requests in flight, at least 1. May be lowered later.
        replicas: the gates of all replicas of the server, to which this one is added; None if it has none.
    """

    def __init__(self, limit: int, replicas: list[Gate] | None = None) -> None:
        self.limit = limit
        self._replicas = [] if replicas is None else replicas
        self._replicas.append(self)
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
        async with _admitted(TOGETHER, [self], kind):
            yield

    @asynccontextmanager
    async def alone(self, *, everywhere: bool = False) -> AsyncIterator[None]:
        """Wait until no request is in flight, ahead of all that wait in `together`, and admit nothing else.

        Do not enter it within `together`: it would wait for itself.

        Args:
            everywhere: whether to wait for the requests to all replicas, and not only to this server.
        """
        # All tasks enter the gates in one order, so no two of them wait for each other.
        async with _admitted(ALONE, self._replicas if everywhere else [self], object()):
            yield

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


@asynccontextmanager
async def _admitted(way: str, gates: Iterable[Gate], kind: Hashable) -> AsyncIterator[None]:
    if _inside.get() is not None:
        yield
        return
    async with AsyncExitStack() as entered:
        for gate in gates:
            await gate._enter(way, kind)  # noqa: SLF001 - of the same class
            entered.callback(gate._leave)  # noqa: SLF001
        token = _inside.set(way)
        try:
            yield
        finally:
            _inside.reset(token)
