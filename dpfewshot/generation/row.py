"""A stratum's row in the account: what it reserved and released, and which process goes on with it.

Without a ledger, and for a mechanism whose texts each cost draws, one process has the row. Where one count of
words serves all texts, any number of processes share it (docs/proofs/resuming.md).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from dpfewshot.account.account import Account
from dpfewshot.account.amounts import EventCost
from dpfewshot.account.draws import BEGUN, LOST, OTHERS, THERE, UNCOUNTED, RunKey, Terms
from dpfewshot.account.memory import Entry
from dpfewshot.account.reservation import Reservation, is_counted, place_of
from dpfewshot.certificates import line_hash
from dpfewshot.demonstrations import from_line
from dpfewshot.errors import BudgetExceeded, LedgerError, RunTakenOver
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.telemetry import Observers
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.runtime.stopping import StopSignal
from dpfewshot.values import Demonstration, PrivacySpend

Result = TypeVar("Result")

_LOOK_EVERY: Final = 0.5
"""Seconds between two looks at a row that another process has."""

_RECORDED_WITHIN = 10.0
"""Seconds in which a process records words that it has drawn, unless it died."""

_COUNTED_WITHIN = 300.0
"""Seconds without a change of the row after which the process that has it may be dead."""

_COUNTED_BY_NEXT = 900.0
"""The same for a process that took the row over from this one, which never takes it back."""

_ATTEMPTS: Final = 5
"""How often something is recorded that other processes' texts come before."""


