"""Demonstrations made ahead of their callers, at a fixed public pace.

How long a generation takes depends on the records that it draws, so a caller who waits for one measures them.
Here nobody waits for one. Every `pace` seconds a generation begins, what the one before made becomes
available, and an answer is what lies ready at that moment. When something becomes available is a function of
the clock and of earlier callers: what callers see, times included, is post-processing of what was released.

One thing would tell: a generation that is not finished when its time is over. The pool then makes no more,
and says so to whoever asks. Take a pace at which this does not happen: docs/how-to/service.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import dpfewshot as dpf

LOGGER = logging.getLogger("examples.service")

Refusal = tuple[type[dpf.DPFewShotError], str]
"""Kind and message; the exception itself would keep what its traceback refers to."""


class NotReady(Exception):
    """Nothing lies ready; something may after the next pace."""


class Pool:
    """Keeps a few demonstrations of each label ready.

    Args:
        synthesizer: makes them, from its own plans.
        pace: seconds a demonstration, several times what the slowest generation takes.
        ahead: how many of a label lie ready at most.
    """

    def __init__(self, synthesizer: dpf.Synthesizer, *, pace: float, ahead: int = 4) -> None:
        self.pace = pace
        self._synthesizer = synthesizer
        self._ahead = ahead
        labels = [label for part in synthesizer.plan.strata for label in part.labels]
        self._ready: dict[str, deque[dpf.Demonstration]] = {label: deque() for label in labels}
        self._refused: dict[str, Refusal] = {}

    def take(self, label: str) -> dpf.Demonstration:
        """What lies ready, at once.

        Raises:
            NotReady: nothing does.
            InvalidPlan: the label is not planned.
            BudgetExceeded, BackendError, LedgerError: why nothing more is made, or was last time.
        """
        self._synthesizer.plan.stratum_of(label)
        if self._ready[label]:
            return self._ready[label].popleft()
        if label in self._refused:
            kind, message = self._refused[label]
            raise kind(message)
        raise NotReady

    async def fill(self) -> None:
        """Make demonstrations, one a pace, for as long as the service runs."""
        loop = asyncio.get_running_loop()
        tick = loop.time()
        while True:
            tick += self.pace
            label = self._next()
            if label is None:
                await asyncio.sleep(tick - loop.time())
                continue
            making = asyncio.create_task(self._make(label))
            try:
                await asyncio.sleep(tick - loop.time())
                finished = making.done()
            finally:
                making.cancel()
            if not finished:
                LOGGER.error("a generation took longer than the pace: the pool is closed")
                self._refused = dict.fromkeys(self._ready, (dpf.BackendError, "the pool is closed"))
                return
            self._publish(label, making.result())

    def _next(self) -> str | None:
        """The label of which the fewest lie ready; None where all have enough or are refused for good."""
        wanted = [
            label
            for label, ready in self._ready.items()
            if len(ready) < self._ahead and not self._spent(label)
        ]
        return min(wanted, key=lambda label: len(self._ready[label]), default=None)

    def _spent(self, label: str) -> bool:
        return label in self._refused and issubclass(self._refused[label][0], dpf.BudgetExceeded)

    async def _make(self, label: str) -> dpf.Demonstration | Refusal:
        try:
            return await self._synthesizer.agenerate(label)
        except dpf.DPFewShotError as error:
            return type(error), str(error)

    def _publish(self, label: str, made: dpf.Demonstration | Refusal) -> None:
        self._refused.pop(label, None)
        if isinstance(made, dpf.Demonstration):
            self._ready[label].append(made)
        else:
            self._refused[label] = made
