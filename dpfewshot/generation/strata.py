"""A stratum's run: its units in tokens, what is reserved for it, and how each of its draws is charged."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from dpfewshot.account.account import Account
from dpfewshot.account.amounts import Amount, EventCost
from dpfewshot.account.draws import new_lease
from dpfewshot.account.permit import Permit
from dpfewshot.account.reservation import DelegatedDraw, Reservation, Terms
from dpfewshot.errors import BudgetExceeded, LedgerError
from dpfewshot.generation.bodies import Bodies
from dpfewshot.generation.checkpoint import NO_CHECKPOINT, Checkpoint, NoCheckpoint
from dpfewshot.generation.request import GenerationRequest, Worker
from dpfewshot.generation.set_up import SetUp
from dpfewshot.generation.telemetry import Observers
from dpfewshot.planning.plan import StratumPlan
from dpfewshot.records.units import UnitSequence
from dpfewshot.runtime.forking import start_afresh_in_children
from dpfewshot.values import PrivacySpend

COMMITS: Final = 8
"""The least number of commits that charge a demonstration's draws, if it has as many draws.

A killed process loses the draws of one commit.
"""


@dataclass(eq=False)
class Bookkeeping:
    """Where draws are paid for and recorded. The strata of a generation share it.

    Attributes:
        account: charges the budget; None without a guarantee.
        observers: are told what becomes public.
        checkpoint: of the run in progress.
    """

    account: Account | None
    observers: Observers
    checkpoint: Checkpoint | NoCheckpoint = NO_CHECKPOINT


@dataclass(eq=False)
class StratumRun:
    """One stratum of a plan while it generates.

    A forked child reserves for itself; the parent keeps the draws that it reserved.

    Attributes:
        number: its position in the plan, which names it in checkpoints.
        plan: fixed beforehand.
        set_up: what generates.
        books: shared with the plan's other strata.
        reservation: what is left of its plan; None until it is needed.
        unrecorded: tokens of a label's demonstration that the ledger could not record yet.
        lock: held by the thread that generates.
        worker: the thread of asynchronous callers.
    """

    number: int
    plan: StratumPlan
    set_up: SetUp = field(repr=False)
    books: Bookkeeping = field(repr=False)
    reservation: Reservation | None = field(default=None, init=False)
    unrecorded: dict[str, list[int]] = field(default_factory=dict, init=False, repr=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    worker: Worker = field(default_factory=Worker, init=False, repr=False)
    _parts: list[UnitSequence] | None = field(default=None, init=False, repr=False)
    _bodies: dict[int, Bodies] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        start_afresh_in_children(self)

    def after_fork(self) -> None:
        """Drop the parent's reservation and thread, and the lock, which another thread may have held."""
        self.lock = threading.RLock()
        self.reservation = None
        self.unrecorded = {}
        self.worker.after_fork()

    @property
    def certified(self) -> bool:
        """Whether the guarantee holds. It never does where no account is charged."""
        return self.set_up.certified and self.books.account is not None

    @property
    def cost(self) -> Amount | None:
        """What the account is charged for all draws; None if nothing is certified."""
        cost, event = self.plan.cost, self.plan.event
        if not self.certified or cost is None:
            return None
        return cost if event is None else EventCost(cost, event)

    @property
    def spend(self) -> PrivacySpend | None:
        """`cost`, as results state it."""
        return self.plan.spend if self.certified else None

    @property
    def terms(self) -> Terms:
        """What is reserved for the stratum."""
        settings = self.set_up.plan.settings
        return Terms(
            self.cost,
            self.set_up.account_scope(self.plan),
            draws=self.plan.steps,
            tokens_per_draw=self.plan.draws.tokens_per_draw,
            noise_multiplier=self.plan.noise_multiplier,
            details=self.set_up.account_details(self.plan),
            disjoint_parts=settings.disjoint_parts,
            draws_at_once=max(1, settings.draws_per_demonstration // COMMITS),
        )

    def units(self, part: int) -> UnitSequence:
        """The units of one disjoint part. Private. The first call assigns units to parts for good."""
        if self._parts is None:
            self._parts = self.set_up.parts(self.plan)
        return self._parts[part]

    def bodies(self, part: int) -> Bodies:
        """The units of one disjoint part, to be drawn from. Private."""
        if part not in self._bodies:
            self._bodies[part] = self.set_up.bodies(self.units(part))
        return self._bodies[part]

    def draws_left(self, others: Sequence[str] = ()) -> int:
        """Draws that a demonstration may take so that later ones still have theirs.

        Args:
            others: labels of the demonstrations to come.
        """
        settings = self.set_up.plan.settings
        if self.reservation is None:
            return settings.draws_per_demonstration
        left = max(self.reservation.draws_left)
        if settings.disjoint_parts > 1:  # most other demonstrations draw from other parts
            return left
        needed = sum(label in self.plan.labels for label in others) * settings.draws_per_demonstration
        return max(0, left - needed)

    def draws_left_in(self, part: int, others: Sequence[str]) -> int:
        """Draws that a demonstration in progress may take from its disjoint part so that later ones fit.

        Args:
            part: that it draws from.
            others: labels of the demonstrations to come. The other parts serve as many of them as they can.
        """
        assert self.reservation is not None  # noqa: S101 - `reserved` holds it
        each, left = self.set_up.plan.settings.draws_per_demonstration, self.reservation.draws_left
        elsewhere = sum(draws // each for number, draws in enumerate(left) if number != part)
        here = max(0, sum(label in self.plan.labels for label in others) - elsewhere)
        return max(0, left[part] - here * each)

    def fullest(self) -> tuple[int, int]:
        """The disjoint part with the most draws left, and how many they are."""
        assert self.reservation is not None  # noqa: S101 - `reserved` holds it
        left = self.reservation.draws_left
        part = max(range(len(left)), key=left.__getitem__)
        return part, left[part]

    @contextmanager
    def reserved(self) -> Iterator[Reservation]:
        """The reservation. Unless a draw is asked for, it goes back to the account at the end."""
        reservation = self.reservation or self.reserve()
        try:
            yield reservation
        finally:
            if not reservation.asked:
                self._give_back(reservation)
            elif reservation.used_up:
                reservation.close()

    def reserve(self) -> Reservation:
        """Reserve the plan: in the account, then in the checkpoint.

        Raises:
            BudgetExceeded: the account does not allow it.
            LedgerError: it cannot be recorded; what was reserved is given back.
        """
        reservation = Reservation.make(self.books.account, self.terms)
        self.reservation = reservation  # before observers are told: one may close the synthesizer
        try:
            self.books.checkpoint.reserved(self.number, reservation)
            self.books.observers.reserved(self.plan.scope, self.spend, self.plan.steps)
        except BaseException:
            self.reservation = None
            with suppress(LedgerError):
                reservation.close()  # nothing else refers to it
            raise
        return reservation

    def charge(self, part: int, request: GenerationRequest) -> Permit:
        """Charge one draw: first in the checkpoint, so that a later run counts it, then in the account.

        Args:
            part: of the disjoint parts.
            request: that the draw serves.

        Raises:
            Stopped: the request was cancelled.
            BackendNotBatchInvariant: the backend no longer states what the guarantee needs.
            BudgetExceeded, LedgerError: it cannot be charged; nothing may be drawn.
        """
        request.stop.check()
        self.set_up.check_invariance()
        assert self.reservation is not None  # noqa: S101 - `reserved` holds it
        self.books.checkpoint.draw(self.number, part, request.label if request.checkpointed else None)
        with self._taken_back(part):
            return self.reservation.draw(part)

    def delegate(self, part: int, request: GenerationRequest) -> DelegatedDraw:
        """Hand one draw to a worker, which charges it. The checkpoint counts it before.

        Raises:
            Stopped: the request was cancelled.
            BudgetExceeded, LedgerError: it cannot be charged; nothing may be drawn.
        """
        request.stop.check()
        assert self.reservation is not None  # noqa: S101 - `reserved` holds it
        self.books.checkpoint.draw(self.number, part, request.label if request.checkpointed else None)
        with self._taken_back(part):
            return self.reservation.delegate(part)

    @contextmanager
    def _taken_back(self, part: int) -> Iterator[None]:
        """Take back the checkpoint's line of a draw that is refused."""
        try:
            yield
        except (BudgetExceeded, LedgerError):
            with suppress(LedgerError):  # without this line the draw counts as made
                self.books.checkpoint.not_drawn(self.number, part)
            raise

    def report(self, part: int, *, asked: bool, charged: bool) -> None:
        """Count what a worker did with a delegated draw. See `Reservation.report`."""
        assert self.reservation is not None  # noqa: S101 - `reserved` holds it
        self.reservation.report(part, asked=asked, charged=charged)
        if not charged:
            with suppress(LedgerError):  # without this line the draw counts as made
                self.books.checkpoint.not_drawn(self.number, part)

    def renew(self, part: int) -> None:
        """Take the stratum from a worker that died with a delegated draw. See `Reservation.renew`.

        Raises:
            LedgerError: the account or the checkpoint cannot record it.
        """
        assert self.reservation is not None  # noqa: S101 - `reserved` holds it
        checkpoint, lease = self.books.checkpoint, new_lease()
        checkpoint.resuming(self.number, lease)  # on disk first: the answer to it may be lost
        self.reservation.renew(part, lease)
        checkpoint.reserved(self.number, self.reservation)

    def close(self) -> None:
        """Settle or give back the reservation; what a checkpoint records stays for a later run.

        Raises:
            LedgerError: it could not be given back and stays spent, until this is called again.
        """
        if self.reservation is None:
            return
        if self.books.checkpoint.resumable:
            self.reservation.hand_over()
        else:
            self.reservation.close()

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint's reservation of this stratum is one that its plan can have made."""
        recorded = checkpoint.progress.reserved.get(self.number)
        return recorded is None or (
            len(recorded.draws_left) == self.set_up.plan.settings.disjoint_parts
            and max(recorded.draws_left) <= self.plan.steps
        )

    def resume(self, checkpoint: Checkpoint) -> Reservation | None:
        """What a checkpoint reserved for this stratum, granted anew by the account; None if nothing.

        The run does not use it yet: another stratum may still fail to resume.

        Raises:
            BudgetExceeded: an account in memory has no room for it.
            LedgerError: the checkpoint is stale, of another account, or cannot be written.
        """
        recorded, lease = checkpoint.progress.reserved.get(self.number), new_lease()
        if recorded is None:
            return None
        known = tuple(recorded.leases)
        if len(checkpoint.progress.finished) >= self.set_up.plan.demonstrations:
            lease = known[-1]  # nothing more is drawn: any copy may be read again
        else:
            checkpoint.resuming(self.number, lease)  # on disk first: the answer to it may be lost
        try:
            # Which unit is in which part is private and not stored: all parts have the fewest draws left.
            draws = min(recorded.draws_left)
            return Reservation.resume(
                self.books.account, self.terms, recorded.entry, draws=draws, known=known, lease=lease
            )
        except LedgerError as error:
            raise LedgerError(f"{checkpoint.path}: {error}") from None

    def hand_over(self, checkpoint: Checkpoint, *, finished: bool) -> None:
        """Leave the reservation to the checkpoint's next run, or settle it.

        Args:
            checkpoint: records what is left.
            finished: whether the run is done, so that no later run draws.

        Raises:
            LedgerError: it cannot be recorded or settled.
        """
        if self.reservation is None:
            return
        try:
            if finished:
                checkpoint.reserved(
                    self.number, self.reservation, draws_left=[0] * len(self.reservation.draws_left)
                )
                self.reservation.close()
        finally:
            self.reservation.hand_over()  # even after an error: no draw escapes the checkpoint's count

    def _give_back(self, reservation: Reservation) -> None:
        """Return an unused reservation; keep it if the account cannot take it back now."""
        checkpoint = self.books.checkpoint
        checkpoint.returned(self.number)  # on disk first: no later run may resume what went back
        self.reservation = None
        try:
            reservation.close()
        except LedgerError:
            self.reservation = reservation
            checkpoint.reserved(self.number, reservation)
            raise