@dataclass(eq=False)
class StratumRow:
    """What a stratum of a plan has reserved and released.

    Attributes:
        part: which of the stratum's disjoint parts it draws from.
        labels: one for each demonstration that is planned for it, in order.
        account: charges the budget; None without a guarantee.
        key: names the run to the ledger, for whoever continues it.
        reservation: what is left of its plan; None until it is needed. Whoever does not hold the lock reads
            it once: the thread that generates may drop it.
        away: whether another process may have it.
        late: what is recorded and was not returned, since its record came late or is another process's.
        awaited: the reservation whose words were waited for: once, since they may be lost.
        lock: held by the thread that generates.
    """

    plan: StratumPlan
    part: int
    labels: tuple[str, ...]
    set_up: SetUp = field(repr=False)
    account: Account | None = field(repr=False)
    observers: Observers = field(repr=False)
    key: RunKey
    reservation: Reservation | None = field(default=None, init=False)
    closed: bool = field(default=False, init=False)
    away: bool = field(default=False, init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    late: list[Demonstration] = field(default_factory=list, init=False, repr=False)
    awaited: Reservation | None = field(default=None, init=False, repr=False)

    @property
    def cost(self) -> EventCost | None:
        """What the account is charged for all draws; None if nothing is certified, as without an account."""
        return None if self.account is None else self.set_up.account_cost(self.plan)

    @property
    def spend(self) -> PrivacySpend | None:
        """As results state it."""
        return None if self.cost is None else self.plan.spend

    @property
    def terms(self) -> Terms:
        """What is reserved for it."""
        return Terms(
            self.cost,
            self.set_up.partition.generating(self.plan.scope, self.part),
            draws=self.plan.steps,
            tokens_per_draw=self.plan.draws.tokens_per_draw,
            noise_multiplier=self.plan.noise_multiplier,
            details=self.set_up.account_details(self.plan),
            key=self.key,
            population=self.plan.population,
        )

    @property
    def draws_left(self) -> int:
        """The draws that later demonstrations may take."""
        return self.plan.steps if (held := self.reservation) is None else held.draws_left

    @property
    def histogram(self) -> Mapping[str, Any] | None:
        """What its count of words released; None before it."""
        return None if (held := self.reservation) is None else held.histogram

    @property
    def is_counted(self) -> bool:
        """Whether its words are counted: texts from them take no further draw, however many they are."""
        return self.histogram is not None

    @property
    def released(self) -> list[Demonstration]:
        """The demonstrations that it has released, in their order, but for those that others replace."""
        return [] if (held := self.reservation) is None else [from_line(line) for line in held.lines]

    @property
    def released_ever(self) -> list[Demonstration]:
        """The same with those, in the order in which they were released."""
        return [] if (held := self.reservation) is None else [from_line(line) for line in held.released]

    # ---- this process reserves it --------------------------------------------------------------------------

    def reserve(self, stop: StopSignal) -> Reservation:
        """Reserve the plan. If it cannot be recorded, what was reserved is given back."""
        try:
            reservation = Reservation.make(self.account, self.terms)
        except (LedgerError, BudgetExceeded) as error:
            found = self.join(stop) if self.joins else self.find(stop)  # perhaps its own, the answer lost
            if found and self.reservation is not None:
                return self.reservation
            self.check_first()
            if isinstance(error, BudgetExceeded):
                raise self.advised(error) from None
            raise
        self.reservation = reservation  # before observers are told: one may close the synthesizer
        try:
            self.observers.reserved(self.plan.scope, self.spend, self.plan.steps)
        except BaseException:
            self.reservation = None
            with suppress(LedgerError):
                reservation.close()  # nothing else refers to it
            raise
        return reservation

    def check_open(self) -> None:
        """Refuse further work once it is closed."""
        if self.closed:
            raise BudgetExceeded(
                "the synthesizer is closed and generates no more: make a new one, with a budget of its own"
            )

    def check_first(self) -> None:
        """Refuse to begin a plan that another process has begun meanwhile, before its cost is refused."""
        if self.key.first and self._has_other_run():
            raise RunTakenOver(BEGUN)

    def advised(self, refusal: BudgetExceeded) -> BudgetExceeded:
        """A refusal that names the run of this plan that another process paid for, if this one has none."""
        account, key = self.account, self.key
        if account is None or not self._has_other_run() or account.run_of(key.plan, key.run):
            return refusal
        return refusal.saying(f"{THERE}: {refusal}")

    def _has_other_run(self) -> bool:
        """Whether the plan's newest run in the ledger is another one."""
        if self.account is None or not self.account.durable:
            return False
        keys = [entry.draws.key for entry in self.account.run_of(self.key.plan)]
        return any(key is not None and key.run != self.key.run for key in keys)

    def start_afresh(self, plan: str, run: str) -> None:
        """Drop the reservation, and the lock, which another thread may have held: a child begins anew."""
        self.lock, self.reservation, self.away, self.late = threading.RLock(), None, False, []
        self.key = RunKey(plan, run, self.key.stratum)

    # ---- one process after another has it ------------------------------------------------------------------

    def hand_over(self) -> None:
        """Leave what is not drawn to another process; `take_back` ends that."""
        with self.lock:
            self.away = True
            if self.reservation is not None:
                self.reservation.hand_over()

    def leave(self) -> None:
        """Leave the run to other processes for good, with what it has released and not returned."""
        with self.lock:
            self.hand_over()
            self.reservation, self.away, self.late = None, False, []

    def take_back(self) -> None:
        """Take the row over from whoever has it, if somebody else has it."""
        with self.lock:
            if self.account is None or not self.account.durable:
                return
            entry = self._entry()
            if entry is None:
                self.reservation = None
            elif self.away or not self._is_current(entry):
                if self.reservation is None:
                    self.observers.reserved(self.plan.scope, self.spend, self.plan.steps)
                self._resume(self.account, entry)
            self.away = False

    def find(self, stop: StopSignal) -> bool:
        """Join a process that has begun the stratum meanwhile, or take the stratum over; whether one has.

        What it released is late: the caller was not told.
        """
        if not self.joins or not self.join(stop):
            self.take_back()
        self.late += self.released
        return self.reservation is not None

    # ---- several processes share its words -----------------------------------------------------------------

    @property
    def joins(self) -> bool:
        """Whether it shares words that another process counted, since one count serves all texts."""
        return self.account is not None and self.account.durable and self.set_up.mechanism.draws_once

    def join(self, stop: StopSignal) -> bool:
        """Share the words that another process counts for this run, once it has; whether there is a row.

        A process that has the row and does not count may have died: after minutes without a change this one
        takes it over, unless the draw is made. A run that was itself taken over waits longer, and does not.

        Raises:
            BudgetExceeded: the words are lost, or this run is closed.
            LedgerError: nobody counts them.
        """
        fenced, waited, seen = self.reservation is not None, 0.0, ("", 0)
        while self.account is not None and (entry := self._of_another()) is not None:
            self.check_open()
            if is_counted(entry):
                self._resume(self.account, entry, shared=True)
                break
            now = entry.draws.lease, entry.draws.left
            waited, seen = (waited if now == seen else 0.0), now
            drawn = not entry.draws.left
            if waited < (_RECORDED_WITHIN if drawn else _COUNTED_BY_NEXT if fenced else _COUNTED_WITHIN):
                waited += self._pause(stop)
            elif drawn:
                raise BudgetExceeded(LOST)
            elif fenced:
                raise LedgerError(UNCOUNTED)
            else:
                self.take_back()
                break
        return self.reservation is not None

    def await_count(self, stop: StopSignal) -> None:
        """Take what a process records that had drawn when this one took the row over."""
        reservation, waited = self.reservation, 0.0
        while self.joins and reservation not in (None, self.awaited) and waited < _RECORDED_WITHIN:
            if self.is_counted or self.draws_left or self.catch_up(reservation):
                return
            if self._of_another() is not None:  # a third one took it over
                self.join(stop)
                return
            waited += self._pause(stop)
        self.awaited = reservation

    def catch_up(self, reservation: Reservation) -> bool:
        """Add what other processes released from the same words; whether there is any."""
        entry = self._entry() if self.joins else None
        return entry is not None and reservation.catch_up(entry)

    def after_others(self, reservation: Reservation, record: Callable[[], Result]) -> Result:
        """Record a release; again, where other processes released from the same words meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                return record()
            except RunTakenOver:
                if not self.catch_up(reservation):
                    raise
        return record()

    def keep(self, kept: Counter[str]) -> None:
        """Let others take the place of what it has released of its labels and is not kept.

        Args:
            kept: the hashes of the lines to keep, of which those that are found are taken off.

        Raises:
            LedgerError: others went on to record texts meanwhile.
        """
        if self.reservation is None:
            return
        for _ in range(_ATTEMPTS):
            self.catch_up(self.reservation)
            left = kept.copy()
            if self.reservation.stand(_standing(self.reservation, left, self.labels)):
                break
        else:
            raise LedgerError(OTHERS)
        kept.clear()
        kept.update(left)

    def _entry(self) -> Entry | None:
        """The row as the ledger has it now."""
        account, key = self.account, self.key
        found = [] if account is None else account.run_of(key.plan, key.run, key.stratum)
        return found[0] if found else None

    def _of_another(self) -> Entry | None:
        """The row if another process has it, and this one has no words of it."""
        entry = None if self.is_counted else self._entry()
        return None if entry is None or self._is_current(entry) else entry

    def _is_current(self, entry: Entry) -> bool:
        return self.reservation is not None and self.reservation.is_current(entry)

    def _resume(self, account: Account, entry: Entry, *, shared: bool = False) -> None:
        [self.reservation] = Reservation.resume(account, {entry.number: self.terms}, shared=shared)

    def _pause(self, stop: StopSignal) -> float:
        """Wait for others; the seconds."""
        stop.check()
        stop.wait(_LOOK_EVERY)
        return _LOOK_EVERY


def _standing(reservation: Reservation, kept: Counter[str], labels: Sequence[str]) -> list[int]:
    """The slots if the lines that are kept stand, and others of these labels take the place of the rest."""
    lines, slots = reservation.released, {place_of(slot): slot for slot in reservation.slots}
    replaced = [place for place in range(len(lines)) if place not in slots]  # which may be kept again
    stand = []
    for place in (*slots, *replaced):
        digest = line_hash(lines[place])
        if kept[digest]:
            kept[digest] -= 1
            stand.append(place)
        elif place in slots:
            stand.append(~place if lines[place]["label"] in labels else slots[place])
    return stand
