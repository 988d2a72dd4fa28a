"""As many pools of streams as the kept prompts take: a llama context has 256 streams at most."""

from __future__ import annotations

from collections import deque

from dpfewshot.backends.streams.pool import RESERVED, Group, StreamPool
from dpfewshot.backends.streams.protocol import StreamsOpener
from dpfewshot.errors import BackendError

Place = tuple[StreamPool, Group]
"""A group of streams, in the pool that it belongs to."""


class StreamPools:
    """Pools of one size, so that a prompt has the same bits in each.

    Args:
        open_streams: makes the streams of a pool.
        groups: how many groups prompts can be kept in, at least.
        group_size: streams of a group.
        groups_of_a_pool: how many of them a pool can have at most.
        filler: the token of dummies.

    Attributes:
        first: the pool in whose spare group prompts without a place are evaluated.
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
    ) -> None:
        count = -(-groups // groups_of_a_pool) or 1
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
        self.first = self._pools[0]
        self.free: deque[Place] = deque((pool, group) for pool in self._pools for group in pool.groups)

    @property
    def failed(self) -> bool:
        """Whether caches are lost, so that the pools are of no more use."""
        return any(pool.failed for pool in self._pools)

    def take(self, wanted: int) -> list[Place]:
        """As many of the free places as there are, at most `wanted`."""
        return [self.free.popleft() for _ in range(min(wanted, len(self.free)))]

    def close(self) -> None:
        """Give the memory back."""
        for pool in self._pools:
            pool.close()


def groups_within(streams: int, group_size: int) -> int:
    """How many groups fit beside the reserved streams and the spare group; below 1 if none."""
    return (streams - RESERVED) // group_size - 1
