"""A plan's demonstrations, published at a fixed public pace.

The time of a generation depends on the records that it draws, so a caller who waits for one measures them.
Here no caller waits. A background task generates the plan, and every `pace` seconds one more demonstration
becomes available. What callers see, times included, is then post-processing of what was released.

A demonstration that is not finished when its turn comes is observable. The pool then publishes no more.
Choose a pace at which this does not happen: docs/how-to/service.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

import dpfewshot as dpf
from dpfewshot.errors import RunTakenOver

LOGGER = logging.getLogger("examples.service")

BUDGET, LATE, NEW_PLAN = "budget", "late", "new plan"
"""Why the pool does not publish, and will not until somebody decides: docs/how-to/service.md."""

LEDGER, MODEL, TAKEN_OVER = "ledger", "model", "taken over"
"""Why the pool does not publish at present. The last is no fault: another replica generates."""


class Pool:
    """Generates a plan once, whoever restarts or however many replicas there are.

    The ledger keeps what is released. A restart continues there, and a finished plan is only read.

    Args:
        open_synthesizer: called for each attempt; its account must be a ledger's.
        pace: seconds per demonstration, several times those of the slowest generation.
        may_begin: whether it may begin a plan on an account that has paid for another one.

    Attributes:
        labels: those of the plan.
        ready: the published demonstrations, in the order of their release.
        problem: why no more are published at present; None if nothing is wrong.
    """

    def __init__(
        self, open_synthesizer: Callable[[], dpf.Synthesizer], *, pace: float, may_begin: bool = False
    ) -> None:
        self.pace = pace
        self._may_begin = may_begin
        self.ready: list[dpf.Demonstration] = []
        self.problem: str | None = None
        self._open = open_synthesizer
        self._synthesizer = open_synthesizer()
        plan = self._synthesizer.plan
        self.labels = [label for stratum in plan.strata for label in stratum.labels]
        self._planned = plan.demonstrations

    @property
    def complete(self) -> bool:
        """Whether every planned demonstration is published."""
        return len(self.ready) >= self._planned

    @property
    def account(self) -> dpf.Account | None:
        """What pays."""
        return self._synthesizer.account

    async def fill(self) -> None:
        """Publishes the plan. Tries again after an outage, and once another replica must be done."""
        while True:
            try:
                await self._publish()
            except RunTakenOver:
                # a public time, and not the same one for every replica
                paces = self._planned + 1 + secrets.randbelow(self._planned)
                self.problem = TAKEN_OVER
                LOGGER.info("another replica generates: reading its results after %d paces", paces)
            except (dpf.LedgerError, dpf.BackendError) as error:
                self._failed(error)
                paces = 1
            except dpf.BudgetExceeded as error:
                if not await asyncio.to_thread(self._synthesizer.newest_run):
                    LOGGER.error("no more is generated: %s", error)  # noqa: TRY400 - a refusal needs no stack
                    self.problem = BUDGET
                    return
                self.problem = TAKEN_OVER
                paces = self._planned + 1  # another replica was faster by a moment: its run is read then
            else:
                return
            finally:
                await asyncio.to_thread(self._close)
            await self._reopen(paces)

    async def _publish(self) -> None:
        """Generates with the present synthesizer, and publishes one demonstration a pace."""
        synthesizer, made = self._synthesizer, list[dpf.Demonstration]()
        if await asyncio.to_thread(lambda: synthesizer.newest_run() and not synthesizer.unfinished):
            self.ready = list(await synthesizer.agenerate_all(resume=True))  # draws nothing
            self.problem = None
            return
        if await asyncio.to_thread(self._is_another_plan):
            LOGGER.error("the account paid for another plan: NEW_PLAN=1 begins this one, and adds its cost")
            self.problem = NEW_PLAN
            return
        loop = asyncio.get_running_loop()
        run = asyncio.create_task(synthesizer.agenerate_all(resume=True, on_demonstration=made.append))
        tick = loop.time()
        try:
            while not self.complete:
                tick += self.pace
                await asyncio.sleep(tick - loop.time())
                if len(made) > len(self.ready):
                    self.ready, self.problem = made[: len(self.ready) + 1], None
                elif run.done():
                    await run  # raises what ended it
                else:
                    LOGGER.error("a generation took longer than the pace: restart once, with a larger PACE")
                    self.problem = LATE
                    return
        finally:
            run.cancel()
            await asyncio.wait([run])  # it ends at its next token
            if not run.cancelled():
                run.exception()  # it was raised above, or comes too late to matter

    def _is_another_plan(self) -> bool:
        """Whether to begin would charge an account that has paid for something. The records changed, say."""
        account = self._synthesizer.account
        spent = account is not None and account.entries > 0
        return spent and not self._may_begin and self._synthesizer.newest_run() is None

    async def _reopen(self, paces: int) -> None:
        while True:
            await asyncio.sleep(paces * self.pace)
            try:
                self._synthesizer = await asyncio.to_thread(self._open)
            except (dpf.LedgerError, dpf.BackendError) as error:
                self._failed(error)
                paces = 1
            else:
                return

    def _failed(self, error: dpf.DPFewShotError) -> None:
        """Says what is gone, in a message without private text."""
        self.problem = LEDGER if isinstance(error, dpf.LedgerError) else MODEL
        LOGGER.warning("the %s is gone, which is tried again after a pace: %s", self.problem, error)

    def _close(self) -> None:
        """Settles a finished run, and leaves an unfinished one to whoever resumes it."""
        try:
            self._synthesizer.close()
        except dpf.LedgerError:
            LOGGER.warning("the ledger did not record that this run ended; what it reserved stays spent")
