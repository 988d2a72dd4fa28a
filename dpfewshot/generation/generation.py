"""A plan while it generates: one run for each stratum, and how the runs of an earlier process are found."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final

from dpfewshot.account.account import Account
from dpfewshot.account.draws import RunKey, new_lease
from dpfewshot.account.history import OPEN
from dpfewshot.account.memory import Entry
from dpfewshot.account.reservation import Reservation
from dpfewshot.demonstrations import line_hashes
from dpfewshot.errors import InvalidPlan, RunTakenOver
from dpfewshot.generation.histogram_loop import HistogramLoop
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.stratum import StratumRun
from dpfewshot.generation.telemetry import NO_OBSERVERS, Observers
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.runtime.stopping import StopSignal, new_thread
from dpfewshot.values import Demonstration

_JOINED: Final = 5
"""How often a request joins a run that others begin or take over."""


class Generation:
    """Releases the demonstrations of one set-up and charges for them.

    `Synthesizer` keeps it private. What it draws follows from its set-up, which nothing else can change.

    Args:
        account: charges the budget; None without a guarantee.
        identity: further public settings that a run has in common with the one that it continues.

    Attributes:
        runs: one for each stratum and disjoint part, in the plan's order.
        threads: of asynchronous callers, by label; None is that of whole runs.
    """

    def __init__(
        self,
        set_up: SetUp,
        account: Account | None,
        observers: Observers = NO_OBSERVERS,
        identity: Mapping[str, object] | None = None,
    ) -> None:
        self.set_up = set_up
        self.account = account
        self._plan_hash = _sha256({**(identity or {}), **set_up.identity()})
        name, settings = new_lease(), set_up.plan.settings
        parts, self.runs = settings.disjoint_parts, list[StratumRun]()
        for stratum, part in product(set_up.plan.strata, range(parts)):
            labels = (stratum.labels * settings.shots_per_label)[part::parts]
            key = RunKey(self._plan_hash, name, len(self.runs))
            self.runs.append(StratumRun(stratum, part, labels, set_up, account, observers, key))
        self.threads = {label: new_thread() for label in (None, *set_up.plan.labels)}
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Drop the parent's threads and reservations. A child's run is another one, which reserves anew."""
        self.threads = {label: new_thread() for label in self.threads}
        name = new_lease()
        for run in self.runs:
            run.start_afresh(self._plan_hash, name)

    def release(
        self,
        label: str,
        max_tokens: int,
        stop: StopSignal | None = None,
        on_token: Callable[[int], object] = lambda _token: None,
    ) -> Demonstration:
        """Release one demonstration, from the part with the most draws left. See `StratumRun.release`."""
        stop = stop or StopSignal()
        while True:
            run = self._fullest(label)
            with stop.holding(run.lock):
                if run is self._fullest(label):  # others may have drawn from it while this waited
                    return self._joined(run, partial(run.release, label, max_tokens, stop, on_token), stop)

    def _joined(
        self, run: StratumRun, release: Callable[[], Demonstration], stop: StopSignal
    ) -> Demonstration:
        """Release as part of the plan's newest run, where one count serves all texts: it is paid for once.

        A run that begins meanwhile, or takes this one over, is joined.
        """
        if self.account is None or not run.joins:
            return release()
        for _ in range(_JOINED):
            begun = self._begun() or next(
                (one.draws.key for one in self.account.run_of(run.key.plan) if one.draws.key), run.key
            )
            run.key = replace(run.key, plan=begun.plan, run=begun.run, first=True)
            run.join(stop)
            try:
                return release()
            except RunTakenOver:
                if run.is_counted:
                    run.leave()
        return release()

    def _begun(self) -> RunKey | None:
        """The name of its run; None if it has none yet."""
        return next((each.key for each in self.runs if each.reservation is not None), None)

    def follow(self) -> None:
        """Give strata that have not begun the run of those that have: `generate` may have joined one."""
        if (begun := self._begun()) is not None:
            for run in self.runs:
                if run.reservation is None:
                    run.key = replace(begun, stratum=run.key.stratum)

    @property
    def unfinished(self) -> bool:
        """Whether the account has a run of this plan, of whichever process, that nobody has finished."""
        found = self._newest("")  # without an entry for a stratum that has not begun
        return 0 < len(found) < sum(bool(run.labels) for run in self.runs) or any(
            entry.state in OPEN for entry in found
        )

    def newest_run(self, name: str) -> str | None:
        """The name of the account's newest run of this plan and name, finished or not; None without one."""
        return next((one.draws.key.run for one in self._newest(name) if one.draws.key is not None), None)

    def _newest(self, name: str) -> list[Entry]:
        if self.account is None or not self.account.durable:
            return []
        return self.account.run_of(self._plan_of(name))

    def _plan_of(self, name: str) -> str:
        return _sha256([self._plan_hash, name]) if name else self._plan_hash

    def resume(self, name: str) -> None:
        """Continue the newest run of this plan and name in the ledger, or begin one.

        Whoever held it draws no more of what it has begun. A synthesizer that has reserved for itself under
        this name continues its own run, and leaves one of another name open. The name is empty for those that
        nobody named.
        """
        if self.account is None or not self.account.durable:
            raise InvalidPlan(
                "resume=True needs a ledger, which keeps what a run has released: "
                'account=dpfewshot.open_account("sqlite:///budget.db", NAME)'
            )
        with self.no_draws():
            for run in self.runs:
                run.check_open()  # a closed one takes nothing from others
                run.late.clear()  # what was not returned is among what the run has released
            plan = self._plan_of(name)
            begun = [run for run in self.runs if run.reservation is not None]
            if begun and begun[0].key.plan == plan:
                self.follow()
                for run in self.runs:  # another process may have taken it over, or begun a label of it
                    run.take_back()
                return
            for run in begun:
                run.leave()
            entries = self.account.run_of(plan)
            found = {one.number: one.draws.key for one in entries if one.draws.key is not None}
            named = next((key.run for key in found.values()), new_lease())
            for run in self.runs:
                run.key = replace(run.key, plan=plan, run=named, first=not found)
            taken = {entry: self.runs[key.stratum] for entry, key in found.items()}
            if taken:  # all strata at once: of two processes that resume, one gets the whole run
                resumed = Reservation.resume(self.account, {entry: run.terms for entry, run in taken.items()})
                for run, reservation in zip(taken.values(), resumed, strict=True):
                    run.reservation = reservation

    def keep(self, kept: Counter[str]) -> None:
        """Let others take the place of all released demonstrations of planned labels but these lines' hashes.

        Raises:
            InvalidPlan: one of them is none of these runs', or a stratum's words are still to be counted, so
                that others would have a cost.
            LedgerError: other processes went on to record texts; the places of some are open by now.
        """
        with self.no_draws():
            if any(run.labels and run.draws_left and not run.is_counted for run in self.runs):
                raise InvalidPlan(
                    "keep= replaces texts of a run that has counted the words of all labels, and this one "
                    "has not: first call generate_all(resume=True) without it"
                )
            known = line_hashes(one for run in self.runs for one in run.released_ever)
            if kept - known:
                raise InvalidPlan("keep= has a text that the run did not release, or has it too often")
            for run in self.runs:
                run.keep(kept)

    def counted_words(self) -> dict[str, list[str]]:
        """See `Synthesizer.counted_words`."""
        loop, found = self.set_up.loop, dict[str, list[str]]()
        for run in self.runs:
            kept = run.histogram
            if kept is not None and self.set_up.certified and isinstance(loop, HistogramLoop):
                words = loop.writer.known_words(kept)
                for label in run.plan.labels:
                    found.setdefault(label, []).extend(words)
        return {label: [*dict.fromkeys(words)] for label, words in found.items()}

    def close(self) -> None:
        """Draw no more, and refuse later requests. See `StratumRun.close`."""
        for run in self.runs:
            run.closed = True  # before the locks: what waits for one begins no more
        with self.no_draws(), ExitStack() as stack:
            for run in self.runs:
                stack.callback(run.close)  # each of them, even if another one fails

    @contextmanager
    def no_draws(self) -> Iterator[None]:
        """Hold the locks of all runs."""
        with ExitStack() as stack:
            for run in self.runs:
                stack.enter_context(run.lock)
            yield

    def _fullest(self, label: str) -> StratumRun:
        stratum = self.set_up.plan.stratum_of(label)
        runs = [run for run in self.runs if run.plan is stratum]
        return max(runs, key=lambda run: (run.has_begun(label), run.texts_left))


def unaccounted(set_up: SetUp) -> Generation:
    """A generation like a synthesizer's that charges nothing, logs nothing, and says `certified=False`.

    The backend writes its texts: an audit asks for thousands, of which a text writer would be paid for each.
    """
    return Generation(replace(set_up, certified=False, text_writer=None), None)


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
