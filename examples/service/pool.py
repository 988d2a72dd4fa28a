"""A pool of demonstrations, generated ahead of requests at a fixed public pace.

The time of a generation depends on the records that it draws, so a caller who waits for one measures them.
Here no caller waits. Every `pace` seconds a generation begins and the previous result becomes available.
The times depend on the clock and on earlier callers alone, so what callers see, times included, is
post-processing of what was released.

A generation that exceeds the pace is observable. The pool then stops for good, and every answer says so.
Choose a pace at which this does not happen: docs/how-to/service.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import dpfewshot as dpf

LOGGER = logging.getLogger("examples.service")

Refusal = tuple[type[dpf.DPFewShotError], str]
"""Type and message; the exception itself would keep the objects of its traceback."""


class NotReady(Exception):
    """No demonstration is ready; one may be after the next pace."""


class Pool:
    """Keeps a few demonstrations of each label ready.

    Args:
        synthesizer: generates them from its own plans.
        pace: seconds per demonstration, several times those of the slowest generation.
        ahead: ready demonstrations of a label at most.
    """

    def __init__(self, synthesizer: dpf.Synthesizer, *, pace: float, ahead: int = 4) -> None:
        self.pace = pace
        self._synthesizer = synthesizer
        self._ahead = ahead
        labels = [label for stratum in synthesizer.plan.strata for label in stratum.labels]
        self._ready: dict[str, deque[dpf.Demonstration]] = {label: deque() for label in labels}
        self._refused: dict[str, Refusal] = {}

    def take(self, label: str) -> dpf.Demonstration:
        """A ready demonstration, at once.

        Raises:
            NotReady: none is ready.
            InvalidPlan: the label is not planned.
            BudgetExceeded, BackendError, LedgerError: the label's last generation failed with it.
        """
        self._synthesizer.plan.stratum_of(label)
        if self._ready[label]:
            return self._ready[label].popleft()
        if label in self._refused:
            kind, message = self._refused[label]
            raise kind(message)
        raise NotReady

    async def fill(self) -> None:
        """Generates one demonstration a pace while the service runs."""
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
        """The label with the fewest ready; None if all have enough or are out of budget."""
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
