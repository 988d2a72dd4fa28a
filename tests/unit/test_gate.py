"""Which requests may be under way together."""

from __future__ import annotations

import asyncio
import random

from dpfewshot.backends.servers.client import Gate
from tests.support import inside


class Watched:
    """A gate whose guests are counted."""

    def __init__(self, limit):
        self.gate = Gate(limit)
        self.inside = []
        self.seen = []

    async def together(self, kind, seconds=0.0):
        async with self.gate.together(kind):
            await self._stay(kind, seconds)

    async def alone(self, seconds=0.0):
        async with self.gate.alone():
            await self._stay("alone", seconds)

    async def _stay(self, kind, seconds):
        self.inside.append(kind)
        self.seen.append(list(self.inside))
        try:
            await asyncio.sleep(seconds)
        finally:
            self.inside.remove(kind)


def test_kinds_never_mix_and_exclusive_requests_stay_alone_under_cancellation():
    async def play(seed):
        source = random.Random(seed)
        watched = Watched(3)
        tasks = []
        for _ in range(60):
            seconds = source.choice([0.0, 0.001])
            kind = source.choice(["a", "b", "alone"])
            work = watched.alone(seconds) if kind == "alone" else watched.together(kind, seconds)
            tasks.append(asyncio.create_task(work))
            if source.random() < 0.3:
                await asyncio.sleep(0)
            if source.random() < 0.3:
                source.choice(tasks).cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        for company in watched.seen:
            assert len(set(company)) == 1
            assert len(company) <= (1 if company[0] == "alone" else 3)
        assert max(map(len, watched.seen)) > 1
        assert inside.gate_is_empty(watched.gate)
        await asyncio.wait_for(watched.together("c"), 1)

    for seed in range(20):
        asyncio.run(play(seed))


def test_who_is_alone_goes_before_all_that_wait():
    async def play():
        watched = Watched(1)
        waiting = [asyncio.create_task(watched.together("a", 0.001)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(watched.alone(), *waiting)
        assert watched.seen == [["a"], ["alone"], ["a"], ["a"]]

    asyncio.run(play())


def test_who_is_in_has_a_place_for_what_it_starts():
    async def play():
        gate = Gate(1)

        async def inner():
            async with gate.together("other"):
                return gate.is_alone

        async with gate.alone(), gate.alone():
            assert await asyncio.gather(inner(), inner()) == [True, True]
        async with gate.together("a"):
            assert await asyncio.gather(inner(), inner()) == [False, False]
        assert not gate.is_alone

    asyncio.run(asyncio.wait_for(play(), 5))
