"""Several pools of streams: lanes that work side by side, or more streams than one context has."""

from __future__ import annotations

from collections import deque

from dpfewshot.backends.streams.pool import RESERVED, StreamGroup, StreamPool
from dpfewshot.backends.streams.protocol import StreamsOpener
from dpfewshot.errors import BackendError

Place = tuple[StreamPool, StreamGroup]
"""A group of streams and the pool it belongs to."""


class StreamPools:
    """Pools of equal size, so that a prompt has the same bits in each.

    Args:
        open_streams: makes the streams of a pool.
        groups: the least number of groups that keep prompts.
        group_size: streams of a group.
        groups_of_a_pool: the most groups that a pool can have.
        filler: the token of dummies.
        lanes: how many pools evaluate prompts that have no place.

    Attributes:
        lanes: the pools whose spare groups evaluate prompts that have no place, at the same time.
        free: the places that no block holds.

    Raises:
        BackendError: the streams cannot be made.
    """

    def __init__(
        self,
        open_streams: StreamsOpener,
        *,
        groups: int,
        group_size: int,
        groups_of_a_pool: int,
        filler: int,
        lanes: int = 1,
    ) -> None:
        count = max(lanes, -(-groups // groups_of_a_pool))
        self._pools: list[StreamPool] = []
        try:
            for _ in range(count):
                pool = StreamPool(
                    open_streams, groups=-(-groups // count), group_size=group_size, filler=filler
                )
                self._pools.append(pool)
        except BackendError:
            self.close()
            raise
        self.lanes = self._pools[:lanes]
        self.free: deque[Place] = deque((pool, group) for pool in self._pools for group in pool.groups)

    @property
    def failed(self) -> bool:
        """Whether caches are lost and the pools must be replaced."""
        return any(pool.failed for pool in self._pools)

    def take(self, wanted: int, places: list[Place]) -> None:
        """Move up to `wanted` of the free places to a list."""
        for _ in range(min(wanted, len(self.free))):
            places.append(self.free.popleft())  # noqa: PERF401 - one by one: an interrupt loses none

    def close(self) -> None:
        """Free the memory."""
        for pool in self._pools:
            with pool.in_use:
                pool.close()


def groups_within(streams: int, group_size: int) -> int:
    """Return how many groups fit beside the reserved streams and the spare group; below 1 if none does."""
    return (streams - RESERVED) // group_size - 1
